"""What a detection found, in a form that a person can check: score, p-value, alignment, verdict, evidence."""

from __future__ import annotations

import html
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from alimark._util.arrays import Packed
from alimark.detection.kernels.soft import SEVERAL
from alimark.detection.kernels.types import LEFT, MATCH, RIGHT, SKIP_BLOCK, WHOLE, Step
from alimark.detection.stats.p_values import RandomKeys, draws_for
from alimark.detection.stats.power import sentences_needed
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.detection.chat_restructuring import Restructured
    from alimark.detection.settings import DetectionSettings
    from alimark.keys.key import Key

Kind = Literal["match", "merge", "split", "skip-sentence", "skip-block"]


class Verdict(str):
    """ "found", "not found" or "too short to tell"; `needed` is the number of sentences that would be enough.

    "not found" never means that a person wrote the text: another key, another model or a thorough rewrite look the same.
    """

    needed: int | None

    def __new__(cls, word: str, needed: int | None = None) -> Verdict:
        verdict = super().__new__(cls, word)
        verdict.needed = needed
        return verdict


@dataclass(frozen=True)
class AlignedStep:
    """One move of the alignment; sentences and blocks count from 1."""

    kind: Kind
    sentences: tuple[int, ...]
    block: int | None
    agreed: int | None
    """Bits of the block that the unit carries."""
    part: Literal["left", "right"] | None = None
    text: str = ""


@dataclass(frozen=True)
class Passage:
    """A marked stretch of a longer text: sentences and blocks from 1, both ends included."""

    first: int
    last: int
    first_block: int
    last_block: int
    score: float
    p_value: float

    @classmethod
    def of(cls, score: float, p_value: float, steps: Sequence[Step]) -> Passage:
        matches = [step for step in steps if step.kind == MATCH]
        return cls(
            matches[0].last - matches[0].merged + 1, matches[-1].last + 1,
            matches[0].block + 1, matches[-1].block + 1, score, p_value,
        )  # fmt: skip


def describe(steps: Sequence[Step], packed: Packed, key: Key, sentences: Sequence[str]) -> tuple[AlignedStep, ...]:
    """The kernel's steps in words."""
    secret = key.blocks(max((step.block for step in steps), default=-1) + 1)
    described = []
    for step in steps:
        if step.kind == SKIP_BLOCK:
            described.append(AlignedStep("skip-block", (), step.block + 1, None))
            continue
        run = range(step.last - step.merged, step.last + 1)
        part: Literal["left", "right"] | None = "left" if step.cut & LEFT else "right" if step.cut & RIGHT else None
        agreed, kind = None, "skip-sentence"
        if step.kind == MATCH:
            several = not step.merged and step.cut == SEVERAL  # then the unit is the sentence itself
            differ = int(packed[step.last, step.merged, WHOLE if several else step.cut]) ^ int(secret[step.block])
            agreed = key.block_size - differ.bit_count()
            kind = "merge" if step.merged else "split" if step.cut else "match"
            part = None if several else part
        text = " ".join(sentences[i] for i in run)
        block = step.block + 1 if step.kind == MATCH else None
        described.append(AlignedStep(kind, tuple(i + 1 for i in run), block, agreed, part, text))  # type: ignore[arg-type]
    return tuple(described)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The answer for one text and one key (or the best of many, see `keys_tried`), whatever the scheme."""

    key_id: str
    scheme: str
    embedder: str = ""
    backend: str = ""
    fingerprint: str = ""
    splitter: str
    settings: RandomKeys
    text_sha256: str
    sentences: tuple[str, ...]
    raw: float
    """The statistic itself."""
    score: float
    """The statistic in standard deviations above its mean over random keys; of a scheme without random keys its own z."""
    z: float | None
    """The z-score of the scheme's own paper; None where the statistic is another."""
    p_value: float
    """The share of random keys that score as high, never too small; corrected where many keys were tried."""
    p_randomised: float
    """The same with ties broken at random: exactly uniform for unmarked text over keys, unless it stopped early."""
    p_tail: float | None = None
    """An estimate below 1 / draws from a fitted tail; None unless asked for."""
    draws: int
    """Random keys drawn; 0 where the p-value is that of the scheme's own null."""
    above: int = 0
    ties: int = 0
    stopped_early: bool = False
    warnings: tuple[str, ...] = ()
    keys_tried: int = 1
    p_least: float = 0.0
    """The least p-value that so short a text could have had, where the scheme knows it."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What the scheme counted, in its own words, ready for JSON."""

    def verdict(self, fpr: float = 0.01) -> Verdict:
        """The answer in a word, at most `fpr` of unmarked texts being called found."""
        wanted = draws_for(fpr) * self.keys_tried
        if self.p_value <= fpr:
            return Verdict("found")
        if self.draws and self.above + self.ties == 0:
            raise AlimarkError(
                f"no random key of {self.draws:,} scored as high, which is too few to decide at a false-positive rate of "
                f"{fpr:g}; detect again with draws={wanted}"
            )
        return self._not_found(fpr)

    def _not_found(self, fpr: float) -> Verdict:
        return Verdict("too short to tell" if self.p_least * self.keys_tried > fpr else "not found")

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)

    def record(self) -> dict[str, Any]:
        """The few fields that a batch audit writes for each document."""
        content: dict[str, Any] = {name: getattr(self, name) for name in self._recorded}
        content["sentence_count"] = len(self.sentences)
        if self.warnings:
            content["warnings"] = list(self.warnings)
        return content

    _recorded: ClassVar[tuple[str, ...]] = ("key_id", "scheme", "score", "z", "p_value", "draws")

    def report(self, fpr: float = 0.01) -> dict[str, Any]:
        """The evidence: enough for another person with the key to repeat the test and get the same p-value."""
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
        """Every p-value multiplied by the number of keys tried."""

        def times(p: float) -> float:
            return min(1.0, keys * p)

        tail = None if self.p_tail is None else times(self.p_tail)
        return replace(
            self, p_value=times(self.p_value), p_randomised=times(self.p_randomised), p_tail=tail, keys_tried=keys
        )

    def _repr_html_(self) -> str:
        z = "" if self.z is None else f", z {self.z:.2f}"
        return (
            f"<p><b>{self.verdict()}</b>: p = {self.p_value:.4g}, score {self.score:.2f}{z}, "
            f"{len(self.sentences)} sentences, key {self.key_id}</p>"
        )


