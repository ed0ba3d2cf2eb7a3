"""Rewriting for many requests at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from stand_ins import EchoLLM

from alimark.core.keys.key import Key
from alimark.core.llm.base import Request
from alimark.core.rewriting.api import RewriteSettings
from alimark.errors import LLMError, TextError
from alimark.serve.writing import Writers
from alimark.testing import StandInEmbedder, StandInLLM
from rewriters import shown_in
from single_text import rewrite
from watched import watched

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32))
SETTINGS = RewriteSettings(closeness=0.5, mean_closeness=0.5)
TEXTS = [
    "The mayor opened the bridge.",
    "A storm broke the wall.",
    "Nobody came to the harbour.",
    "She sold the piano.",
]


def test_each_text_is_rewritten_as_alone() -> None:
    asked: list[str] = []
    go = threading.Event()

    def hold(requests: Sequence[Request]) -> None:
        asked.extend(shown_in(request) for request in requests)
        go.wait(10)

    llm = watched(EchoLLM(), hold)
    writers = Writers(StandInLLM(), lambda: llm, lambda _: EMBEDDER, most=8)
    futures = [writers.rewrite(text, KEY, i, SETTINGS) for i, text in enumerate(TEXTS)]
    nothing = writers.rewrite(" ", KEY, 1, SETTINGS)
    given_up = writers.rewrite("Never mind this.", KEY, 1, SETTINGS)
    assert given_up.cancel()
    go.set()
    rewritten = [future.result(10).text for future in futures]
    with pytest.raises(TextError):
        nothing.result(10)
    assert "Never mind this." not in asked
    assert rewritten == [rewrite(text, KEY, EMBEDDER, EchoLLM(), SETTINGS, seed=i).text for i, text in enumerate(TEXTS)]
    assert writers.under_way == 0
    writers.close()


def test_an_error_of_the_model_is_reported_and_the_next_run_works() -> None:
    faults = [RuntimeError("out of memory")]

    def fail(_: object) -> None:
        if faults:
            raise faults[0]

    llm = watched(EchoLLM(), fail)
    writers = Writers(StandInLLM(), lambda: llm, lambda _: EMBEDDER, most=8)
    with pytest.raises((RuntimeError, LLMError)):
        writers.rewrite(TEXTS[0], KEY, 0, SETTINGS).result(10)
    faults.clear()
    assert writers.rewrite(TEXTS[0], KEY, 0, SETTINGS).result(10).text
    assert writers.under_way == 0
    writers.close()
