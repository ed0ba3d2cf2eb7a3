"""Projects embeddings on the secret vectors of a key, and says in which direction its blocks lie.

Frozen: another sign, mean or order of operations would give marked texts other scores.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Packed
from alimark.core.frozen.arithmetic import pack_bits
from alimark.core.frozen.derivation import Derivation, many_vectors
from alimark.core.frozen.directions import mean
from alimark.errors import ModelError


def projected(embeddings: NDArray[np.float32], key: Derivation) -> Floats:
    """The projections of each embedding on the secret vectors, (n, M)."""
    return np.asarray(_centred(embeddings, key) @ key.vectors(embeddings.shape[1]).T)


def projected_on_many(embeddings: NDArray[np.float32], keys: Sequence[Derivation]) -> Floats:
    """The projections under each of many keys of one block size, span and centre, (keys, n, M)."""
    vectors = many_vectors(keys, embeddings.shape[1])
    projections: Floats = np.einsum("ud,kmd->kum", _centred(embeddings, keys[0]), vectors, optimize=True)
    return projections


def _centred(embeddings: NDArray[np.float32], key: Derivation) -> Floats:
    wide = embeddings.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ModelError(
            "the embedder returned vectors with infinite or NaN values; its weights may be damaged, so download them again"
        )
    centre: NDArray[np.floating] | None = key.parameters.centre
    if centre is None and key.parameters.soft:
        centre = mean(key.fingerprint) if key.table is None else key.table.mean
    return wide if centre is None else wide - centre


def block_directions(blocks: Packed, block_size: int) -> Floats:
    """The unit direction of each block, one per row: +1 for a bit 1 and -1 for a bit 0, scaled."""
    m = np.uint64(block_size)
    shifts = np.arange(m, dtype=np.uint64)[::-1]
    signs = (blocks[:, None] >> shifts & np.uint64(1)).astype(np.float64) * 2 - 1
    directions: Floats = signs / np.sqrt(float(m))
    return directions


def to_bits(projections: NDArray[np.float64]) -> Packed:
    """The packed bits of each row of projections: 1 for a projection of at least zero."""
    flat = (projections >= 0).reshape(-1, projections.shape[-1])
    return pack_bits(flat.astype(np.uint8)).reshape(projections.shape[:-1])
