"""Fixtures that the tests of several folders share."""

from __future__ import annotations

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
