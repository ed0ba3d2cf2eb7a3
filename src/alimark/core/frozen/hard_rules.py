"""What detection under hard keys rests on for ever, beside the paper's rule: the constants of its searches.

Frozen: other constants would give marked texts other scores.
"""

from __future__ import annotations

from alimark.core.frozen.kernels.types import LocalCosts

ALPHA, BETA = 0.5, 1.5
"""A text is aligned with so many blocks at least and at most, per sentence."""
AGREEMENT = 0.85
"""The share of a block's bits that a sentence is expected to carry, where a text is read by its clauses."""
BLOCKS = 2.2
"""Blocks that a text may be aligned with, per expected sentence, where it is read by its clauses."""


def local_costs(block_size: int) -> LocalCosts:
    """The costs of the search for marked passages, in proportion to the block."""
    return LocalCosts(0.35, 0.3 * block_size, 0.3 * block_size, 0.375 * block_size)
