"""A scheme: each sentence lies on the side of a secret hyperplane that the secret bit of its position names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark import LLM, Key
from alimark.core.detection.building import Statistic
from alimark.core.generation.selection import Weight
from alimark.core.parameters import SchemeParameters
from alimark.errors import KeyFileError
from alimark.lab.rivals.sentence import SentenceRival, count_z

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SideParameters(SchemeParameters):
    """The public parameters of a key, with validation."""

    scheme: ClassVar[str] = "side"
    embeds: ClassVar[bool] = True

    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin must be at least 0 and below 1, not {self.margin:g}")


class SideRule:
    """What generation asks of a candidate."""

    scheme, embeds, stops, strict, size = "side", True, True, True, 1

    def __init__(self, key: Key) -> None:
        self.key, self.margin, self.position = key, key.parameters_as(SideParameters).margin, 0

    def wave(self, settings: Any) -> int:
        """The number of candidates that are sampled at a time."""
        return settings.wave or 4

    def see(self, vectors: Array) -> Array:
        """The projections of candidates on the secret normal vector."""
        normal: Array = self.key.normals("side/normal", 1, vectors.shape[1])[0]
        return vectors @ normal[:, None]

    def signs(self, sentences: int, label: str = "side/bits", *index: int) -> Array:
        """The sides that the first sentences of a text must lie on; other labels give those of random keys."""
        return np.where(self.key.uniforms(label, sentences, *index) < 0.5, -1, 1)

    def weigh(self, seen: Array) -> list[Weight]:
        """How well each candidate fits; the first that lies far enough on its side is taken."""
        values = seen[:, 0] * self.signs(self.position + 1)[-1]
        return [Weight(int(value > 0), value, value > self.margin) for value in values.tolist()]

    def chose(self, seen: Array) -> None:
        """Goes on to the next sentence."""
        self.position += 1


class Side(SentenceRival):
    """The watermark class: the rule of generation and the statistic of detection."""

    scheme = "side"
    Parameters = SideParameters

    @classmethod
    def rule(cls, key: Key) -> SideRule:
        """The rule by which sentences are chosen."""
        return SideRule(key)

    def statistic(self, seen: Array, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        """Counts sentences on their side, and compares the count with that of random bits."""
        rule, total, sides = self.rule(self.key), len(seen), np.sign(seen[:, 0])

        def z(signs: Array) -> float:
            return count_z(float((sides == signs).sum()), total, 0.5)

        def null(first: int, count: int) -> Array:
            return np.array([z(rule.signs(total, "side/null", i)) for i in range(first, first + count)])

        return Statistic.of_z(z(rule.signs(total)), null, 0.5**total, {"counted": total})
