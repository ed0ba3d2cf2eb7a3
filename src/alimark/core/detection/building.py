"""The one place where results are put together, for AliMark and all other schemes."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self, TypeVar

from alimark.core.detection.results import Detection
from alimark.core.detection.stats.p_values import NullScores, RandomKeys, Significance
from alimark.core.embedding.base import Embedder, precision_of
from alimark.core.keys.key import Key

Built = TypeVar("Built", bound=Detection)
TieLabel = Literal["ties", "tie"]
"""The label under which a key derives the random number that breaks ties. It decides `p_randomised`, so that each family
of schemes keeps the label it began with: "ties" for sentence-level schemes, "tie" for token-level ones."""


class EmbedderIdentity(NamedTuple):
    """The embedder as a result records it."""

    name: str
    backend: str
    fingerprint: str
    precision: str = ""

    @classmethod
    def of(cls, embedder: Embedder) -> Self:
        return cls(embedder.name, embedder.backend, embedder.fingerprint, precision_of(embedder))


@dataclass(frozen=True)
class Statistic:
    """What a scheme computes from one text: its statistic under the key and under random keys."""

    raw: float  # the statistic under the key; higher means more of the mark
    z: float | None  # the z-score of the scheme's paper, where there is one
    null: NullScores  # the statistic under random keys
    p_least: float = 0.0  # the least p-value that a text of this length can have
    evidence: Mapping[str, object] = field(default_factory=dict)  # what was counted, ready for JSON
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_z(
        cls, z: float, null: NullScores, p_least: float, evidence: Mapping[str, object], warnings: tuple[str, ...] = ()
    ) -> Self:
        """The statistic of a scheme whose z-score is its statistic."""
        return cls(z, z, null, p_least, evidence, warnings)


def build_detection(
    make: Callable[..., Built],
    text: str,
    sentences: Sequence[str],
    statistic: Statistic,
    significance: Significance,
    *,
    key: Key,
    embedder: EmbedderIdentity,
    settings: RandomKeys,
    tie_label: TieLabel,
) -> Built:
    """What `make`, `Detection` or a subclass whose further fields are given, constructs from the fields of a `Detection`.

    The hash of `text` is recorded, and `tie_label` is the scheme's label for breaking ties.
    """
    return make(
        key_id=key.id,
        scheme=key.scheme,
        embedder=embedder.name,
        backend=embedder.backend,
        fingerprint=embedder.fingerprint,
        precision=embedder.precision,
        splitter=key.splitter,
        settings=settings,
        text_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        sentences=tuple(sentences),
        raw=statistic.raw,
        score=(statistic.raw - significance.mean) / significance.std if significance.std > 0 else 0.0,
        z=statistic.z,
        p_value=significance.p_value,
        p_randomised=significance.randomised(1 - key.uniform(tie_label, text)),
        p_tail=significance.tail,
        draws=significance.draws,
        above=significance.above,
        ties=significance.ties,
        stopped_early=significance.stopped_early,
        warnings=statistic.warnings,
        p_least=statistic.p_least,
        evidence=dict(statistic.evidence),
    )
