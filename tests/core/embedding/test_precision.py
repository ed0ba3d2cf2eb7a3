"""Variants of an embedder: int8 graphs near to float32 from the same weights, and instructions before each text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alimark import AliMark
from alimark.audit.worker import RememberingEmbedder
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.base import at_precision, precision_of, precisions_of
from alimark.core.embedding.loading import PrefixedEmbedder, load_embedder, split_prefix
from alimark.core.embedding.onnx import OnnxEmbedder
from alimark.core.embedding.onnx_graph import GRAPH_FILE
from alimark.core.keys.key import Key
from alimark.core.models import store
from alimark.errors import AlimarkError, KeyMismatch, ModelError
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, fixed_key, soft_key
from rough_embedder import RoughEmbedder
from tiny_embedders import TEXTS, make_model, write

SENTENCES = [
    "The committee will publish its findings next spring, after two years of hearings.",
    "In 1987 the factory closed, and 1,200 people lost their jobs.",
    "Heat the oil in a large pan, add the onions and cook them until they are soft.",
    "Proteins of this family bind to DNA and regulate the transcription of neighbouring genes.",
    "Free shipping on all orders over $50 within the United States.",
    "He laughed.",
]


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_int8_is_near_to_float32(tmp_path: Path, home: Path, kind: str) -> None:
    embedder = load_embedder(str(make_model(tmp_path / kind, kind)), backend="onnx")
    fast = at_precision(embedder, "int8")
    assert (precision_of(embedder), precision_of(fast), precisions_of(embedder)) == (
        "float32",
        "int8",
        ("float32", "int8"),
    )
    assert (fast.name, fast.fingerprint, fast.dimension) == (embedder.name, embedder.fingerprint, embedder.dimension)
    assert isinstance(fast, OnnxEmbedder)
    assert fast.with_precision("int8") is fast
    assert fast.with_precision("float32") is embedder
    exact, rounded = embedder.embed(TEXTS), fast.embed(TEXTS)
    assert np.linalg.norm(rounded, axis=1) == pytest.approx(1.0, abs=1e-5)
    cosines = (exact * rounded).sum(axis=1)
    assert 0.98 < cosines.min() < cosines.max() < 1 - 1e-7  # rounded, but not by much
    assert len(list((home / "onnx").glob(f"*-int8/{GRAPH_FILE}"))) == 1
    assert len(list((home / "onnx").glob(f"*/{GRAPH_FILE}"))) == 2


@pytest.mark.weights
@pytest.mark.parametrize("name", [entry.name for entry in store.entries().values() if entry.kind == "embedder"])
def test_int8_is_near_to_float32_in_every_embedder_of_the_store(name: str) -> None:
    embedder = load_embedder(name)
    if "int8" not in precisions_of(embedder):
        pytest.skip("offers no int8")
    cosines = (embedder.embed(SENTENCES) * at_precision(embedder, "int8").embed(SENTENCES)).sum(axis=1)
    assert cosines.mean() > 0.98
    assert cosines.min() > 0.95


def test_a_precision_that_is_not_offered() -> None:
    with pytest.raises(ModelError, match="computes in float32 here, not in int8"):
        load_embedder("stand-in", precision="int8")
    with pytest.raises(AlimarkError, match="precision must be auto, float32, "):
        DetectionSettings(precision="half")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="not in int8; use precision auto or float32"):
        AliMark(fixed_key(0), embedder=EMBEDDER).detect("The lamp went out.", precision="int8")


def test_wrapped_embedders_offer_the_precisions_of_the_model() -> None:
    rough = RoughEmbedder()
    prefixed = at_precision(PrefixedEmbedder(rough, "Say:"), "int8")
    assert (precision_of(prefixed), prefixed.name) == ("int8", "stand-in#Say:")
    assert np.array_equal(prefixed.embed(["a"]), at_precision(rough, "int8").embed(["Say: a"]))
    assert precisions_of(PrefixedEmbedder(StandInEmbedder(), "Say:")) == ("float32",)


def test_a_cache_holds_the_vectors_of_each_precision_apart() -> None:
    rough = RoughEmbedder()
    cached = RememberingEmbedder(rough, megabytes=1)
    fast = cached.with_precision("int8")
    texts = ["The lamp went out.", "Nobody saw it."]
    for _ in range(2):
        assert np.array_equal(cached.embed(texts), rough.embed(texts))
        assert np.array_equal(fast.embed(texts), rough.with_precision("int8").embed(texts))
    assert cached.counts == fast.counts == {"asked": 8, "embedded": 4}


def test_a_detection_names_its_precision() -> None:
    mark = AliMark(soft_key(0), embedder=RoughEmbedder())
    text = "The lamp went out. Nobody saw it."
    assert mark.detect(text).precision == mark.detect(text, precision="float32").precision == "float32"
    detection = mark.detect(text, precision="int8")
    assert detection.precision == detection.report()["precision"] == "int8"
    assert detection.raw != mark.detect(text).raw


# An instruction before each text: NAME#INSTRUCTION names an embedder of its own

PREFIX = "the old captain:"
THREE = ["The boat.", "A young doctor in the harbour.", "The old piano was sold."]


def test_the_name_holds_the_instruction(tmp_path: Path) -> None:
    assert split_prefix("all-MiniLM-L6-v2") == ("all-MiniLM-L6-v2", "")
    assert split_prefix("org/model#Represent the sentence: ") == ("org/model", "Represent the sentence:")
    (tmp_path / "a#b").mkdir()
    assert split_prefix(str(tmp_path / "a#b")) == (str(tmp_path / "a#b"), "")  # a folder may have such a name
    with pytest.raises(ModelError, match="instruction"):
        split_prefix("org/model# ")


def test_it_is_put_before_each_text_and_is_part_of_the_identity() -> None:
    plain, prefixed = StandInEmbedder(), load_embedder(f"stand-in#{PREFIX}")
    assert np.array_equal(prefixed.embed(THREE), plain.embed([f"{PREFIX} {text}" for text in THREE]))
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
    expected = SentenceTransformer(str(folder)).encode(THREE, prompt=f"{PREFIX} ", normalize_embeddings=True)
    backends: tuple[Any, ...] = ("auto", "torch")
    for backend in backends:
        embedder = load_embedder(f"{folder}#{PREFIX}", backend=backend)
        assert np.allclose(embedder.embed(THREE), expected, atol=1e-5)
    plain = load_embedder(str(folder), backend="torch").embed([f"{PREFIX} {text}" for text in THREE])
    assert np.allclose(plain, expected, atol=1e-5) == pooled


def test_an_instructor_model_leaves_the_instruction_out_whatever_its_files_say(tmp_path: Path) -> None:
    """As sentence-transformers does for the published models, which it knows by their names on the hub."""
    from sentence_transformers import SentenceTransformer

    folder = make_model(tmp_path / "instructor-large", "bert", max_tokens=48)
    model = SentenceTransformer(str(folder))
    model.set_pooling_include_prompt(False)
    expected = model.encode(THREE, prompt=f"{PREFIX} ", normalize_embeddings=True)
    assert np.allclose(load_embedder(f"{folder}#{PREFIX}").embed(THREE), expected, atol=1e-5)
