"""Soft keys in the service: several runs, texts in pieces, and payloads."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from services import Running, serving

from alimark import AliMark, Key
from fixed_texts import EMBEDDER


def test_texts_under_runs_are_written_streamed_and_found(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(7, 39)), run=[1, 2, 4], offsets=6)
    with serving(tmp_path) as running:
        running.service.ring.add(key)
        body = {"prompt": "So.", "seed": 4}
        with running.client("generate") as writer:
            plain = writer.post("/v1/completions", json=body).json()
            streamed = writer.post("/v1/completions", json={**body, "stream": True}).text
        assert plain["alimark"]["key_id"] == key.id
        text = plain["choices"][0]["text"]
        events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == text
        with running.client("detect") as reader:
            [got] = reader.post("/v1/detect", json={"input": text}).json()["results"]
    assert (got["key_id"], got["verdict"]) == (key.id, "found")
    alone = AliMark(key, embedder=EMBEDDER).detect(text)
    assert alone.verdict() == "found"


def test_payloads_are_set_recorded_and_read(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(32)), payload_bits=8)
    with serving(tmp_path, payloads={"stand-in-payload": 3}, max_sentences=16, sentences=16, candidates=32) as running:
        with running.client("generate") as writer:
            refused = writer.post("/v1/completions", json={"prompt": "So.", "payload": 1})
            running.service.ring.add(key)
            answer = writer.post("/v1/completions", json={"prompt": "So.", "seed": 4, "sentences": 16, "payload": 77})
            too_large = writer.post("/v1/completions", json={"prompt": "So.", "payload": 256})
            token = next(token for token in running.service.tokens.all() if "generate" in token.roles)
            running.service.settings.payloads[token.id] = 5
            other = writer.post("/v1/completions", json={"prompt": "So.", "payload": 6})
            fixed = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1})
            rewritten = writer.post("/v1/rewrite", json={"input": "The mayor opened the old bridge near the hill."})
            running.service.settings.payloads[token.id] = 256
            mistake = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1})
        with running.client("detect") as reader:
            text = answer.json()["choices"][0]["text"]
            [result] = reader.post("/v1/detect", json={"input": text, "keys": [key.id]}).json()["results"]
        with running.client("admin") as admin:
            hard = admin.post("/v1/keys", json={"decision": "hard", "payload_bits": 8})
            records = [json.loads(line) for line in admin.get("/v1/records").text.splitlines()]
    assert (refused.status_code, "has no payloads" in refused.text) == (422, True)
    assert (too_large.status_code, "from 0 to 255" in too_large.text) == (422, True)
    assert (other.status_code, other.json()["error"]["code"]) == (403, "payload_is_set")
    assert (hard.status_code, "hard keys have no payloads" in hard.text) == (422, True)
    assert rewritten.json()["payload"] == 5
    assert (mistake.status_code, "Ask the operator" in mistake.text) == (409, True)
    assert (answer.json()["alimark"]["payload"], fixed.json()["alimark"]["payload"]) == (77, 5)
    assert (result["payload"]["value"], result["payload"]["confidence"] > 0.5) == (77, True)
    assert [record["details"].get("payload") for record in records] == [77, 5, 5, 77]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve")) as service:
        with service.client("admin") as admin:
            answer = admin.post("/v1/keys", json={"decision": "soft"})
            assert answer.status_code == 201, answer.text
        assert service.service.ring.marking("", "stand-in").follows_conversation
        # A fixed key: with a random one, the test would fail now and then.
        secret = bytes(range(32))
        service.service.ring.add(Key.generate(embedder=EMBEDDER, starts="conversation", secret=secret))
        yield service


def chatted(client: httpx.Client, **options: object) -> str:
    messages = [{"role": "user", "content": "Tell me about the house."}]
    for seed in range(12):
        body = {"messages": messages, "seed": seed, **options}
        answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
        messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "Go on."}]
    return " ".join(message["content"] for message in messages if message["role"] == "assistant")


def continued(client: httpx.Client, **options: object) -> str:
    text = "The house stood empty."
    for seed in range(12):
        body = {"prompt": text, "seed": seed, **options}
        text += " " + client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"].strip()
    return text.removeprefix("The house stood empty.")


def test_texts_that_are_asked_for_in_pieces_are_found(running: Running) -> None:
    key = running.service.ring.marking("", "stand-in")
    assert key.follows_conversation
    mark = AliMark(key, embedder=EMBEDDER)
    with running.client("generate") as client:
        for text in (chatted(client, sentences=1), continued(client, max_tokens=20)):
            assert mark.detect(text).verdict() == "found"
