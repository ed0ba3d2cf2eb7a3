"""Files of the manifest from a stub of the model hub: taken where they are the pinned ones, else from the package."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from model_fakes import SINGLE, Shelf, files_in

from alimark.core.models import fetching, store
from alimark.errors import ModelError


@pytest.fixture
def stub(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model hub on this machine: the files of one repository, and what was asked for."""
    files: dict[str, bytes] = dict(SINGLE)
    state = SimpleNamespace(files=files, asked=[])

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            state.asked.append(f"{self.command} {self.path}")
            content = state.files.get(self.path.partition("/resolve/main/")[2])
            if self.path.startswith("/api/models/org/"):
                tree = [{"type": "file", "path": name, "size": 2, "oid": "0" * 40} for name in state.files]
                content = json.dumps(tree if "/tree/" in self.path else {"id": "org/model"}).encode()
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            content = content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(fetching, "_unreachable", set())
    yield state
    server.shutdown()
    server.server_close()


def test_the_pinned_files_are_taken_from_the_hub(stub: Any, downloads: list[str]) -> None:
    steps: list[tuple[int, int]] = []
    folder = store.fetch("single", lambda done, total: steps.append((done, total)))
    assert files_in(folder) == SINGLE
    assert downloads == []
    total = sum(len(content) for content in SINGLE.values())
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json"])
def test_other_bytes_are_left_there_and_the_package_is_taken(stub: Any, changed: str, downloads: list[str]) -> None:
    stub.files[changed] = stub.files[changed][::-1]
    assert files_in(store.fetch("single")) == SINGLE
    assert len(downloads) == 1
    weights = [line for line in stub.asked if line.startswith("GET") and "safetensors" in line]
    assert bool(weights) == (changed == "config.json")


def test_a_missing_file_falls_back_to_the_package(stub: Any, downloads: list[str]) -> None:
    del stub.files["config.json"]
    store.fetch("single")
    assert len(downloads) == 1


def test_a_silent_hub_is_asked_once(stub: Any, downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    store.fetch("single")
    assert fetching._unreachable == {"http://127.0.0.1:9"}
    monkeypatch.setattr(fetching, "_download", lambda *_: pytest.fail("the hub was asked again"))
    store.fetch("single", force=True)
    assert len(downloads) == 2


def test_offline_no_hub_is_asked(stub: Any, downloads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    store.fetch("single")
    assert stub.asked == []
    assert len(downloads) == 1


@pytest.mark.parametrize(
    ("files", "model", "found"),
    [
        (["config.json", "model.safetensors"], "org/model", True),
        (["config.json", "0_Transformer/pytorch_model.bin"], "org/model", True),
        (["model-00001-of-00002.safetensors"], "org/model", True),
        (["config.json", "flax_model.msgpack", "onnx/model.onnx", "adapter_model.safetensors"], "org/model", False),
        (["q4.gguf"], "org/model/q4.gguf", True),
        (["q4.gguf"], "org/model/q8.gguf", False),
        (["q4.gguf"], "org/model", False),
    ],
)
def test_a_check_looks_for_weights_on_the_hub(
    stub: Any, files: list[str], model: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", os.environ["HF_ENDPOINT"])  # read once, on import
    stub.files.clear()
    stub.files |= dict.fromkeys(files, b"{}")
    if found:
        store.check(model)
    else:
        with pytest.raises(ModelError, match="with weights"):
            store.check(model)
    assert not any(file in line for line in stub.asked for file in files)
