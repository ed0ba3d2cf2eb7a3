"""The result of a detection: score, p-value, alignment, verdict and evidence. Importing this module does not load Numba."""

from __future__ import annotations

import html
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from alimark._util.arrays import Packed
from alimark._util.json_types import JsonObject
from alimark.detection.kernels.types import LEFT, MATCH, RIGHT, SEVERAL, SKIP_BLOCK, WHOLE, Step
from alimark.detection.stats.p_values import RandomKeys, draws_for
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.detection.chat_restructuring import Restructured
    from alimark.detection.settings import DetectionSettings
    from alimark.keys.key import Key

Kind = Literal["match", "merge", "split", "skip-sentence", "skip-block"]
Part = Literal["left", "right"]
Reading = Literal["as it stands", "normalised", "by clauses"]
"""How a text was read before it was split (docs/reading.md)."""
Answer = Literal["found", "not found", "too short to tell"]
Reason = Literal["p_value_at_most_fpr", "p_value_above_fpr", "text_too_short"]

LIKELY, PERHAPS = 0.8, 0.5
"""Probabilities of carrying the mark from which a sentence is shown in green and in yellow."""
_REASONS: dict[str, Reason] = {
    "found": "p_value_at_most_fpr",
    "not found": "p_value_above_fpr",
    "too short to tell": "text_too_short",
}


class Verdict(str):
    """The answer in words: "found", "not found" or "too short to tell".

    It is a string and compares equal to those words, with typed fields beside them. "not found" never means that a person
    wrote the text: text under another key, by another model, or after a thorough rewrite looks the same.

    Args:
        answer: "found", "not found" or "too short to tell".
        needed: The number of sentences that would be enough to find a mark, where it is known.

    Attributes:
        found: Whether the mark was found.
        reason: "p_value_at_most_fpr", "p_value_above_fpr" or "text_too_short".
        needed: As above.

    Example:
        >>> verdict = Verdict("too short to tell", 6)
        >>> verdict == "too short to tell", verdict.found, verdict.reason, verdict.needed
        (True, False, 'text_too_short', 6)
    """

    found: bool
    reason: Reason
    needed: int | None

    def __new__(cls, answer: Answer, needed: int | None = None) -> Verdict:
        verdict = super().__new__(cls, answer)
        verdict.found = answer == "found"
        verdict.reason = _REASONS[answer]
        verdict.needed = needed
        return verdict


@dataclass(frozen=True)
class AlignedStep:
    """A step of the alignment of a text with the key's blocks. Sentences and blocks count from 1.

    Attributes:
        kind: "match" (a sentence carries a block), "merge" (several sentences together carry it), "split" (half a sentence
            carries it, or a sentence carries several blocks), "skip-sentence" or "skip-block".
        sentences: The numbers of the sentences; empty for a skipped block.
        block: The number of the block; None for a skipped sentence.
        agreed: The bits of the block that the unit carries; None where nothing was compared.
        part: "left" or "right" where only half of a sentence is meant.
        text: The text of the sentences.

    Example:
        >>> AlignedStep("match", (2,), 2, 7, text="It rained.").agreed
        7
    """

    kind: Kind
    sentences: tuple[int, ...]
    block: int | None
    agreed: int | None
    part: Part | None = None
    text: str = ""


@dataclass(frozen=True)
class Passage:
    """A marked passage of a longer text. Sentences and blocks count from 1, and both ends are included.

    Attributes:
        first: The first sentence.
        last: The last sentence.
        first_block: The block that the first sentence carries.
        last_block: The block that the last sentence carries.
        score: The score of the passage.
        p_value: The share of random keys whose best passage in the whole text scores as high.

    Example:
        >>> passage = Passage(first=12, last=23, first_block=1, last_block=12, score=31.5, p_value=0.001)
        >>> passage.last - passage.first + 1
        12
    """

    first: int
    last: int
    first_block: int
    last_block: int
    score: float
    p_value: float

    @classmethod
    def of(cls, score: float, p_value: float, steps: Sequence[Step]) -> Passage:
        """The passage that an alignment of the local search covers."""
        matches = [step for step in steps if step.kind == MATCH]
        return cls(
            matches[0].last - matches[0].merged + 1, matches[-1].last + 1,
            matches[0].block + 1, matches[-1].block + 1, score, p_value,
        )  # fmt: skip


