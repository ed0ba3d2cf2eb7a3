"""PostMark (Chang et al., EMNLP 2024): words that a secret table derives from a finished text are inserted into it.

The text is generated without a mark. Its point in the embedding space decides which words it gets, and a chat model rewrites
the text so that they occur. Detection derives the words from the text at hand and counts how many of them are present,
where a word of similar meaning counts. It needs no language model.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Unpack, overload

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.batching import UniqueUnits, deduplicate
from alimark.core.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.core.detection.preparing import SplitText, check_length, language_warnings, split
from alimark.core.detection.results import Detection
from alimark.core.detection.settings import MAX_SENTENCES
from alimark.core.detection.stats.p_values import RandomKeys, significance_of
from alimark.core.detection.timing import Clock
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.results import Generation, MarkedSentence
from alimark.core.generation.settings import GenerationSettings, Prompt
from alimark.core.keys.fitted import Fitted
from alimark.core.parameters import SchemeParameters
from alimark.core.schemes._fit import Sentences, embedded, sentences_of
from alimark.core.schemes.base import KeyedWatermark, generate_in_order
from alimark.errors import AlimarkError, KeyMismatch, LLMError
from alimark.lab.rivals._insertion import Insertion, insert_words, words_of
from alimark.lab.rivals._word_table import KEYS_A_CHUNK, TextPoint, WordTable, frequent_words, unit_rows
from alimark.lab.rivals.parameters.postmark import PostMarkParameters
from alimark.lab.rivals.sentence import in_chunks

if TYPE_CHECKING:
    from alimark.core.embedding.base import Embedder
    from alimark.core.generation.api import Finished, GenerateOptions, ManyProgress, Progress, PromptStyle, Strength
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM, Sampling

_TEXTS_A_GROUP = 64
_SENTENCES_A_POINT = 12
"""The length of the excerpts that the spread of human texts is learned from, in sentences; about the paper's 250 words."""


