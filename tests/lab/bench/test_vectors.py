"""Embeddings kept on disk: computed once, complete rows only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from alimark.lab.bench.workspace import KeptVectors
from alimark.testing import StandInEmbedder
from watched import watched


def test_a_text_is_embedded_once(tmp_path: Path) -> None:
    asked: list[str] = []
    embedder = watched(StandInEmbedder(), asked.extend, "embed")
    with KeptVectors(embedder, tmp_path) as kept:
        first = kept.embed(["One.", "Two.", "One."])
        again = kept.embed(["Two.", "Three."])
    assert asked == ["One.", "Two.", "Three."]
    np.testing.assert_array_equal(first, StandInEmbedder().embed(["One.", "Two.", "One."]))
    np.testing.assert_array_equal(again[0], first[1])
    with KeptVectors(embedder, tmp_path) as later:
        np.testing.assert_array_equal(later.embed(["One.", "Three."]), [first[0], again[1]])
    assert len(asked) == 3


def test_what_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    with KeptVectors(StandInEmbedder(), tmp_path) as kept:
        kept.embed(["One.", "Two."])
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    asked: list[str] = []
    embedder = watched(StandInEmbedder(), asked.extend, "embed")
    with KeptVectors(embedder, tmp_path) as kept:
        vectors = kept.embed(["One.", "Two."])
    assert asked == ["Two."]
    np.testing.assert_array_equal(vectors, StandInEmbedder().embed(["One.", "Two."]))
    with KeptVectors(embedder, tmp_path) as kept:
        np.testing.assert_array_equal(kept.embed(["Two."])[0], vectors[1])
    assert asked == ["Two."]
