"""Measures how well a candidate agrees with a block of a key. What a projection is lies in `core/frozen/projecting.py`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.frozen.directions import DirectionTable, noise_aware
from alimark.core.frozen.projecting import block_directions, projected
from alimark.core.keys.key import Key

_REWRITE_NOISE = 0.5
"""The mean square that a rewrite adds to a projection, where 1 is that of ordinary sentences (docs/soft.md, "Selection").

Detection divides the projections of a sentence by their size, to which a rewrite adds. So selection prefers a candidate that
points along its block's direction over one that is merely far out, as far as the noise leaves a difference."""


def project(embeddings: NDArray[np.float32], key: Key) -> Floats:
    """The projections of each embedding on the secret vectors, (n, M)."""
    return projected(embeddings, key.derivation)


def targets(key: Key, count: int, start: int = 0) -> Floats:
    """The unit directions of `count` blocks from number `start` on, one per row."""
    return block_directions(key.blocks(start + count)[start:], key.block_size)


def in_table(key: Key, target: Floats) -> Floats:
    """The direction of a block, a row of `targets`, in the coordinates of the table of the key's embedder.

    Hard keys over the whole space have no table; what lies outside the table of soft keys is then left out.
    """
    table = table_of(key)
    assert table is not None
    direction = target @ key.vectors(table.rows.shape[1])
    return np.asarray(np.linalg.lstsq(table.rows.T, direction, rcond=None)[0], np.float64)


def table_of(key: Key) -> DirectionTable | None:
    """The table of directions that a key's vectors are made of, or that ships for its embedder; None where there is none."""
    return key.derivation.table or noise_aware(key.fingerprint)


class Carried(NamedTuple):
    """How well a unit agrees with a block."""

    bits: int
    worth: float
    """The value that selection compares: the bits that agree, or for soft keys the projection on the block's direction,
    divided by the size that the unit's projections have after a rewrite."""


def carried(projections: Floats, target: Floats, key: Key) -> list[Carried]:
    """How well each unit, a row of projections, agrees with the block whose direction is `target`."""
    bits = ((projections >= 0) == (target > 0)).sum(axis=1)
    values = projections @ target / _sizes(projections) if key.soft else bits
    return list(map(Carried, bits.tolist(), values.tolist()))


def worths(projections: Floats, targets: Floats, key: Key) -> Floats:
    """The worth of each unit, a row of projections, for each of many blocks, a row of `targets`: (units, blocks)."""
    if key.soft:
        return projections @ targets.T / _sizes(projections)[:, None]
    agreeing: Floats = np.where(projections >= 0, 0.5, -0.5) @ np.sign(targets).T + key.block_size / 2
    return agreeing


def _sizes(projections: Floats) -> Floats:
    """What the projection of each unit on a block's direction is divided by."""
    sizes: Floats = np.sqrt((projections**2).mean(axis=1) + _REWRITE_NOISE)
    return sizes
