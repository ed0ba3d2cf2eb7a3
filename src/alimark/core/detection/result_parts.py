"""The parts of AliMark's result: steps of the alignment, marked passages, the payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from alimark.core._util.arrays import Packed
from alimark.core._util.json_types import JsonObject
from alimark.core.frozen.kernels.types import LEFT, MATCH, RIGHT, SEVERAL, SKIP_BLOCK, WHOLE, Step

if TYPE_CHECKING:
    from alimark.core.keys.key import Key

StepKind = Literal["match", "merge", "split", "skip-sentence", "skip-block"]
Half = Literal["left", "right"]


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

    kind: StepKind
    sentences: tuple[int, ...]
    block: int | None
    agreed: int | None
    part: Half | None = None
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


def aligned_steps(steps: Sequence[Step], packed: Packed, key: Key, sentences: Sequence[str]) -> tuple[AlignedStep, ...]:
    """The kernel's steps with names, bit counts and texts."""
    blocks, size = key.blocks(max((step.block for step in steps), default=-1) + 1), key.block_size
    return tuple(_aligned_step(step, packed, blocks, size, sentences) for step in steps)


def _aligned_step(step: Step, packed: Packed, blocks: Packed, block_size: int, sentences: Sequence[str]) -> AlignedStep:
    if step.kind == SKIP_BLOCK:
        return AlignedStep("skip-block", (), step.block + 1, None)
    run = range(step.last - step.merged, step.last + 1)
    numbers, text = tuple(i + 1 for i in run), " ".join(sentences[i] for i in run)
    part: Half | None = "left" if step.cut & LEFT else "right" if step.cut & RIGHT else None
    if step.kind != MATCH:
        return AlignedStep("skip-sentence", numbers, None, None, part, text)
    several = not step.merged and step.cut == SEVERAL  # then the unit is the whole sentence
    unit = packed[step.last, step.merged, WHOLE if several else step.cut]
    agreed = block_size - (int(unit) ^ int(blocks[step.block])).bit_count()
    kind: StepKind = "merge" if step.merged else "split" if step.cut else "match"
    return AlignedStep(kind, numbers, step.block + 1, agreed, None if several else part, text)
