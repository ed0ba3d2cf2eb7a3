"""An instruction before each text: NAME#INSTRUCTION names an embedder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alimark.core.embedding.loading import load_embedder, split_prefix
from alimark.core.keys.key import Key
from alimark.errors import KeyMismatch, ModelError
from alimark.testing import StandInEmbedder
from tiny_embedders import make_model, write

PREFIX = "the old captain:"
TEXTS = ["The boat.", "A young doctor in the harbour.", "The old piano was sold."]


def test_the_name_holds_the_instruction(tmp_path: Path) -> None:
    assert split_prefix("all-MiniLM-L6-v2") == ("all-MiniLM-L6-v2", "")
    assert split_prefix("org/model#Represent the sentence: ") == ("org/model", "Represent the sentence:")
    (tmp_path / "a#b").mkdir()
    assert split_prefix(str(tmp_path / "a#b")) == (str(tmp_path / "a#b"), "")  # a folder may have such a name
    with pytest.raises(ModelError, match="instruction"):
        split_prefix("org/model# ")


def test_it_is_put_before_each_text_and_is_part_of_the_identity() -> None:
    plain, prefixed = StandInEmbedder(), load_embedder(f"stand-in#{PREFIX}")
    assert np.array_equal(prefixed.embed(TEXTS), plain.embed([f"{PREFIX} {text}" for text in TEXTS]))
    assert prefixed.name == f"stand-in#{PREFIX}"
    assert (prefixed.dimension, prefixed.languages) == (plain.dimension, plain.languages)
    others = [load_embedder(name) for name in ("stand-in", "stand-in#another one:")]
    assert len({prefixed.fingerprint, *(other.fingerprint for other in others)}) == 3
    key = Key.generate(scheme="semstamp", embedder=prefixed.name)
    assert (key.embedder, key.fingerprint) == (prefixed.name, prefixed.fingerprint)
    key.check(prefixed)
    with pytest.raises(KeyMismatch, match="use the embedder that the key names"):
        key.check(plain)


@pytest.mark.parametrize("pooled", [True, False])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooled: bool) -> None:
    """INSTRUCTOR leaves the tokens of the instruction out of the mean; most other models do not."""
    from sentence_transformers import SentenceTransformer

    folder = make_model(tmp_path / "model", "bert", max_tokens=48)
    config = json.loads((folder / "1_Pooling" / "config.json").read_text())
    write(folder / "1_Pooling" / "config.json", config | {"include_prompt": pooled})
    expected = SentenceTransformer(str(folder)).encode(TEXTS, prompt=f"{PREFIX} ", normalize_embeddings=True)
    backends: tuple[Any, ...] = ("auto", "torch")
    for backend in backends:
        embedder = load_embedder(f"{folder}#{PREFIX}", backend=backend)
        assert np.allclose(embedder.embed(TEXTS), expected, atol=1e-5)
    plain = load_embedder(str(folder), backend="torch").embed([f"{PREFIX} {text}" for text in TEXTS])
    assert np.allclose(plain, expected, atol=1e-5) == pooled


def test_an_instructor_model_leaves_the_instruction_out_whatever_its_files_say(tmp_path: Path) -> None:
    """As sentence-transformers does for the published models, which it knows by their names on the hub."""
    from sentence_transformers import SentenceTransformer

    folder = make_model(tmp_path / "instructor-large", "bert", max_tokens=48)
    model = SentenceTransformer(str(folder))
    model.set_pooling_include_prompt(False)
    expected = model.encode(TEXTS, prompt=f"{PREFIX} ", normalize_embeddings=True)
    assert np.allclose(load_embedder(f"{folder}#{PREFIX}").embed(TEXTS), expected, atol=1e-5)
