"""The encoder for GPUs, on the CPU: the vectors of the ONNX graph, in batches of a few shapes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_embedders
from alimark.core.embedding.cuda_graphs import RecordedEncoder, plan_batches
from alimark.core.embedding.loading import load_embedder, load_model_files
from alimark.core.embedding.onnx_graph import read_recipe
from alimark.core.embedding.sentence_transformers import TorchEmbedder
from alimark.core.embedding.torch_encoder import TorchEncoder
from tiny_embedders import make_model

TEXTS = ["", "a", "the <pad> story [SEP] ran </s> quickly", "many small said " * 100, *tiny_embedders.TEXTS]
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_it_gives_the_vectors_of_the_graph(tmp_path: Path, kind: str, pooling: str) -> None:
    folder = str(make_model(tmp_path / kind, kind, pooling))
    embedder = load_embedder(folder, backend="torch")
    assert isinstance(embedder, TorchEmbedder)
    assert "tf32" not in embedder.precisions
    embedder._recorded = embedder._record(CPU)  # what a GPU runs, without the graphs
    exact = load_embedder(folder, backend="onnx").embed(TEXTS)
    assert np.abs(embedder.embed(TEXTS) - exact).max() < 1e-5
    assert list(embedder.precisions) == ["float32", "tf32", "bfloat16"]
    assert embedder.with_precision("float32") is embedder
    other = embedder.with_precision("tf32")  # which is float32 on a CPU
    assert (other.precision, embedder.precision, other.with_precision("float32")) == ("tf32", "float32", embedder)
    assert np.abs(other.embed(TEXTS) - exact).max() < 1e-5
    assert not torch.backends.cuda.matmul.allow_tf32


def test_windows_keep_the_order(tmp_path: Path) -> None:
    embedder = load_embedder(str(make_model(tmp_path / "bert", "bert")), backend="torch")
    vectors = embedder.embed(TEXTS)
    embedder._window = 4  # type: ignore[attr-defined]
    assert np.abs(embedder.embed(TEXTS) - vectors).max() < 1e-5


def test_padding_changes_nothing(tmp_path: Path) -> None:
    model = load_model_files(str(make_model(tmp_path / "mpnet", "mpnet")))
    recipe = read_recipe(model.folder)
    encoder = RecordedEncoder(TorchEncoder(recipe, model.weights, CPU), CPU, recipe.padding, recipe.max_tokens)
    rows = [[0, 5, 6, 2], [0, 7, 2], [0, 5, 6, 7, 8, 9, 10, 11, 12, 2]]
    together = encoder(rows)
    for row, vector in zip(rows, together, strict=True):
        assert float((encoder([row])[0] - vector).abs().max()) < 1e-5


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 512), max_size=1200))
def test_every_text_is_in_one_batch_that_it_fits(lengths: list[int]) -> None:
    seen: list[int] = []
    for shape, numbers in plan_batches(lengths, 512):
        assert 0 < len(numbers) <= shape.texts
        assert max(lengths[i] for i in numbers) <= shape.tokens
        assert shape.texts * shape.tokens <= 32768
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_full_batches_hold_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(5, 80, 20_000).tolist()
    padded = sum(shape.texts * shape.tokens for shape, _ in plan_batches(lengths, 512))
    assert padded < 1.2 * sum(lengths)