@dataclass(frozen=True, kw_only=True)
class AlignedDetection(Detection):
    """AliMark's answer: with the alignment behind it."""

    decision: str
    block_size: int
    settings: DetectionSettings
    alignment: tuple[AlignedStep, ...]
    passages: tuple[Passage, ...]
    near_flips: int
    offsets: int = 1
    """Blocks that the text may begin with; the search over them is paid for in the p-value."""
    restructured: Restructured | None = None
    """What a chat model made of the text, where it was asked; then the alignment may be of one of its answers."""

    _recorded = (*Detection._recorded, "near_flips")

    def _not_found(self, fpr: float) -> Verdict:
        # At worst the offsets cost as much as so many keys.
        needed = sentences_needed(self.block_size, fpr / self.keys_tried / self.offsets, soft=self.decision == "soft")
        if needed is not None and self.settings.search == "excerpt":
            needed = math.ceil(1.5 * needed)  # the wider search costs about that much
        if needed is None or len(self.sentences) < needed:
            return Verdict("too short to tell", needed)
        return Verdict("not found", needed)

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        content["settings"]["null_file"] = self.settings.null_file and str(self.settings.null_file)
        return content

    def record(self) -> dict[str, Any]:
        content = super().record()
        warnings = content.pop("warnings", None)
        if self.passages:
            content["passages"] = [asdict(passage) for passage in self.passages]
        if self.restructured:
            made = asdict(self.restructured)
            content["restructured"] = made | {"texts": len(self.restructured.texts)}
        return content | ({"warnings": warnings} if warnings else {})

    def report(self, fpr: float = 0.01) -> dict[str, Any]:
        return super().report(fpr) | {"bits": len(self.sentences) * self.block_size}

    def corrected(self, keys: int) -> Self:
        one = super().corrected(keys)
        passages = tuple(replace(passage, p_value=min(1.0, keys * passage.p_value)) for passage in one.passages)
        return replace(one, passages=passages)

    def _repr_html_(self) -> str:
        rows = "".join(_html_row(step, self.block_size) for step in self.alignment)
        return (
            super()._repr_html_()
            + "<table><thead><tr><th>block</th><th>sentence</th><th>move</th><th>bits agreed</th><th>text</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _html_row(step: AlignedStep, m: int) -> str:
    share = 0.5 if step.agreed is None else step.agreed / m
    colour = f"rgba({'0,128,0' if share >= 0.5 else '192,0,0'},{abs(share - 0.5):.2f})"
    agreed = "" if step.agreed is None else f"{step.agreed} of {m}"
    sentences = "+".join(str(i) for i in step.sentences)
    cells = (step.block or "", sentences, step.kind + (f" ({step.part})" if step.part else ""), agreed)
    text = html.escape(step.text if len(step.text) <= 120 else step.text[:117] + "...")
    return (
        f'<tr style="background:{colour}">'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f'<td style="text-align:left">{text}</td></tr>'
    )