@dataclass(frozen=True)
class Payload:
    """The message inside a mark: the likeliest payload, its probability, and the next likely ones.

    Attributes:
        value: The likeliest payload.
        confidence: The probability that it is right, given that the text was marked under the key; `1 - confidence` is the
            probability of an error.
        bits: The number of bits of a payload.
        likeliest: The likeliest payloads with their probabilities, likeliest first; the first is `value`.

    Example:
        >>> payload = Payload(4711, 0.98, 16, ((4711, 0.98), (17, 0.01)))
        >>> int(payload), payload.confidence
        (4711, 0.98)
    """

    value: int
    confidence: float
    bits: int
    likeliest: tuple[tuple[int, float], ...]

    def __int__(self) -> int:
        return self.value


def aligned_steps(steps: Sequence[Step], packed: Packed, key: Key, sentences: Sequence[str]) -> tuple[AlignedStep, ...]:
    """The kernel's steps with names, bit counts and texts."""
    blocks = key.blocks(max((step.block for step in steps), default=-1) + 1)
    return tuple(_aligned_step(step, packed, blocks, key.block_size, sentences) for step in steps)


def _aligned_step(step: Step, packed: Packed, blocks: Packed, block_size: int, sentences: Sequence[str]) -> AlignedStep:
    if step.kind == SKIP_BLOCK:
        return AlignedStep("skip-block", (), step.block + 1, None)
    run = range(step.last - step.merged, step.last + 1)
    numbers, text = tuple(i + 1 for i in run), " ".join(sentences[i] for i in run)
    part: Part | None = "left" if step.cut & LEFT else "right" if step.cut & RIGHT else None
    if step.kind != MATCH:
        return AlignedStep("skip-sentence", numbers, None, None, part, text)
    several = not step.merged and step.cut == SEVERAL  # then the unit is the whole sentence
    unit = packed[step.last, step.merged, WHOLE if several else step.cut]
    agreed = block_size - (int(unit) ^ int(blocks[step.block])).bit_count()
    kind: Kind = "merge" if step.merged else "split" if step.cut else "match"
    return AlignedStep(kind, numbers, step.block + 1, agreed, None if several else part, text)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The result of a text under a key of any scheme, or under the best of many keys, see `keys_tried`.

    `alimark.load(key).detect(text)` returns it; it is not made by hand.
    """

    key_id: str
    scheme: str
    embedder: str = ""
    backend: str = ""
    fingerprint: str = ""
    precision: str = ""
    """The precision in which the embedder computed, such as "float32"; empty for schemes that embed nothing."""
    splitter: str
    settings: RandomKeys
    text_sha256: str
    sentences: tuple[str, ...]
    raw: float
    """The scheme's statistic."""
    score: float
    """The statistic in standard deviations above its mean over random keys."""
    z: float | None
    """The z-score of the scheme's paper; None where the statistic is another."""
    p_value: float
    """The share of random keys that score as high; never too small, and corrected where many keys were tried."""
    p_randomised: float
    """The same with ties broken at random: exactly uniform for unmarked text over keys, unless the drawing stopped early."""
    p_tail: float | None = None
    """An estimate below 1 / draws from a fitted tail; None unless the settings ask for it."""
    draws: int
    """The number of random keys drawn; 0 where the p-value comes from the scheme's own null distribution."""
    above: int = 0
    """The number of random keys that scored higher."""
    ties: int = 0
    """The number of random keys that scored the same."""
    stopped_early: bool = False
    warnings: tuple[str, ...] = ()
    keys_tried: int = 1
    """The number of keys that were tried on the text; the p-values are multiplied by it."""
    readings: int = 1
    """The number of ways in which the text was read (docs/reading.md); the p-values are multiplied by it."""
    p_least: float = 0.0
    """The least p-value that a text of this length can have, where the scheme knows it."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What the scheme counted, under names of its own, ready for JSON."""

    def verdict(self, fpr: float = 0.01) -> Verdict:
        """The answer in words at a false-positive rate.

        It is decided once for each rate and kept. For AliMark it says how many sentences would be enough; that number comes
        from `alimark.detection.stats.power`, where it is tabled or simulated once in a process.

        Args:
            fpr: The share of unmarked texts that may be called found.

        Returns:
            "found", "not found" or "too short to tell", with fields that say why.

        Raises:
            AlimarkError: The rate is not between 0 and 1, or too few random keys were drawn to decide at this rate.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder
            >>> embedder = StandInEmbedder()
            >>> mark = AliMark(Key.generate(embedder=embedder, secret=bytes(32)), embedder=embedder)
            >>> verdict = mark.detect("The lamp went out. Nobody saw it.").verdict()
            >>> verdict == "too short to tell", verdict.needed > 2
            (True, True)
        """
        if fpr not in self._verdicts:
            self._verdicts[fpr] = self._decide(fpr)
        return self._verdicts[fpr]

    @cached_property
    def _verdicts(self) -> dict[float, Verdict]:
        """The verdicts decided so far, by false-positive rate."""
        return {}

    def _decide(self, fpr: float) -> Verdict:
        draws = draws_for(fpr) * self.keys_tried * self.readings * self.searches
        if self.p_value <= fpr:
            return Verdict("found")
        if self.draws and self.above + self.ties == 0:
            raise AlimarkError(
                f"no random key of {self.draws:,} scored as high, which is too few to decide at a false-positive rate of "
                f"{fpr:g}; detect again with draws={draws}"
            )
        return self._not_found(fpr)

    def _not_found(self, fpr: float) -> Verdict:
        return Verdict("too short to tell" if self.p_least * self.keys_tried > fpr else "not found")

    @property
    def searches(self) -> int:
        """The number of searches of the text; the p-values are multiplied by it."""
        return 1

    @property
    def at_floor(self) -> bool:
        """Whether no random key scored as high, so that the p-value is only an upper bound."""
        return bool(self.draws) and not self.stopped_early and self.above + self.ties == 0

    @property
    def p_text(self) -> str:
        """The p-value as it is shown to people: "0.0123", or "<= 0.001" where it is only an upper bound."""
        text = f"<= {self.p_value:.2g}" if self.at_floor else f"{self.p_value:.3g}"
        return text if self.p_tail is None else f"{text} (tail estimate {self.p_tail:.1g})"

    def to_dict(self) -> JsonObject:
        """All fields, ready for JSON."""
        return asdict(self)

    def record(self) -> JsonObject:
        """The few fields that an audit writes for each document.

        Returns:
            A dictionary that is ready for JSON.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder
            >>> embedder = StandInEmbedder()
            >>> mark = AliMark(Key.generate(embedder=embedder, secret=bytes(32)), embedder=embedder)
            >>> sorted(mark.detect("The lamp went out. Nobody saw it.").record())
            ['draws', 'key_id', 'near_flips', 'p_value', 'scheme', 'score', 'sentence_count', 'z']
        """
        content: JsonObject = {name: getattr(self, name) for name in self._recorded}
        content["sentence_count"] = len(self.sentences)
        if self.warnings:
            content["warnings"] = list(self.warnings)
        return content

    _recorded: ClassVar[tuple[str, ...]] = ("key_id", "scheme", "score", "z", "p_value", "draws")

    def report(self, fpr: float = 0.01) -> JsonObject:
        """The evidence: enough for another person with the key to repeat the test and get the same p-value.

        Args:
            fpr: The false-positive rate of the verdict.

        Returns:
            The verdict, all fields, and the versions of the libraries involved, ready for JSON.

        Raises:
            AlimarkError: As `verdict`.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder
            >>> embedder = StandInEmbedder()
            >>> mark = AliMark(Key.generate(embedder=embedder, decision="hard", secret=bytes(32)), embedder=embedder)
            >>> report = mark.detect("The lamp went out. Nobody saw it.").report()
            >>> report["verdict"], report["sentences_needed"], report["fpr"], report["bits"]
            ('too short to tell', 6, 0.01, 16)
        """
        verdict = self.verdict(fpr)
        libraries = ["numpy", "numba", "nupunkt", "onnxruntime", "tokenizers"]
        if self.backend == "sentence-transformers":
            libraries += ["torch", "sentence-transformers"]
        versions = {"alimark": metadata.version("alimark"), "python": platform.python_version()}
        versions |= {name: metadata.version(name) for name in libraries}
        return {
            "verdict": str(verdict),
            "fpr": fpr,
            "sentences_needed": verdict.needed,
            "versions": versions,
            "machine": platform.machine(),
            **self.to_dict(),
        }

    def corrected(self, keys: int) -> Self:
        """The same result with every p-value multiplied by the number of keys tried (Bonferroni)."""
        return replace(self._repeated(keys), keys_tried=keys)

    def _repeated(self, tests: int) -> Self:
        """The same result with every p-value multiplied by the number of tests made."""
        tail = None if self.p_tail is None else min(1.0, tests * self.p_tail)
        return replace(
            self,
            p_value=min(1.0, tests * self.p_value),
            p_randomised=min(1.0, tests * self.p_randomised),
            p_tail=tail,
        )

    def _repr_html_(self) -> str:
        z = "" if self.z is None else f", z {self.z:.2f}"
        return (
            f"<p><b>{self.verdict()}</b>: p {html.escape(self.p_text)}, score {self.score:.2f}{z}, "
            f"{len(self.sentences)} sentences, key {self.key_id}</p>"
        )


