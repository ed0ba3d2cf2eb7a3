"""Folders and hub repositories whose weights are checkpoints are converted once, completely or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from model_fakes import FakeHub, MakesFolder

from alimark.core.models import converting, store
from alimark.errors import ModelError

torch = pytest.importorskip("torch")

STATE = {"a": torch.arange(3.0), "b": torch.ones(2, 2).half()}


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "sub").mkdir(parents=True)
    torch.save(STATE, made / "pytorch_model.bin")
    torch.save(STATE, made / "training_args.bin")
    for name in ("config.json", "vocab.json", "source.spm", "spiece.model", "merges.txt"):
        (made / name).write_text(name)
    (made / "modeling.py").write_text("1/0")
    return made


def shard(folder: Path) -> None:
    (folder / "pytorch_model.bin").unlink(missing_ok=True)
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name, file in zip(STATE, names, strict=True):
        torch.save({name: STATE[name]}, folder / file)
    index = {"metadata": {"total_size": 20}, "weight_map": dict(zip(STATE, names, strict=True))}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def loaded(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(path)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_with_safetensors_is_taken_as_it_is(folder: Path, home: Path) -> None:
    (folder / "model.safetensors").touch()
    assert store.resolve_weights(folder) == store.resolve_weights(str(folder)) == folder
    assert not home.exists()


def test_a_checkpoint_is_converted_with_what_lies_beside(folder: Path, home: Path) -> None:
    made = store.resolve_weights(folder)
    assert made.parent == home / "converted"
    assert names(made) == ["config.json", "merges.txt", "model.safetensors", "source.spm", "spiece.model", "vocab.json"]
    found = loaded(made / "model.safetensors")
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)
    assert list((home / "staging").iterdir()) == []


def test_it_is_done_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.resolve_weights(folder)
    monkeypatch.setattr(converting, "convert", lambda *_: pytest.fail("converted again"))
    monkeypatch.chdir(folder.parent)
    assert store.resolve_weights("model") == made


@pytest.mark.parametrize("changed", ["pytorch_model.bin", "config.json"])
def test_another_content_is_another_copy(folder: Path, changed: str) -> None:
    before = store.resolve_weights(folder)
    state = (folder / changed).stat()
    os.utime(folder / changed, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000_000))
    assert store.resolve_weights(folder) != before


def test_shards(folder: Path) -> None:
    shard(folder)
    made = store.resolve_weights(folder)
    index = json.loads((made / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name, file in index["weight_map"].items():
        assert torch.equal(loaded(made / file)[name], STATE[name])
    assert "pytorch_model.bin.index.json" not in names(made)


def test_a_whole_checkpoint_comes_before_shards(folder: Path) -> None:
    shard(folder)
    torch.save(STATE, folder / "pytorch_model.bin")
    made = store.resolve_weights(folder)
    assert [name for name in names(made) if "model" in name] == ["model.safetensors", "spiece.model"]


@pytest.mark.parametrize(
    "index",
    [
        "no json",
        "[]",
        "{}",
        '{"weight_map": 5}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": {"a": "../pytorch_model.bin"}}',
        '{"weight_map": {"a": "pytorch_model/../../x.bin"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": "pytorch_model-9.bin"}}',
        '{"weight_map": {}}',
    ],
)
def test_an_index_that_leads_nowhere(folder: Path, index: str) -> None:
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index|neither safetensors"):
        store.resolve_weights(folder)


def test_what_has_no_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="neither safetensors"):
        store.resolve_weights(folder)
    with pytest.raises(ModelError, match="not a folder"):
        store.resolve_weights(folder / "config.json")
    with pytest.raises(ModelError, match="known names"):
        store.resolve_weights(tmp_path / "absent")


def test_a_checkpoint_that_runs_code_leaves_nothing(folder: Path, home: Path) -> None:
    torch.save({"a": MakesFolder()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="mkdir"):
        store.resolve_weights(folder)
    assert not MakesFolder.folder().exists()
    assert not (home / "converted").exists()
    assert list((home / "staging").iterdir()) == []


def test_a_home_that_cannot_be_written(folder: Path, home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(ModelError, match="set ALIMARK_HOME"):
        store.resolve_weights(folder)


def test_the_hub_is_asked_for_checkpoints_where_it_has_nothing_else(folder: Path, tmp_path: Path, hub: FakeHub) -> None:
    without = tmp_path / "without"
    without.mkdir()
    hub.answer = lambda patterns: folder if "pytorch_model*.bin" in patterns else without
    assert (store.resolve_weights("org/model") / "model.safetensors").is_file()
    assert len(hub.asked) == 2
    assert "*.spm" in hub.asked[0]
    (without / "model.safetensors").touch()
    assert store.resolve_weights("org/model") == without
    assert len(hub.asked) == 3
    assert [pattern for pattern in hub.asked[2] if pattern.endswith("bin")] == []
