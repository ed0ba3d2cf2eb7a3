"""AliMark's result: a detection with the alignment, the passages, the payload and the probability of each sentence.

Importing this module does not load Numba.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, Self

from alimark.core._util.arrays import Packed
from alimark.core._util.json_types import JsonObject
from alimark.core.detection.results import Detection, Verdict
from alimark.core.detection.statements import counted
from alimark.core.frozen.kernels.types import LEFT, MATCH, RIGHT, SEVERAL, SKIP_BLOCK, SKIP_SENTENCE, WHOLE, Step

if TYPE_CHECKING:
    from alimark.core.detection.chat_restructuring import Restructured
    from alimark.core.detection.settings import DetectionSettings
    from alimark.core.detection.units import Signals
    from alimark.core.keys.key import Key

StepKind = Literal["match", "merge", "split", "skip-sentence", "skip-block"]
Half = Literal["left", "right"]
Reading = Literal["normalised", "undisguised", "by clauses", "regular sentences", "sentences between"]
"""How a text was read before it was split (docs/generating.md)."""

LIKELY, PERHAPS = 0.8, 0.5
"""Probabilities of carrying the mark from which a sentence is shown in green and in yellow."""
_CARRIES, _MOVED_BY_CHANCE = 1.0, 0.1
"""A block is carried by a sentence that fits it by so many standard deviations. A skipped sentence was moved where the chance
that one of them fits a block so well that no sentence carries is at most this."""


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
        strength: The share of random blocks that fit the unit less well: 0.5 is chance. None where nothing was compared.
        elsewhere: For a skipped sentence, the skipped block that it fits so well that it was probably moved.

    Example:
        >>> AlignedStep("match", (2,), 2, 7, text="It rained.").agreed
        7
    """

    kind: StepKind
    sentences: tuple[int, ...]
    block: int | None
    agreed: int | None
    part: Half | None = None
    text: str = ""
    strength: float | None = None
    elsewhere: int | None = None

    @property
    def in_words(self) -> str:
        """What happened to the sentences: "kept", "merged", "split", "inserted", "deleted" or "moved"."""
        word = _WORDS[self.kind] if self.elsewhere is None else f"moved from {self.elsewhere}"
        return f"{word} ({self.part})" if self.part else word


_WORDS: dict[StepKind, str] = {
    "match": "kept", "merge": "merged", "split": "split", "skip-sentence": "inserted", "skip-block": "deleted",
}  # fmt: skip


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
    """

    value: int
    confidence: float
    bits: int
    likeliest: tuple[tuple[int, float], ...]

    def __int__(self) -> int:
        return self.value

    def record(self) -> JsonObject:
        """The payload as records and answers hold it."""
        return {"value": self.value, "confidence": self.confidence}


@dataclass(frozen=True, kw_only=True, repr=False)
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

    offered = tuple(
        sorted({*Detection.offered, "alignment", "passages", "payload", "sentence_chances"} - {"raw", "evidence"})
    )

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
    """How many changes of each kind the readings make in the text (`alimark.core.text.disguises.KINDS`)."""
    reading: Reading = "normalised"
    """How the text was read; where it was read in several ways, the one with the smallest p-value."""
    searched: tuple[str, ...] = ()
    """The searches for which the p-value pays, "whole" and "excerpt", where the settings left the choice to the detector."""
    restructured: Restructured | None = None
    """A chat model's restructurings of the text, where it was asked; the alignment may be that of one of them."""
    sentences_needed: Callable[[float], int | None] = field(repr=False, compare=False)
    """The number of sentences that a false-positive rate needs. The pipeline provides it, so that results simulate nothing."""
    compute_chances: Callable[[], Sequence[float]] | None = field(default=None, repr=False, compare=False)
    """Computes what `sentence_chances` returns; None where the alignment is not one of the text's own sentences."""

    @property
    def searches(self) -> int:
        return max(1, len(self.searched))

    @property
    def score_text(self) -> str:
        # The score of a text that is found by its clauses and the z-score of its sentences would seem to contradict each other.
        return f"score {self.score:.2f}" if self.reading == "by clauses" else super().score_text

    def __getstate__(self) -> JsonObject:
        return self.__dict__ | {"compute_chances": None}  # a function with the text's signals, which cannot be pickled

    @cached_property
    def sentence_chances(self) -> tuple[float, ...]:
        """The probability of each sentence to carry the mark (docs/documents.md); it is computed on demand.

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
        length = counted(len(self.sentences), "sentence")
        return (
            f"The text is short: it has {length}, and a mark is reliably found from {enough} on. The p-value holds all the "
            "same, but it rests on few sentences, so that a quotation can decide it; test more text of the same source."
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

    def _length_in_words(self, verdict: Verdict) -> str:
        needed = f"about {verdict.needed}" if verdict.needed else "more than 40"
        return f"it has {counted(len(self.sentences), 'sentence')}, and needs {needed}"

    def to_dict(self) -> JsonObject:
        content = asdict(replace(self, compute_chances=None))
        del content["sentences_needed"], content["compute_chances"]
        if self.payload is None:
            del content["payload"]  # keys without payloads keep the fields that they always had
        content["settings"]["null_file"] = self.settings.null_file and str(self.settings.null_file)
        return content

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
        rows = "".join(_html_row(step, self.step_chance(step)) for step in self.alignment)
        return (
            super()._repr_html_()
            + "<table><thead><tr><th>block</th><th>sentence</th><th>change</th><th>strength</th><th>text</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _html_row(step: AlignedStep, chance: float) -> str:
    colour = f"rgba(0,128,0,{chance / 2 if chance >= 0.5 else 0:.2f})"
    strength = "" if step.strength is None else f'<meter value="{step.strength:.3f}"></meter>'
    sentences = "+".join(str(i) for i in step.sentences)
    cells = (step.block or "", sentences, step.in_words, strength)
    text = html.escape(step.text if len(step.text) <= 120 else step.text[:117] + "...")
    return (
        f'<tr style="background:{colour}">'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td style="text-align:left">{text}</td></tr>'
    )


def aligned_steps(
    steps: Sequence[Step], signals: Signals, key: Key, sentences: Sequence[str]
) -> tuple[AlignedStep, ...]:
    """The kernel's steps with names, bit counts, strengths and texts."""
    blocks, size = key.blocks(max((step.block for step in steps), default=-1) + 1), key.block_size
    moved = _moved(steps, signals, blocks, size)
    return tuple(_aligned_step(step, signals, blocks, size, sentences, moved.get(step)) for step in steps)


