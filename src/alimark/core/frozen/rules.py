"""What detection rests on for ever: under soft keys the models of rewriting and the constants of the score, under hard keys
those of its searches.

Frozen: other constants would give marked texts other scores.

docs/soft.md states the whole formula and says how these values were chosen.
"""

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.frozen.kernels.types import LocalCosts, SoftRule

_REWRITTEN = SoftRule(
    worth=1.6, foreign=0.05, replaced=0.006, moved=0.07, repeated=0.04, skipped=0.036, further=0.53, jump=0.007
)
_INSERTED = _REWRITTEN._replace(foreign=0.31, replaced=0.003, moved=0.02, skipped=0.002, further=0.46, jump=0.001)
_DELETED = _REWRITTEN._replace(
    foreign=0.004, replaced=0.004, moved=0.45, repeated=0.01, skipped=0.6, further=0.2, jump=0.004
)
_REORDERED = _REWRITTEN._replace(
    foreign=0.07, replaced=0.22, moved=0.97, repeated=0.007, skipped=0.03, further=0.11, jump=0.002
)
_PASTED = _REWRITTEN._replace(
    foreign=0.004, replaced=0.005, moved=0.27, repeated=0.008, skipped=0.12, further=0.12, jump=0.004,
    outside=0.86, leaving=0.14, staying=0.75, resumed=0.39,
)  # fmt: skip

RULES = (_REWRITTEN, _INSERTED, _DELETED, _REORDERED, _PASTED)
"""Models of rewriting. The alignment that is shown follows the first."""
WEIGHTS = (0.6, 0.1, 0.15, 0.1, 0.05)  # how likely each rule is
SHRINK = 20.0
"""The text's mean is shrunk as if the text had this many more average sentences: in a short text it counts less."""
BLOCKS = 2.5  # blocks that a text may be aligned with, per sentence
LOCAL = LocalCosts(theta=1.0, skip_sentence=1.0, skip_block=1.0, restructure=1.2)
"""The costs of the search for marked passages."""


def centred_and_scaled(projections: Floats, total: Floats, sentences: float) -> Floats:
    """Projections minus their mean over a text, each unit scaled to a mean square of 1.

    `total` is the sum over the sentences of the text. The mean is shrunk as if there were `SHRINK` more average ones.
    """
    centred = projections - total / (sentences + SHRINK)
    scaled: Floats = centred / np.maximum(np.sqrt((centred**2).mean(axis=1, keepdims=True)), 1e-12)
    return scaled


# Hard keys, beside the paper's rule

ALPHA, BETA = 0.5, 1.5  # a text is aligned with so many blocks at least and at most, per sentence
CLAUSE_AGREEMENT = 0.85
"""The share of a block's bits that a sentence is expected to carry, where a text is read by its clauses."""
CLAUSE_BLOCKS = 2.2
"""Blocks that a text may be aligned with, per expected sentence, where it is read by its clauses."""


def local_costs(block_size: int) -> LocalCosts:
    """The costs of the search for marked passages, in proportion to the block."""
    return LocalCosts(0.35, 0.3 * block_size, 0.3 * block_size, 0.375 * block_size)
