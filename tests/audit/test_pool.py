"""The pool of workers on Ray: how long it waits for a worker. Ray itself is imitated, with a clock that can be set."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpora import plain_texts, rows, write

from alimark.audit import pool
from alimark.errors import AlimarkError


class Ray:
    """One actor, which is placed and ready after so many seconds."""

    def __init__(self, placed: float, ready: float) -> None:
        self.after, self.now = {"placed": placed, "ready": ready}, 0.0
        self.exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayActorError=ZeroDivisionError)

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, *_: object) -> Any:
        calls = {name: SimpleNamespace(remote=lambda name=name: name) for name in self.after}
        work = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda job: iter([])))
        actor = SimpleNamespace(work=work, **calls)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor))

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [ref for ref in refs if self.now >= self.after.get(ref, 0.0)] if all(map(_named, refs)) else refs
        self.now += 0.0 if ready else timeout
        return ready[:num_returns], []

    def get(self, ref: Any) -> str:
        return metadata.version("alimark")

    def kill(self, actor: object) -> None:
        pass


def _named(ref: object) -> bool:
    return isinstance(ref, str)


def started(monkeypatch: pytest.MonkeyPatch, placed: float, ready: float) -> list[Any]:
    ray = Ray(placed, ready)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: ray.now))
    workers: pool.RayPool[str] = pool.RayPool([lambda **_: None], pool.Cluster(workers=1))
    workers.give("job")
    return list(workers.run())


def test_a_worker_that_loads_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [job for job, _ in started(monkeypatch, placed=1, ready=300)] == ["job"]


def test_a_worker_that_finds_no_place_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AlimarkError, match="no free resources"):
        started(monkeypatch, placed=300, ready=301)


def test_what_a_worker_loads_does_not_count_against_its_first_document(tmp_path: Path) -> None:
    """A cold worker on a busy machine takes long to compile its kernels; the document that came first is not to blame."""
    pytest.importorskip("pyarrow")
    source = write(tmp_path / "docs.jsonl", plain_texts(3))
    words: list[str | Path] = [sys.executable, Path(__file__).with_name("slow_start.py"), source, tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row["failed"] for row in rows(tmp_path / "out")] == [False] * 3
