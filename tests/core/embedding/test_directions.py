"""The directions of embedders that are shipped with the package."""

from __future__ import annotations

import hashlib

import numpy as np

from alimark.core.frozen import directions
from alimark.core.models import store


def test_what_ships_is_never_changed() -> None:
    """Keys rest on these numbers; new ones are for a new version, under names of their own."""
    with np.load(directions.FILE) as content:
        shipped = {
            name[7:15] + name[71:]: hashlib.sha256(array.tobytes()).hexdigest()[:16] for name, array in content.items()
        }
    assert shipped == SHIPPED


SHIPPED = {
    "53aa5117": "de8fbc8ef0db5fd9",
    "53aa5117/mean": "96a0c7e377f1bdc9",
    "78c0197b": "d14bf1f9c4bffa62",
    "78c0197b/mean": "88d0b034cccc4405",
}


def test_both_embedders_of_the_store_have_noise_aware_directions() -> None:
    for name in ("all-MiniLM-L6-v2", "all-mpnet-base-v2"):
        entry = store.entry(name)
        table = directions.noise_aware(f"sha256:{entry.weights.sha256}")
        assert table is not None
        assert table.rows.shape == (directions.MOST, len(table.mean))
        assert np.isfinite(table.rows).all()
        norms = np.linalg.norm(table.rows, axis=1)
        assert norms.max() > 1.1 * norms.min()  # the scale of each direction is kept
        assert directions.DirectionTable.of(table.rows, table.mean).digest == table.digest
    assert directions.noise_aware("sha256:of another embedder") is None
