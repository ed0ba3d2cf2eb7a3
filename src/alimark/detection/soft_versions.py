"""The versions of the soft decision: everything about detection that a soft key fixes for all later releases."""

from __future__ import annotations

from typing import NamedTuple

from alimark.detection.kernels.types import LocalCosts, SoftRule


class SoftVersion(NamedTuple):
    """The detector of a soft key. A version never changes, so that every later release finds the texts it marked."""

    rules: tuple[SoftRule, ...]
    """Models of rewriting, all equally likely. The alignment that is shown follows the first."""
    shrink: float
    """The text's mean is shrunk as if the text had this many more average sentences: in a short text it counts less."""
    blocks: float
    """Blocks that a text may be aligned with, per sentence."""
    local: LocalCosts


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
SOFT_VERSIONS = {1: _VERSION_1, 2: _VERSION_1._replace(rules=(_ANYTHING, _DELETED, _REORDERED, _PASTED))}
"""docs/soft.md describes how these values were chosen and which others were tried."""
