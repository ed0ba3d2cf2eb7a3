"""Embedders: the hand-written ONNX graph against torch, and properties that hold for any model."""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_embedders
from alimark.core.embedding import base as embed
from alimark.core.embedding import onnx_graph as _graph
from alimark.core.embedding.base import LoadedEmbedder
from alimark.core.embedding.loading import load_embedder
from alimark.errors import ModelError, TextError
from tiny_embedders import WORDS, make_instructor, make_model, write

TEXTS = [
    "the river ran over the garden",
    "",
    "a",
    "   ",
    "the\0water\0ran",
    "😀 the winter 🎉 said 中文句子",
    "unknownword the",
    "the <pad> story [SEP] ran </s> quickly",
    "many small said " * 100,
    *tiny_embedders.TEXTS,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that a test may change."""
    return make_model(tmp_path / "model", "bert")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-bert", "bert")


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-mpnet", "mpnet")


def onnx(folder: Path) -> LoadedEmbedder:
    embedder = load_embedder(str(folder), backend="onnx")
    assert isinstance(embedder, LoadedEmbedder)
    return embedder


def cached(home: Path, name: str) -> Path:
    (path,) = (home / "onnx").glob(f"*/{name}")
    return path


def gap(left: embed.Vectors, right: embed.Vectors) -> float:
    return float(np.abs(left - right).max())


def spy(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The first argument of every call of `owner.name` from here on."""
    seen: list[Any] = []
    real = getattr(owner, name)

    def call(first: Any, *rest: Any) -> Any:
        seen.append(first)
        return real(first, *rest)

    patch.setattr(owner, name, call)
    return seen


class TestAgreement:
    @pytest.mark.parametrize("kind", ["bert", "mpnet"])
    @pytest.mark.parametrize("pooling", ["mean", "cls"])
    def test_onnx_gives_the_vectors_of_torch(self, tmp_path: Path, kind: str, pooling: str) -> None:
        folder = make_model(tmp_path / "model", kind, pooling)
        ours, theirs = onnx(folder), load_embedder(str(folder), backend="torch")
        vectors = ours.embed(TEXTS)
        assert gap(vectors, theirs.embed(TEXTS)) < 1e-5
        assert (ours.dimension, theirs.dimension) == (32, 32)
        assert ours.fingerprint == theirs.fingerprint
        assert (ours.backend, theirs.backend) == ("onnx", "sentence-transformers")
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert gap(vectors[:1], vectors[9:10]) > 0.01  # the comparison means something

    def test_far_positions_agree(self, tmp_path: Path) -> None:
        """Beyond 128 tokens MPNet's position buckets have run out."""
        folder = make_model(tmp_path / "model", "mpnet", max_tokens=190)
        texts = [" ".join(WORDS * n) for n in range(1, 14)]
        assert gap(onnx(folder).embed(texts), load_embedder(str(folder), backend="torch").embed(texts)) < 1e-5

    def test_position_buckets_are_those_of_the_model(self) -> None:
        torch = pytest.importorskip("torch")
        from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

        distances = np.arange(-600, 601)
        theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances), num_buckets=32)
        assert (_graph.position_buckets(distances, 32) == theirs.numpy()).all()