class PostMark(KeyedWatermark[Detection]):
    """Generates and detects text marked by PostMark under one key.

    Args:
        key: A key of the scheme `postmark`.
        embedder: The embedder that the key names; by default it is loaded on first use.
        inserter: The chat model that inserts the words; by default the one that the key names, or else the model that wrote
            the text.
    """

    scheme = "postmark"
    Parameters: ClassVar[type[SchemeParameters]] = PostMarkParameters
    candidates: ClassVar[int] = 16
    """The most draws for a sentence of the unmarked text; the first that is a sentence is taken."""

    def __init__(self, key: Key, *, embedder: Embedder | None = None, inserter: LLM | None = None) -> None:
        super().__init__(key, embedder=embedder)
        self._inserter = inserter
        self._known_table: WordTable | None = None

    @property
    def table(self) -> WordTable:
        """The key's table."""
        if self._known_table is None:
            self._known_table = WordTable(self.key, self.embedder)
        return self._known_table

    def words(self, text: str) -> list[str]:
        """The words that the key derives from a text, closest in meaning first.

        Raises:
            TextError: The text holds no sentence.
        """
        split_text = self._split(text)
        units = deduplicate([_units_of_text(split_text)])
        [point] = self._points([split_text], units)
        return [self.table.words[i] for i in self.table.chosen(point)]

    # Generation

    @overload
    def generate(self, prompt: str, llm: LLM, **options: Unpack[GenerateOptions]) -> Generation: ...

    @overload
    def generate(self, prompt: list[str], llm: LLM, **options: Unpack[GenerateOptions]) -> list[Generation]: ...

    def generate(
        self,
        prompt: str | list[str],
        llm: LLM,
        *,
        sentences: int = 12,
        candidates: int | None = None,
        strength: Strength | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Generation | list[Generation]:
        """Generates text after a prompt, or after each of several, and has the words of the key inserted into it.

        Args:
            prompt: What to continue or, with `prompt_style="chat"`, to answer; a list for several texts.
            llm: The language model that writes the text. It also inserts the words, unless the key or the constructor names
                another chat model.
            sentences: How many sentences to write.
            candidates: The most draws for a sentence, of which the first usable one is taken.
            strength: Ignored. It exists so that all schemes have the same signature.
            seed: Makes the text repeatable. The i-th of several prompts gets the seed `seed + i`.
            sampling: Temperature, top-p and the like of the text; the insertion has its own.
            prompt_style: `continue` goes on where the prompt stops, `chat` answers it through the chat template.
            batch: The number of texts generated at a time, for a list.
            progress: Called once for each text, with its last sentence.

        Returns:
            The generation, or for a list of prompts the list of generations in the same order. `matches` holds the number of
            the key's words in the text, of `block_size` at most, and `limits` says which could not be inserted.

        Raises:
            AlimarkError: The options are invalid, or a model or the embedder fails.
        """
        from alimark.core.llm.base import Sampling

        settings = GenerationSettings(
            sentences,
            self.candidates if candidates is None else candidates,
            sampling or Sampling(),
            prompt_style=prompt_style,
        )
        return generate_in_order(self, prompt, llm, settings, seed=seed, batch=batch, progress=progress)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        """Yields each text with its prompt's number, or the error that ended it: a group is written, then marked."""
        from alimark.core.generation.api import generate_many

        marks = {self.key.id: self}
        waiting = enumerate(prompts)
        while group := list(islice(waiting, _TEXTS_A_GROUP)):
            # The seed of the insertion is the text's, so a prompt without one gets it here.
            seeds = [secrets.randbits(48) if prompt.seed is None else prompt.seed for _, prompt in group]
            plain = [Prompt(prompt.text, seed) for (_, prompt), seed in zip(group, seeds, strict=True)]
            drafts: list[tuple[int, Generation, PostMark]] = []
            for place, draft in generate_many(plain, None, None, llm, settings, batch=batch):
                number, prompt = group[place]
                if isinstance(draft, AlimarkError):
                    yield number, draft
                    continue
                key = prompt.key or self.key
                if key.id not in marks:
                    marks[key.id] = PostMark(key, embedder=self.embedder, inserter=self._inserter)
                drafts.append((number, draft, marks[key.id]))
            if drafts:
                yield from self._insert(drafts, llm, progress)

    def _insert(
        self, drafts: Sequence[tuple[int, Generation, PostMark]], llm: LLM, progress: ManyProgress | None
    ) -> Finished:
        """Has the words of each draft's key inserted into it."""
        started = time.perf_counter()
        inserter = self._inserter_for(llm)
        insertions = [
            Insertion(draft.text, mark.words(draft.text) if draft.sentences else (), f"alimark/postmark/{draft.seed}")
            for _, draft, mark in drafts
        ]
        try:
            insert_words(inserter, insertions)
        except LLMError as error:
            yield from ((number, error) for number, _, _ in drafts)
            return
        elapsed = time.perf_counter() - started
        for (number, draft, mark), insertion in zip(drafts, insertions, strict=True):
            generation = mark._marked(draft, insertion, inserter.name, elapsed / len(drafts), elapsed)
            if progress is not None and generation.sentences:
                last = MarkedSentence(
                    len(generation.sentences), generation.sentences[-1], generation.text, 0, 1, generation.tokens
                )
                progress(number, last)
            yield number, generation

    def _inserter_for(self, llm: LLM) -> LLM:
        """The chat model that inserts the words: the one that was given, the key's, or the model that wrote the text."""
        name = self.key.parameters_as(PostMarkParameters).inserter
        if self._inserter is None and name and name not in (llm.name, ""):
            from alimark.core.llm import load_llm

            self._inserter = load_llm(name)
        return self._inserter or llm

    def _marked(
        self, draft: Generation, insertion: Insertion, inserter: str, seconds: float, elapsed: float
    ) -> Generation:
        """The generation after the insertion, with what that cost and what failed."""
        known = set(words_of(insertion.text))
        missing = [word for word in insertion.words if word not in known]
        units = tuple(splitter(self.key.splitter).units(insertion.text))
        notes = [f"the words were inserted by {inserter}"] if inserter != draft.llm else []
        if insertion.failed:
            notes.append(
                f"{len(insertion.failed)} of {len(insertion.failed) + insertion.inserted} groups of words could not be "
                f"inserted: {', '.join(dict.fromkeys(insertion.failed))}"
            )
        return replace(
            draft, text=insertion.text, sentences=units, key_id=self.key.id, scheme=self.scheme,
            matches=(len(insertion.words) - len(missing),), block_size=len(insertion.words),
            tokens=draft.tokens + insertion.tokens, waves=draft.waves + insertion.requests,
            rejected=dict(Counter(draft.rejected) + insertion.rejected + Counter(failed=len(insertion.failed))),
            surviving=len(units), seconds=draft.seconds + seconds, elapsed=draft.elapsed + elapsed,
            limits=(*draft.limits, *notes),
        )  # fmt: skip

    # Detection

    def _split(self, text: str) -> SplitText:
        split_text = split(text, self.key)
        check_length(split_text, MAX_SENTENCES)
        return split_text

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        yield from self.table.words
        for text in texts:
            with suppress(AlimarkError):
                yield from _units_of_text(self._split(text))

    def _points(self, texts: Sequence[SplitText], units: UniqueUnits) -> list[TextPoint]:
        """Where the texts lie. The point of a text is the mean of its sentences, so that their order does not matter."""
        vectors = unit_rows(self.embedder.embed(units.texts))
        assert self.key.fitted is not None
        if vectors.shape[1] != len(self.key.fitted.arrays["mean"]):
            raise KeyMismatch("the key's learned data have another number of dimensions than its embedder")
        points = []
        for text in texts:
            words = words_of(text.text)
            distinct = list(dict.fromkeys(words))
            mean = vectors[units.rows(text.sentences)].mean(axis=0)
            points.append(TextPoint(unit_rows(mean), distinct, vectors[units.rows(distinct)], len(words)))
        return points

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[Detection | AlimarkError]:
        chosen = settings or RandomKeys()
        clock = Clock(Counter() if times is None else times)
        split_texts: list[SplitText | AlimarkError] = []
        for text in texts:
            try:
                split_texts.append(self._split(text))
            except AlimarkError as error:
                split_texts.append(error)
        clock.lap("splitting")
        sound = [text for text in split_texts if isinstance(text, SplitText)]
        points = iter(self._points(sound, deduplicate(_units_of_text(text) for text in sound)) if sound else [])
        clock.lap("embedding")
        answers: list[Detection | AlimarkError] = []
        for text, split_text in zip(texts, split_texts, strict=True):
            if isinstance(split_text, AlimarkError):
                answers.append(split_text)
            else:
                answers.append(self._detection(text, split_text.sentences, next(points), chosen))
        clock.lap("statistic")
        return answers

    def _detection(self, text: str, sentences: list[str], point: TextPoint, settings: RandomKeys) -> Detection:
        statistic = self._statistic(point)
        return build_detection(
            Detection,
            text,
            sentences,
            replace(statistic, warnings=language_warnings(text, self.embedder)),
            significance_of(statistic.raw, statistic.null, settings),
            key=self.key,
            embedder=EmbedderIdentity.of(self.embedder),
            settings=settings,
            tie_label="ties",
        )

    def _statistic(self, point: TextPoint) -> Statistic:
        """The share of the key's words for this text that are present, under the key and under random keys."""
        table = self.table
        present, closeness, chosen = table.present(point), table.closeness(point), table.chosen(point)
        sizes = table.sizes(point.length)
        share = float(present[chosen].mean())

        def null(first: int, count: int) -> Floats:
            """The shares under random keys, whose tables give other words to the text."""
            chunks = in_chunks(first, count, KEYS_A_CHUNK)
            return np.concatenate([table.null_shares(chunk, sizes, present, closeness)[keys] for chunk, keys in chunks])

        evidence: dict[str, object] = {
            "counted": len(chosen), "present": int(present[chosen].sum()), "share": round(share, 4),
            "words_present": [table.words[i] for i in chosen if present[i]],
            "of_the_whole_list": round(float(present.mean()), 4),
        }  # fmt: skip
        return Statistic(share, None, null, float(present.mean()) ** len(chosen), evidence)

    @classmethod
    def check_fit(cls, texts: Iterable[str], *, words: int = 3000, components: int = 32) -> None:
        """Check the texts and options of `fit`; raises AlimarkError."""
        _excerpts(texts, words, components)

    @classmethod
    def fit(cls, texts: Iterable[str], embedder: Embedder, *, words: int = 3000, components: int = 32) -> Fitted:
        """Learns the list of words and the spread of human texts in the embedding space.

        The paper gives each word the embedding of a random document. Here it gets a random point with the mean and the
        principal components of excerpts of human texts, so that a key does not have to hold thousands of embeddings.

        Args:
            texts: Human texts, of at least 50 excerpts of up to 12 sentences together; some hundreds are better.
            embedder: The embedder of the keys.
            words: The greatest number of words.
            components: The number of principal components, at most.
        """
        known = list(dict.fromkeys(texts))
        corpus, excerpts = _excerpts(known, words, components)
        vectors = unit_rows(embedded(corpus.sentences, embedder))
        points = unit_rows(np.array([vectors[rows].mean(axis=0) for rows in excerpts]))
        mean = points.mean(axis=0)
        _, spreads, directions = np.linalg.svd(points - mean, full_matrices=False)
        count = min(components, len(points) - 1, len(mean))
        scaled = directions[:count] * (spreads[:count] / np.sqrt(len(points)))[:, None]
        origin = corpus.origin(embedder) | {"excerpts": len(points), "words": frequent_words(known, words)}
        arrays = {"mean": mean.astype("<f4"), "components": scaled.astype("<f4")}
        return Fitted(cls.scheme, arrays, origin)


def _units_of_text(text: SplitText) -> list[str]:
    """What detection embeds of a text: its sentences, and each of its words."""
    return [*text.sentences, *dict.fromkeys(words_of(text.text))]


def _excerpts(texts: Iterable[str], words: int, components: int) -> tuple[Sentences, list[list[int]]]:
    """The sentences to learn from, and the places of those of each excerpt; raises AlimarkError if there are too few."""
    if not 50 <= words <= 100_000 or not 1 <= components <= 4096:
        raise AlimarkError("words must be from 50 to 100,000, and components from 1 to 4096")
    corpus = sentences_of(texts)
    excerpts: dict[tuple[int, int], list[int]] = {}
    before: Counter[int] = Counter()
    for row, number in enumerate(corpus.texts):
        excerpts.setdefault((number, before[number] // _SENTENCES_A_POINT), []).append(row)
        before[number] += 1
    if len(excerpts) < 50:
        raise AlimarkError(f"{len(excerpts)} excerpts are too few to learn from; give texts of at least 50")
    return corpus, list(excerpts.values())