def _aligned_step(
    step: Step, signals: Signals, blocks: Packed, block_size: int, sentences: Sequence[str], elsewhere: int | None
) -> AlignedStep:
    if step.kind == SKIP_BLOCK:
        return AlignedStep("skip-block", (), step.block + 1, None)
    run = range(step.last - step.merged, step.last + 1)
    numbers, text = tuple(i + 1 for i in run), " ".join(sentences[i] for i in run)
    part: Half | None = "left" if step.cut & LEFT else "right" if step.cut & RIGHT else None
    if step.kind != MATCH:
        return AlignedStep("skip-sentence", numbers, None, None, part, text, elsewhere=elsewhere)
    several = not step.merged and step.cut == SEVERAL  # then the unit is the whole sentence
    cut = WHOLE if several else step.cut
    agreed = block_size - (int(signals.packed[step.last, step.merged, cut]) ^ int(blocks[step.block])).bit_count()
    kind: StepKind = "merge" if step.merged else "split" if step.cut else "match"
    strength = NormalDist().cdf(_fit(signals, step._replace(cut=cut), int(blocks[step.block]), block_size))
    return AlignedStep(kind, numbers, step.block + 1, agreed, None if several else part, text, round(strength, 4))


def _fit(signals: Signals, unit: Step, block: int, block_size: int) -> float:
    """How well a unit fits a block, in standard deviations of what random blocks give for it."""
    if signals.soft is not None and (signals.soft.ndim == 3 or (not unit.merged and unit.cut == WHOLE)):
        table = signals.tables[unit.last, unit.merged] if signals.soft.ndim == 3 else signals.tables[unit.last]
        return float(sum(worths[block >> 8 * byte & 255] for byte, worths in enumerate(table)))
    differ = (int(signals.packed[unit.last, unit.merged, unit.cut]) ^ block).bit_count()
    return (block_size - 2 * differ) / math.sqrt(block_size)


def _moved(steps: Sequence[Step], signals: Signals, blocks: Packed, block_size: int) -> dict[Step, int]:
    """For each skipped sentence that fits a block of no other sentence better than chance explains: the block's number."""
    inserted = [step for step in steps if step.kind == SKIP_SENTENCE and not step.cut]
    of_blocks = [step.block for step in steps if step.kind != SKIP_SENTENCE]
    if not inserted or not of_blocks:
        return {}
    carried = {
        step.block
        for step in steps
        if step.kind == MATCH and _fit(signals, step, int(blocks[step.block]), block_size) > _CARRIES
    }
    lost = set(range(min(of_blocks), max(of_blocks) + 1)) - carried
    fits = [(_fit(signals, step, int(blocks[block]), block_size), step, block) for step in inserted for block in lost]
    moved: dict[Step, int] = {}
    for fit, step, block in sorted(fits, reverse=True):
        chance = len(fits) * (1 - NormalDist().cdf(fit))
        if chance <= _MOVED_BY_CHANCE and step not in moved and block + 1 not in moved.values():
            moved[step] = block + 1
    return moved
