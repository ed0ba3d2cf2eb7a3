"""The result of a detection under a key of any scheme: statistic, p-value, verdict and evidence."""

from __future__ import annotations

import html
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import Any, ClassVar, Literal, Self, TypeVar

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.statements import statement
from alimark.core.detection.stats.p_values import RandomKeys, draws_for
from alimark.errors import AlimarkError

Answered = Literal["found", "not found", "too short to tell"]
Reason = Literal["p_value_at_most_fpr", "p_value_above_fpr", "text_too_short"]

_REASONS: dict[Answered, Reason] = {
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

    def __new__(cls, answer: Answered, needed: int | None = None) -> Verdict:
        verdict = super().__new__(cls, answer)
        verdict.found = answer == "found"
        verdict.reason = _REASONS[answer]
        verdict.needed = needed
        return verdict


@dataclass(frozen=True, kw_only=True, repr=False)
class Detection:
    """The result of a text under a key of any scheme, or under the best of many keys, see `keys_tried`.

    `alimark.load(key).detect(text)` returns it; it is not made by hand. `details` has what few users need.
    """

    offered: ClassVar[tuple[str, ...]] = (
        "caveat", "details", "evidence", "key_id", "p_text", "p_value", "record", "report", "scheme", "score", "sentences",
        "statement", "to_dict", "verdict", "warnings", "z",
    )  # fmt: skip
    """The names that a session completes."""
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
    """The z-score of the scheme's paper, for AliMark that of the text's sentences; None where there is no such score."""
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
    """The number of ways in which the text was read (docs/generating.md); the p-values are multiplied by it."""
    p_least: float = 0.0
    """The least p-value that a text of this length can have, where the scheme knows it."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """What the scheme counted, under names of its own, ready for JSON."""

    def verdict(self, fpr: float = 0.01) -> Verdict:
        """The answer in words at a false-positive rate.

        For AliMark it says how many sentences would be enough; that number comes from `alimark.core.detection.stats.power`,
        where it is tabled or simulated once in a process.

        Args:
            fpr: The share of unmarked texts that may be called found.

        Returns:
            "found", "not found" or "too short to tell", with fields that say why.

        Raises:
            AlimarkError: The rate is not between 0 and 1, or too few random keys were drawn to decide at this rate.
        """
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

    def statement(self, fpr: float = 0.01) -> str:
        """The result in a sentence or two for people who have no statistics; the verdict is that at this false-positive rate.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder
            >>> embedder = StandInEmbedder()
            >>> mark = AliMark(Key.generate(embedder=embedder, decision="hard", secret=bytes(32)), embedder=embedder)
            >>> mark.detect("The lamp went out.").statement()
            'The text is too short to tell whether it carries the mark of this key: it has 1 sentence, and needs about 6.'
        """
        draws_for(fpr)  # raises where this is no rate
        try:
            verdict: str = self.verdict(fpr)
        except AlimarkError:
            verdict = "undecided"
        length = self._length_in_words(verdict) if isinstance(verdict, Verdict) else ""
        passages = [(passage.first, passage.last) for passage in getattr(self, "passages", ())]
        return statement(
            verdict, self.p_value, at_most=self.at_floor, keys_tried=self.keys_tried, key_id=self.key_id,
            passages=passages, length=length,
        )  # fmt: skip

    def _length_in_words(self, verdict: Verdict) -> str:
        return f"one of this length has a p-value of {self.p_least:.2g} at the least"

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
        """The p-value as it is shown to people: "0.0123", or "<= 0.001" where no random key scored as high."""
        text = f"<= {self.p_value:.2g}" if self.at_floor else f"{self.p_value:.3g}"
        return text if self.p_tail is None else f"{text} (tail estimate {self.p_tail:.1g})"

    @property
    def score_text(self) -> str:
        """The score as it is shown to people, with the z-score of the scheme's paper where there is one."""
        return f"score {self.score:.2f}" + ("" if self.z is None else f", z {self.z:.2f}")

    def to_dict(self) -> JsonObject:
        """All fields, ready for JSON."""
        return asdict(self)

    def record(self) -> JsonObject:
        """The few fields that records hold, ready for JSON; `alimark.core.detection.fields` lists them."""
        from alimark.core.detection.fields import values

        return values(self, "record")

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
            "statement": self.statement(fpr),
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
            self, p_value=min(1.0, tests * self.p_value), p_randomised=min(1.0, tests * self.p_randomised), p_tail=tail
        )

    @property
    def details(self) -> JsonObject:
        """The fields beyond the usual ones, by name: counts of random keys, corrections, settings, what was used."""
        return {name: value for name, value in self.to_dict().items() if name not in self.offered}

    def __dir__(self) -> list[str]:
        return [*(name for name in super().__dir__() if name.startswith("_")), *self.offered]

    def __repr__(self) -> str:
        facts = (f"p {self.p_text}", self.score_text, f"{len(self.sentences)} sentences", f"scheme {self.scheme}")
        return f"{type(self).__name__}({', '.join((*facts, f'key {self.key_id}'))})"

    def _repr_html_(self) -> str:
        return (
            f"<p><b>{html.escape(self.statement())}</b></p><p>p {html.escape(self.p_text)}, {self.score_text}, "
            f"{len(self.sentences)} sentences, key {self.key_id}</p>"
        )


SomeDetection = TypeVar("SomeDetection", bound=Detection)


def best_first(detections: Iterable[SomeDetection]) -> list[SomeDetection]:
    """Detections of one text under several keys: smallest p-value first, of equal p-values the highest score first."""
    return sorted(detections, key=lambda detection: (detection.p_value, -detection.score))
