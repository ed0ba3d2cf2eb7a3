"""The service in front of another OpenAI-compatible server, which writes unmarked text and may fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services import Running, serving

from alimark.core.llm.openai import OpenAI
from fake_server import Fake, completions


@pytest.fixture
def running(fake: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    upstream = OpenAI(fake.url, "m", dialect="openai", backoff=0.0, retries=0)
    with serving(tmp_path_factory.mktemp("serve"), writer=upstream, candidates=16) as service:
        yield service


def test_the_text_of_another_server_is_marked(fake: Fake, running: Running) -> None:
    fake.answer = completions
    with running.client("generate") as client, running.client("detect") as detector:
        completion = client.post("/v1/completions", json={"prompt": "So.", "seed": 1}).json()
        text = completion["choices"][0]["text"]
        assert detector.post("/v1/detect", json={"input": text}).json()["results"][0]["verdict"] == "found"
        assert sum(seen.body.get("n", 1) for seen in fake.seen) >= 12 * 8, "candidates were asked for"
        turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}]
        answer = client.post("/v1/chat/completions", json={"messages": turns, "sentences": 1}).json()
        assert answer["choices"][0]["message"]["content"]
        assert [turn["role"] for turn in fake.seen[-1].body["messages"]][:2] == ["system", "user"]