@dataclass(frozen=True, kw_only=True)
class AlignedDetection(Detection):
    """AliMark's result: a `Detection` with the alignment of the text's sentences with the key's blocks.

    Example:
        >>> from alimark import AliMark, Key
        >>> from alimark.testing import StandInEmbedder
        >>> embedder = StandInEmbedder()
        >>> mark = AliMark(Key.generate(embedder=embedder, decision="hard", secret=bytes(32)), embedder=embedder)
        >>> detection = mark.detect("The lamp went out. Nobody saw it.", restructure="none")
        >>> [(step.kind, step.sentences, step.text) for step in detection.alignment if step.sentences]
        [('match', (1,), 'The lamp went out.'), ('match', (2,), 'Nobody saw it.')]
    """

    decision: str
    block_size: int
    settings: DetectionSettings
    alignment: tuple[AlignedStep, ...]
    passages: tuple[Passage, ...]
    near_flips: int
    """Bits of whole sentences that rounding on another backend might flip."""
    offsets: int = 1
    """The number of blocks that the text may begin with; the p-value pays for the search over them."""
    payload: Payload | None = None
    """The payload of the text, where the key has payloads and the p-value is at most the settings' `passage_fpr`."""
    normalised: dict[str, int] = field(default_factory=dict)
    """How many changes of each kind normalisation makes in the text (`alimark.text.normalising.KINDS`)."""
    reading: Reading = "as it stands"
    """How the text was read; where it was read in several ways, the one with the smallest p-value."""
    searched: tuple[str, ...] = ()
    """The searches for which the p-value pays, "whole" and "excerpt", where the settings left the choice to the detector."""
    restructured: Restructured | None = None
    """A chat model's restructurings of the text, where it was asked; the alignment may be that of one of them."""
    sentences_needed: Callable[[float], int | None] = field(repr=False, compare=False)
    """The number of sentences that a false-positive rate needs. The pipeline provides it, so that results simulate nothing."""
    compute_chances: Callable[[], Sequence[float]] | None = field(default=None, repr=False, compare=False)
    """Computes what `sentence_chances` returns; None where the alignment is not one of the text's own sentences."""

    _recorded = (*Detection._recorded, "near_flips")

    @property
    def searches(self) -> int:
        return max(1, len(self.searched))

    def __getstate__(self) -> JsonObject:
        return self.__dict__ | {"compute_chances": None}  # a function with the text's signals, which cannot be pickled

    @cached_property
    def sentence_chances(self) -> tuple[float, ...]:
        """The probability of each sentence to carry the mark, measured against what random keys give; it is computed on demand.

        Empty where it is not known: after learned restructuring, for a text that was read by clauses, and for a result that
        was sent to another process.
        """
        return () if self.compute_chances is None else tuple(map(float, self.compute_chances()))

    def caveat(self, fpr: float = 0.01) -> str:
        """What has to be said beside "found" about a text that is shorter than a mark usually needs; else an empty string."""
        if not self.verdict(fpr).found:
            return ""
        needed = self.sentences_needed(fpr / self.keys_tried)
        if needed is not None and len(self.sentences) >= needed:
            return ""
        enough = f"about {needed}" if needed else "more than 40"
        return (
            f"The text is short: it has {len(self.sentences)} sentences, and a mark is reliably found from {enough} on. The "
            "p-value holds all the same, but it rests on few sentences, so that a quotation can decide it; test more text "
            "of the same source."
        )

    def passage_p_text(self, passage: Passage) -> str:
        """The p-value of a passage as it is shown to people: "<=" where it is only an upper bound."""
        least = self.keys_tried * self.readings * self.searches / (self.draws + 1) if self.draws else 0.0
        bound = passage.p_value <= least * (1 + 1e-9) and not self.stopped_early
        return f"<= {passage.p_value:.2g}" if bound else f"{passage.p_value:.3g}"

    def _not_found(self, fpr: float) -> Verdict:
        needed = self.sentences_needed(fpr / self.keys_tried)
        if needed is None or len(self.sentences) < needed:
            return Verdict("too short to tell", needed)
        return Verdict("not found", needed)

    def to_dict(self) -> JsonObject:
        content = asdict(replace(self, compute_chances=None))
        del content["sentences_needed"], content["compute_chances"]
        if self.payload is None:
            del content["payload"]  # keys without payloads keep the fields that they always had
        content["settings"]["null_file"] = self.settings.null_file and str(self.settings.null_file)
        return content

    def record(self) -> JsonObject:
        content = super().record()
        warnings = content.pop("warnings", None)
        if self.payload:
            content["payload"] = {"value": self.payload.value, "confidence": self.payload.confidence}
        if self.normalised or self.readings > 1:
            content["normalised"] = {**self.normalised, "reading": self.reading, "readings": self.readings}
        if self.passages:
            content["passages"] = [asdict(passage) for passage in self.passages]
        if self.searched:
            content["searched"] = list(self.searched)
        if self.restructured:
            content["restructured"] = asdict(self.restructured) | {"texts": len(self.restructured.texts)}
        return content | ({"warnings": warnings} if warnings else {})

    def report(self, fpr: float = 0.01) -> JsonObject:
        return super().report(fpr) | {"bits": len(self.sentences) * self.block_size}

    def _repeated(self, tests: int) -> Self:
        passages = tuple(replace(passage, p_value=min(1.0, tests * passage.p_value)) for passage in self.passages)
        result = replace(super()._repeated(tests), passages=passages)
        # A payload is reported only where the mark is found.
        return result if result.p_value <= self.settings.passage_fpr else replace(result, payload=None)

    def of_searches(self, searches: tuple[str, ...], settings: DetectionSettings) -> Self:
        """The same result as the best of several searches of the text, for all of which the p-value pays."""
        return replace(self._repeated(len(searches)), searched=searches, settings=settings)

    def step_chance(self, step: AlignedStep) -> float:
        """The probability that the sentences of a step carry the mark; 0 where nothing was compared or nothing is known."""
        if step.agreed is None or not self.sentence_chances:
            return 0.0
        return max(self.sentence_chances[number - 1] for number in step.sentences)

    def _repr_html_(self) -> str:
        rows = "".join(_html_row(step, self.block_size, self.step_chance(step)) for step in self.alignment)
        return (
            super()._repr_html_()
            + "<table><thead><tr><th>block</th><th>sentence</th><th>move</th><th>bits agreed</th><th>text</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _html_row(step: AlignedStep, block_size: int, chance: float) -> str:
    colour = f"rgba(0,128,0,{chance / 2 if chance >= 0.5 else 0:.2f})"
    agreed = "" if step.agreed is None else f"{step.agreed} of {block_size}"
    sentences = "+".join(str(i) for i in step.sentences)
    cells = (step.block or "", sentences, step.kind + (f" ({step.part})" if step.part else ""), agreed)
    text = html.escape(step.text if len(step.text) <= 120 else step.text[:117] + "...")
    return (
        f'<tr style="background:{colour}">'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td style="text-align:left">{text}</td></tr>'
    )


SomeDetection = TypeVar("SomeDetection", bound=Detection)


def best_first(detections: Iterable[SomeDetection]) -> list[SomeDetection]:
    """Detections of one text under several keys: smallest p-value first, of equal p-values the highest score first."""
    return sorted(detections, key=lambda detection: (detection.p_value, -detection.score))
