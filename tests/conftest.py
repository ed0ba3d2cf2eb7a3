"""Fixtures that the tests of several folders share."""

import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import alimark.core.embedding.loading
import alimark.core.frozen.text.splitting
import alimark.core.llm
import alimark.core.parameters
import alimark.lab.attacks
from alimark.testing import StandInEmbedder, StandInLLM
from commands import command
from fake_server import fake, waits

__all__ = ["command", "fake", "waits"]  # fixtures, used by name

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it runs in the background so; tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with long tests first, so that at the end of a run no process waits for another that has just begun one."""
    long = {item.path for item in items for name in ("slow", "weights", "ray") if item.get_closest_marker(name)}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def fixed_secrets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and tokens that a test makes are the same in every run: under some keys a short text is not found."""
    monkeypatch.setattr("secrets.token_bytes", random.Random(request.node.nodeid).randbytes)


@pytest.fixture
def stand_in_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands load the stand-in model and the stand-in embedder, whatever name they are given."""
    monkeypatch.setattr(alimark.core.embedding.loading, "load_embedder", lambda *_, **__: StandInEmbedder())
    monkeypatch.setattr(alimark.core.llm, "load_llm", lambda *_, **__: StandInLLM())


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Runs PyTorch on one thread: on several, tiny models spend most of the time waiting where other processes are busy."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package with entry points, as pip would, for one test: `install(package, source, group={name: target})`."""
    for registry in (
        alimark.lab.attacks.ATTACKS, alimark.core.embedding.loading.EMBEDDERS, alimark.core.llm.ENGINES,
        alimark.core.parameters.SCHEMES, alimark.core.frozen.text.splitting.SPLITTERS,
    ):  # fmt: skip
        monkeypatch.setattr(registry, "_objects", dict(registry._objects))
        monkeypatch.setattr(registry, "_entry_points", None)  # so that the value read before comes back after the test
        monkeypatch.delattr(registry, "_entry_points")
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(package: str, source: str, **groups: dict[str, str]) -> None:
        (tmp_path / f"{package}.py").write_text(source)
        information = tmp_path / f"{package}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = []
        for group, entries in groups.items():
            lines += [f"[alimark.{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (information / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install
