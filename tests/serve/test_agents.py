"""Requests of agents: temperature 0, tools, JSON, long prompts; and what an answer says of its own mark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import Running, serving

from alimark import AliMark, Key
from alimark.core._util.json_types import JsonObject
from alimark.serve.pace import Pace
from alimark.testing import StandInEmbedder, StandInLLM

ASK = [{"role": "user", "content": "Is it dark in Paris?"}]
TOOLS = [{"type": "function", "function": {"name": "hour", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "hour", "arguments": "{}"}}
RESULT = [*ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]},
          {"role": "tool", "tool_call_id": "c1", "content": "23"}]  # fmt: skip


class AgentLLM(StandInLLM):
    """A model whose server calls the first tool unless it has an answer, and writes JSON in pieces."""

    context_tokens = 2000

    def __init__(self) -> None:
        super().__init__(ends=0.05)
        self.forwarded: list[JsonObject] = []

    def forward(self, path: str, body: JsonObject) -> JsonObject:
        self.forwarded.append(body)
        calls = body.get("tools") and body["messages"][-1]["role"] == "user"
        message = {
            "role": "assistant",
            "content": None if calls else "Plain prose.",
            "tool_calls": [CALL] * bool(calls),
        }
        return {
            "id": "x",
            "model": "/secret/path",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }

    def forward_stream(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        for piece in ('{"hour"', ": 23}"):
            yield {"id": "x", "model": "/secret/path", "choices": [{"index": 0, "delta": {"content": piece}}]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve"), writer=AgentLLM()) as service:
        yield service


def ask(running: Running, path: str = "chat/completions", role: str = "generate", **body: Any) -> Any:
    with running.client(role) as client:
        return client.post(f"/v1/{path}", json=body)


def content(answer: Any) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_temperature_of_0_gives_the_same_marked_answer_again_and_says_how(running: Running) -> None:
    first, again = (ask(running, messages=ASK, temperature=0, max_tokens=90) for _ in range(2))
    assert content(first) == content(again)
    assert first.json()["alimark"]["marked"]
    assert "with a temperature of 0.7" in first.json()["alimark"]["note"]
    assert content(ask(running, messages=RESULT, temperature=0, max_tokens=90)) != content(first)
    assert content(ask(running, messages=ASK, max_tokens=90)) != content(first)
    assert ask(running, messages=ASK, max_tokens=9).json()["alimark"]["note"] is None


def test_calls_pass_through_and_prose_is_marked(running: Running) -> None:
    called = ask(running, messages=ASK, tools=TOOLS)
    assert called.json()["choices"][0]["message"]["tool_calls"] == [CALL]
    assert (called.json()["alimark"]["marked"], called.headers["x-alimark-marked"]) == (False, "false")
    assert called.json()["model"] == "stand-in"
    assert called.json()["alimark"]["words"] == called.json()["alimark"]["words_marked"] == [0]
    told = ask(running, messages=RESULT, tools=TOOLS, max_tokens=400, seed=1)
    assert told.json()["alimark"]["marked"]
    assert told.json()["alimark"]["found"] == [True]
    forwarded = len(running.service.llm.forwarded)  # type: ignore[attr-defined]
    assert ask(running, messages=ASK, tools=TOOLS, tool_choice="none").json()["alimark"]["marked"]
    assert len(running.service.llm.forwarded) == forwarded, "nobody is asked for a call"  # type: ignore[attr-defined]


def test_json_is_streamed_as_it_is_made(running: Running) -> None:
    body: dict[str, Any] = {"messages": ASK, "response_format": {"type": "json_object"}, "stream": True}
    lines = [line for line in ask(running, **body).text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["choices"][0]["delta"]["content"] for event in events] == ['{"hour"', ": 23}"]
    assert not any(event["alimark"]["marked"] for event in events)
    assert "/secret" not in str(events)


def test_an_operator_may_refuse_what_is_not_marked(tmp_path: Path) -> None:
    with serving(tmp_path, writer=AgentLLM(), unmarkable="refuse") as service:
        assert ask(service, messages=ASK, tools=TOOLS).json()["error"]["code"] == "unmarkable"
        assert ask(service, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=9).status_code == 200


def test_words_are_counted_by_tenant(running: Running) -> None:
    running.service.tokens.create(["generate"], tenant="acme")
    prompt = "Go on."
    answer = ask(running, "completions", prompt=prompt, sentences=4).json()["alimark"]
    metrics = running.service.metrics.text().decode()
    assert answer["words_marked"][0] == answer["words"][0] > 10
    assert 'alimark_words_marked_total{tenant=""}' in metrics


def test_the_p_value_goes_to_those_who_may_detect_and_to_the_record(running: Running) -> None:
    running.tokens["both"] = running.service.tokens.create(["generate", "detect"])[1]
    mark = ask(running, "completions", role="both", prompt="Go on.", sentences=12).json()["alimark"]
    with running.client("both") as client:
        text = ask(running, "completions", role="both", prompt="Go on.", sentences=12, seed=5).json()
        found = client.post("/v1/detect", json={"input": text["choices"][0]["text"]}).json()["results"][0]
    assert text["alimark"]["p_value"] == [found["p_value"]], "as the service's own detector finds it"
    with running.client("admin") as admin:
        [line] = [line for line in admin.get("/v1/records").iter_lines() if mark["record_ids"][0] in line]
    assert json.loads(line)["p_value"] == mark["p_value"][0]


def test_the_sentences_needed_follow_from_strength_and_from_how_well_sentences_fit() -> None:
    key = Key.generate(embedder=StandInEmbedder(), secret=bytes(32))
    mark = AliMark(key, embedder=StandInEmbedder())

    def needed(candidates: int, texts: int = 1) -> int:
        pace = Pace()
        for seed in range(texts):
            pace.note(key, mark.generate("Go on.", StandInLLM(), sentences=4, candidates=candidates, seed=seed))
        return pace.sentences_needed(key, 0.01) or 99

    assert needed(1) > needed(8) > needed(64)
    assert needed(1, texts=8) == 99, "without a choice there is no mark"


def test_a_prompt_that_is_too_long_is_refused_with_the_limit(running: Running) -> None:
    for stream in (False, True):
        refused = ask(running, messages=[{"role": "user", "content": "word " * 1990}], stream=stream)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "has 2000 tokens" in refused.json()["error"]["message"]


def test_what_would_take_too_long_is_refused_at_once_or_ends_in_time(tmp_path: Path) -> None:
    with serving(tmp_path, pause=0.1, timeout=2.0) as service:
        ended = ask(service, messages=ASK, max_tokens=2000)
        assert ended.status_code == 200, ended.text
        assert ended.json()["choices"][0]["finish_reason"] == "length"
        refused = ask(service, "completions", prompt="So.", sentences=90)
        assert refused.status_code == 413
        assert "Ask for at most" in refused.json()["error"]["message"]
