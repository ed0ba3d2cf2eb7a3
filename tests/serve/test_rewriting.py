"""Rewriting for many requests at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from stand_ins import EchoLLM

from alimark.core.keys.key import Key
from alimark.core.llm.base import Draw, Sampling, StopCondition
from alimark.core.rewriting.api import RewriteSettings
from alimark.errors import LLMError, TextError
from alimark.serve.writing import Writers
from alimark.testing import StandInEmbedder, StandInLLM
from single_text import rewrite

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32))
SETTINGS = RewriteSettings(closeness=0.5, mean_closeness=0.5)
TEXTS = [
    "The mayor opened the bridge.",
    "A storm broke the wall.",
    "Nobody came to the harbour.",
    "She sold the piano.",
]


class Held(EchoLLM):
    """A chat model that waits in each call until `go` is set, and keeps the sentences that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self.go = threading.Event()

    def draw(self, requests: Any, sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        self.asked |= {request.messages[-1].content.rpartition("\n\n")[2] for request in requests}
        self.go.wait(10)
        return super().draw(requests, sampling, over)


def test_each_text_is_rewritten_as_alone() -> None:
    llm = Held()
    writers = Writers(StandInLLM(), lambda: llm, lambda _: EMBEDDER, most=8)
    futures = [writers.rewrite(text, KEY, i, SETTINGS) for i, text in enumerate(TEXTS)]
    nothing = writers.rewrite(" ", KEY, 1, SETTINGS)
    given_up = writers.rewrite("Never mind this.", KEY, 1, SETTINGS)
    assert given_up.cancel()
    llm.go.set()
    rewritten = [future.result(10).text for future in futures]
    with pytest.raises(TextError):
        nothing.result(10)
    assert "Never mind this." not in llm.asked
    assert rewritten == [rewrite(text, KEY, EMBEDDER, EchoLLM(), SETTINGS, seed=i).text for i, text in enumerate(TEXTS)]
    assert writers.under_way == 0
    writers.close()


def test_an_error_of_the_model_is_reported_and_the_next_run_works() -> None:
    class Failing(EchoLLM):
        fails = True

        def draw(self, requests: Any, sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
            if self.fails:
                raise RuntimeError("out of memory")
            return super().draw(requests, sampling, over)

    llm = Failing()
    writers = Writers(StandInLLM(), lambda: llm, lambda _: EMBEDDER, most=8)
    with pytest.raises((RuntimeError, LLMError)):
        writers.rewrite(TEXTS[0], KEY, 0, SETTINGS).result(10)
    llm.fails = False
    assert writers.rewrite(TEXTS[0], KEY, 0, SETTINGS).result(10).text
    assert writers.under_way == 0
    writers.close()
