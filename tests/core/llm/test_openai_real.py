"""The HTTP adapter against a real llama.cpp server."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx")

from stories import draw, never_over

from alimark.core.llm import _dialects, load_llm
from alimark.core.llm.base import Message, Request, Sampling
from alimark.core.llm.openai import OpenAI
from alimark.errors import ContextFull, LLMError
from fake_server import KEY


@pytest.mark.weights
class TestRealServer:
    def test_it_is_recognised(self, server: str) -> None:
        llm: Any = load_llm(f"openai:{server}")
        with llm:
            assert isinstance(llm._dialect, _dialects.LlamaCppServer)
            assert llm._dialect._context == 512
            assert llm.name.endswith(".gguf")

    def test_a_trusted_one_obeys_a_bias(self, server: str) -> None:
        with OpenAI(server, trusted=True) as llm:
            [token] = llm.encode(" river")
            bias = np.zeros(token + 1, np.float32)
            bias[token] = 30.0
            [[one]] = llm.draw([Request("The old map was", 1, 1, bias=bias)], Sampling(max_tokens=6), never_over)
        assert " river river" in one.text

    def test_a_wrong_key(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALIMARK_API_KEY", KEY)
        with pytest.raises(LLMError, match=r"401\); set ALIMARK_API_KEY") as caught:
            load_llm(f"openai:{server}")
        assert KEY not in str(caught.value)

    def test_more_draws_than_slots(self, server: str) -> None:
        with OpenAI(server) as llm:
            draws = draw(llm, 9, Sampling(max_tokens=4))
            assert len({one.text for one in draws}) > 4
            assert 1 < llm._per_request <= 4

    def test_a_context_nearly_full(self, served: Any) -> None:
        with pytest.raises(ContextFull):
            served.draw([Request("word " * 400, 1, 1)], Sampling(max_tokens=200), never_over)

    def test_a_whole_answer(self, served: Any) -> None:
        request = Request("", 1, 1, messages=(Message("user", "Write four short sentences about dogs."),))
        [[one]] = served.draw([request], Sampling(max_tokens=300, may_end=True), never_over)
        assert one.ended == "model"
        assert len(re.findall(r"[.!?](?:\s|$)", one.text)) >= 3

    def test_a_chat_in_words(self, server: str) -> None:
        for dialect in ("openai", "llama.cpp"):
            with OpenAI(server, dialect=dialect, api="chat", model="m") as llm:
                draws = draw(llm, 4, Sampling(max_tokens=30), context="The council met to talk about the library.")
                assert any(one.text for one in draws)
                assert all(one.text[:1] in {"", " "} for one in draws)
                assert "a text is continued on request, in words" in llm.limits
