"""A client that asks for a few tokens or sentences at a time cannot opt out of the mark."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from services import Running, serving

from alimark import AliMark, Key
from alimark.testing import StandInEmbedder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve")) as service:
        with service.client("admin") as admin:
            answer = admin.post("/v1/keys", json={"decision": "soft"})
            assert answer.status_code == 201, answer.text
        assert service.service.ring.marking("", "stand-in").follows_conversation
        # A fixed key: with a random one, the test would fail now and then.
        secret = bytes(range(32))
        service.service.ring.add(Key.generate(embedder=StandInEmbedder(), starts="conversation", secret=secret))
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
    mark = AliMark(key, embedder=StandInEmbedder())
    with running.client("generate") as client:
        for text in (chatted(client, sentences=1), continued(client, max_tokens=20)):
            assert mark.detect(text).verdict() == "found"