class TestTexts:
    @pytest.mark.parametrize("kind", ["bert", "mpnet"])
    def test_a_vector_does_not_depend_on_the_batch(self, kind: str, request: pytest.FixtureRequest) -> None:
        embedder = onnx(request.getfixturevalue(kind))
        together = embedder.embed(TEXTS)
        alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
        assert gap(together, alone) < 1e-6
        assert gap(embedder.embed(TEXTS[::-1]), together[::-1]) < 1e-6

    def test_batches_and_windows_of_any_size_keep_the_order(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        embedder = onnx(bert)
        expected = embedder.embed(TEXTS)
        monkeypatch.setattr(embed, "WINDOW_TEXTS", 5)
        monkeypatch.setattr(embed, "BATCH_TOKENS", 1)
        assert gap(embedder.embed(TEXTS), expected) < 1e-6

    @pytest.mark.parametrize(("count", "longest"), [(0, 9), (1, 600), (5000, 3), (300, 60), (100, 600)])
    def test_batches_hold_little_padding(self, count: int, longest: int) -> None:
        lengths = np.random.default_rng(count).integers(0, longest + 1, count).tolist()
        batches = [[lengths[i] for i in batch] for batch in embed.length_batches(lengths)]
        assert sorted(length for batch in batches for length in batch) == sorted(lengths)
        for batch in batches:
            assert len(batch) * max(batch) - sum(batch) <= embed.BATCH_PADDING
            assert len(batch) == 1 or len(batch) * max(batch) <= embed.BATCH_TOKENS

    def test_a_repeated_text_is_embedded_once(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        embedder = onnx(bert)
        batches = spy(monkeypatch, embedder, "_run")
        vectors = embedder.embed(["the river", "a story", "the river", "the river"])
        assert sum(map(len, batches)) == 2
        assert (vectors[[0, 2, 3]] == vectors[0]).all()
        assert gap(vectors[:1], vectors[1:2]) > 0.01

    @pytest.mark.parametrize("backend", ["onnx", "torch"])
    def test_no_texts_and_half_a_surrogate_pair_are_no_reason_to_fail(self, bert: Path, backend: Any) -> None:
        embedder = load_embedder(str(bert), backend=backend)
        assert embedder.embed([]).shape == (0, 32)
        assert np.isfinite(embedder.embed(["the \ud83d river", "\udc00"])).all()

    def test_what_is_not_text_is_refused(self, bert: Path) -> None:
        embedder = onnx(bert)
        with pytest.raises(TextError, match="text 1 is of type int"):
            embedder.embed(["a", 3])  # type: ignore[list-item]
        with pytest.raises(TextError, match="into a list"):
            embedder.embed("the river")

    def test_a_text_without_end_is_not_read_to_its_end(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        embedder = onnx(bert)
        calls = spy(monkeypatch, embedder, "_encode")
        vectors = embedder.embed(["x" * 10_000_000, "many small " * 1_000_000, "many small " * 1000])
        assert (vectors[1] == vectors[2]).all()
        assert max(len(text) for texts in calls for text in texts) == embed.MAX_CHARACTERS

    @pytest.mark.parametrize("backend", ["onnx", "torch"])
    def test_threads_share_an_embedder(self, bert: Path, backend: Any) -> None:
        embedder = load_embedder(str(bert), backend=backend)
        expected = embedder.embed(TEXTS)
        with ThreadPoolExecutor(4) as threads:
            assert max(threads.map(lambda _: gap(embedder.embed(TEXTS), expected), range(20))) < 1e-6


class TestCache:
    @pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
    @pytest.mark.parametrize("kept", [0, 0.5, 0.99])
    def test_a_broken_graph_is_written_again(self, bert: Path, home: Path, name: str, kept: float) -> None:
        expected = onnx(bert).embed(TEXTS)
        path = cached(home, name)
        whole = path.read_bytes()
        path.unlink()  # not in place: the first session may still map the old file
        path.write_bytes(whole[: int(kept * len(whole))])
        assert (onnx(bert).embed(TEXTS) == expected).all()
        assert path.read_bytes() == whole

    def test_a_second_start_writes_nothing_and_needs_neither_onnx_nor_torch(self, bert: Path, home: Path) -> None:
        onnx(bert)
        before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
        code = (
            "import sys; from alimark.core.embedding.loading import load_embedder\n"
            "assert load_embedder(sys.argv[1]).embed(['the river']).shape == (1, 32)\n"
            "print([name for name in ('onnx', 'torch', 'safetensors') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(bert)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
        assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before

    def test_the_weights_are_hashed_once(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = onnx(bert).fingerprint
        with monkeypatch.context() as patch:
            patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
            assert onnx(bert).fingerprint == first
        weights = bert / "model.safetensors"
        os.utime(weights, ns=(1, 1))
        hashed = spy(monkeypatch, hashlib, "file_digest")
        assert onnx(bert).fingerprint == first
        assert [file.name for file in hashed] == [str(weights)]

    def test_other_settings_are_another_graph(self, folder: Path, home: Path) -> None:
        mean = onnx(folder).embed(TEXTS)
        write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": "cls"})
        assert gap(onnx(folder).embed(TEXTS), mean) > 0.01
        assert len(list((home / "onnx").iterdir())) == 2


class TestErrors:
    def test_a_name_that_nothing_bears(self) -> None:
        with pytest.raises(ModelError):
            load_embedder("no-such-model")

    def test_a_folder_that_is_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"modules\.json"):
            load_embedder(str(tmp_path))

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "modules.json"])
    def test_a_damaged_or_missing_file(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
        with pytest.raises(ModelError):
            load_embedder(str(folder))
        (folder / name).unlink()
        with pytest.raises(ModelError, match=name):
            load_embedder(str(folder))

    def test_an_unknown_architecture(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", config | {"hidden_act": "relu"})
        with pytest.raises(ModelError, match=r'variant of bert .* backend="torch"'):
            load_embedder(str(folder), backend="onnx")
        fallback = load_embedder(str(folder))
        assert fallback.backend == "sentence-transformers"
        assert fallback.embed(["the river"]).shape == (1, 32)

    def test_an_unknown_module(self, folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[2]["type"] = "sentence_transformers.models.Dense"
        write(folder / "modules.json", modules)
        with pytest.raises(ModelError, match=r"Transformer \+ Pooling \+ Dense"):
            load_embedder(str(folder), backend="onnx")

    def test_a_model_that_no_graph_can_record_runs_plainly(self, bert: Path) -> None:
        from alimark.core.embedding.cuda_graphs import NotRecordable

        asked = []

        def recorded(rows: list[list[int]]) -> None:
            asked.append(len(rows))
            raise NotRecordable("leaves the GPU")

        embedder = load_embedder(str(bert), backend="torch")
        vectors = embedder.embed(TEXTS)
        embedder._recorded = recorded  # type: ignore[attr-defined]
        assert gap(embedder.embed(TEXTS), vectors) < 1e-6
        assert gap(embedder.embed(TEXTS), vectors) < 1e-6
        assert len(asked) == 1  # and is not tried again

    def test_a_missing_library_is_named(self, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from alimark.errors import MissingExtra

        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(MissingExtra, match=r"alimark\[transformers\]"):
            load_embedder(str(bert), backend="torch")

    def test_a_pickle_is_never_loaded(self, folder: Path) -> None:
        (folder / "2_Normalize" / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(ModelError, match="pickle"):
            load_embedder(str(folder), backend="torch")

    @pytest.mark.parametrize("pickled", [("2_Dense",), ("", "2_Dense")])
    def test_checkpoints_of_all_modules_are_converted(
        self, tmp_path: Path, home: Path, pickled: tuple[str, ...]
    ) -> None:
        plain = load_embedder(str(make_instructor(tmp_path / "plain", ())))
        converted = load_embedder(str(make_instructor(tmp_path / "model", pickled)))
        assert converted.dimension == 24
        assert (converted.embed(TEXTS) == plain.embed(TEXTS)).all()
        assert len(list((home / "converted").iterdir())) == 1
        dense = converted._model.folder / "2_Dense/model.safetensors"  # type: ignore[attr-defined]
        dense.write_bytes(dense.read_bytes()[:-1] + b"\1")
        assert load_embedder(str(tmp_path / "model")).fingerprint != converted.fingerprint

    @pytest.mark.parametrize("path", ["../x", "/tmp", "a/../../x", "..\\x", "C:x"])
    def test_modules_lie_inside_the_model(self, folder: Path, path: str) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        write(folder / "modules.json", [*modules, {**modules[0], "path": path}])
        with pytest.raises(ModelError, match="inside the model"):
            load_embedder(str(folder))

    def test_devices_and_backends(self, bert: Path) -> None:
        with pytest.raises(ModelError, match="runs on the CPU"):
            load_embedder(str(bert), backend="onnx", device="cuda")
        with pytest.raises(ValueError, match="backend must be"):
            load_embedder(str(bert), backend="tensorflow")  # type: ignore[arg-type]


@pytest.mark.weights
class TestMiniLM:
    TEXTS = (
        "The committee will publish its findings next spring.",
        "A report is to appear in the spring, the panel said.",
        "Cats sleep for most of the day.",
        "",
        "😀 中文句子",
        "word " * 1000,
    )

    def test_it_is_the_model_it_says(self) -> None:
        embedder = load_embedder("all-MiniLM-L6-v2")
        assert (embedder.name, embedder.backend, embedder.dimension) == ("all-MiniLM-L6-v2", "onnx", 384)
        assert embedder.languages == {"en"}
        assert embedder.fingerprint.startswith("sha256:53aa51172d142c89")
        vectors = embedder.embed(self.TEXTS)
        assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]

    def test_it_agrees_with_torch(self) -> None:
        pytest.importorskip("sentence_transformers")
        theirs = load_embedder("all-MiniLM-L6-v2", backend="torch")
        assert gap(load_embedder("all-MiniLM-L6-v2").embed(self.TEXTS), theirs.embed(self.TEXTS)) < 1e-5

    def test_the_same_weights_have_one_name(self) -> None:
        from alimark.core.models import store

        assert load_embedder(str(store.resolve("all-MiniLM-L6-v2"))).name == "all-MiniLM-L6-v2"
