"""The versions of the soft decision: everything about detection that a soft key fixes for all later releases."""

from __future__ import annotations

from typing import NamedTuple

from alimark.core.frozen.kernels.types import LocalCosts, SoftRule


class SoftVersion(NamedTuple):
    """The detector of a soft key. A version never changes, so that every later release finds the texts it marked."""

    rules: tuple[SoftRule, ...]
    """Models of rewriting. The alignment that is shown follows the first."""
    shrink: float
    """The text's mean is shrunk as if the text had this many more average sentences: in a short text it counts less."""
    blocks: float
    """Blocks that a text may be aligned with, per sentence."""
    local: LocalCosts
    weights: tuple[float, ...] | None = None
    """How likely each rule is; None: all the same."""
    norm_weight: float = 0.0
    """How much more a sentence counts that lies far from the text's mean: 0 not at all, 1 in proportion to its distance."""
    restructures: bool = True
    """Whether a sentence may carry a block together with the sentence before it. If not, only sentences are embedded."""


_ANYTHING = SoftRule(
    worth=1.3, foreign=0.12, replaced=0.1, moved=0.8, repeated=0.05, skipped=0.1, further=0.6,
    two=0.06, three=0.02, joined=0.04, jump=0.02,
)  # fmt: skip
_LITTLE = SoftRule(
    worth=1.3, foreign=0.03, replaced=0.03, moved=0.3, repeated=0.03, skipped=0.03, further=0.6,
    two=0.0, three=0.0, joined=0.0, jump=0.01,
)  # fmt: skip
_DELETED = _LITTLE._replace(skipped=0.4)
_REORDERED = _LITTLE._replace(replaced=0.5, moved=0.95)
_PASTED = _LITTLE._replace(outside=0.6, leaving=0.1, staying=0.85, resumed=0.05)

_VERSION_1 = SoftVersion(
    rules=(_ANYTHING,),
    shrink=5.0,
    blocks=2.0,
    local=LocalCosts(theta=1.0, skip_sentence=1.0, skip_block=1.0, restructure=1.2),
)
_REWRITTEN_3 = SoftRule(
    worth=1.6, foreign=0.05, replaced=0.006, moved=0.07, repeated=0.04, skipped=0.036, further=0.53,
    two=0.0, three=0.0, joined=0.0, jump=0.007,
)  # fmt: skip
_INSERTED_3 = _REWRITTEN_3._replace(foreign=0.31, replaced=0.003, moved=0.02, skipped=0.002, further=0.46, jump=0.001)
_DELETED_3 = _REWRITTEN_3._replace(
    foreign=0.004, replaced=0.004, moved=0.45, repeated=0.01, skipped=0.6, further=0.2, jump=0.004
)
_REORDERED_3 = _REWRITTEN_3._replace(
    foreign=0.07, replaced=0.22, moved=0.97, repeated=0.007, skipped=0.03, further=0.11, jump=0.002
)
_PASTED_3 = _REWRITTEN_3._replace(
    foreign=0.004, replaced=0.005, moved=0.27, repeated=0.008, skipped=0.12, further=0.12, jump=0.004,
    outside=0.86, leaving=0.14, staying=0.75, resumed=0.39,
)  # fmt: skip
_VERSION_3 = SoftVersion(
    rules=(_REWRITTEN_3, _INSERTED_3, _DELETED_3, _REORDERED_3, _PASTED_3),
    weights=(0.6, 0.1, 0.15, 0.1, 0.05),
    shrink=20.0,
    blocks=2.5,
    local=LocalCosts(theta=1.0, skip_sentence=1.0, skip_block=1.0, restructure=1.2),
    restructures=False,
)
SOFT_VERSIONS = {
    1: _VERSION_1,
    2: _VERSION_1._replace(rules=(_ANYTHING, _DELETED, _REORDERED, _PASTED)),
    3: _VERSION_3,
}
"""docs/soft.md describes how these values were chosen and which others were tried."""
