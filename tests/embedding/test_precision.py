"""Precisions of embedders: int8 graphs are near to float32, are written from the same weights, and nothing is mixed up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from alimark import AliMark
from alimark.detection.settings import DetectionSettings
from alimark.embedding.loading import load_embedder
from alimark.embedding.onnx import OnnxEmbedder
from alimark.embedding.onnx_graph import GRAPH_FILE
from alimark.embedding.precision import at_precision, precision_of, precisions_of
from alimark.embedding.prefix import PrefixedEmbedder
from alimark.errors import AlimarkError, ModelError
from alimark.scale.cache import RememberingEmbedder
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, fixed_key, soft_key
from rough_embedder import RoughEmbedder
from tiny_embedders import WORDS, make_model

TEXTS = [" ".join(WORDS[i % 7 : i % 7 + n]) for i, n in enumerate(range(1, 18))]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALIMARK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


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


def test_a_broken_int8_graph_is_written_again(tmp_path: Path, home: Path) -> None:
    model = str(make_model(tmp_path / "bert", "bert"))
    vectors = load_embedder(model, precision="int8").embed(TEXTS)
    (graph,) = (home / "onnx").glob(f"*-int8/{GRAPH_FILE}")
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    assert np.array_equal(load_embedder(model, precision="int8").embed(TEXTS), vectors)
    assert graph.read_bytes() == whole


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
