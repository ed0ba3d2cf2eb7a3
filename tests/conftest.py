"""Fixtures that the tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import alimark.embedding.loading
import alimark.llm
from alimark.testing import StandInEmbedder, StandInLLM
from commands import command

__all__ = ["command"]  # a fixture, used by name


@pytest.fixture
def stand_in_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands load the stand-in model and the stand-in embedder, whatever name they are given."""
    monkeypatch.setattr(alimark.embedding.loading, "load_embedder", lambda *_, **__: StandInEmbedder())
    monkeypatch.setattr(alimark.llm, "load_llm", lambda *_, **__: StandInLLM())


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Runs PyTorch on one thread: on several, tiny models spend most of the time waiting where other processes are busy."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
