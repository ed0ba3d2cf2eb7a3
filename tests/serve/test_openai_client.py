"""The official OpenAI client: what it receives is watermarked, in one response and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from services import Running

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(running: Running) -> Any:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.tokens["generate"], max_retries=0)


def is_found(running: Running, text: str, key_id: str) -> bool:
    with running.client("detect") as detector:
        answer = detector.post("/v1/detect", json={"input": text, "keys": [key_id]})
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["results"][0]["verdict"] == "found")


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "Nobody."},
    {"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]},
]


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["stand-in"]


def test_completion(running: Running, client: Any) -> None:
    completion = client.completions.create(model="stand-in", prompt="The door opened.", seed=1)
    assert completion.alimark["key_id"] == running.key.id
    assert len(completion.alimark["matches"][0]) == 12
    assert completion.choices[0].finish_reason == "length"
    assert is_found(running, completion.choices[0].text, completion.alimark["key_id"])


def test_streamed_completion_says_the_same(client: Any) -> None:
    plain = client.completions.create(model="stand-in", prompt="The door opened.", seed=1)
    chunks = list(client.completions.create(model="stand-in", prompt="The door opened.", seed=1, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert len([chunk for chunk in chunks if chunk.choices[0].text.strip()]) == 12, "sentence by sentence"
    assert all(chunk.alimark["key_id"] == plain.alimark["key_id"] for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_plain_and_streamed(running: Running, client: Any) -> None:
    completion = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2, max_tokens=300)
    text = completion.choices[0].message.content
    assert is_found(running, text, completion.alimark["key_id"])
    streamed = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2, max_tokens=300, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text
    other = client.chat.completions.create(model="stand-in", messages=MESSAGES[-1:], seed=2, max_tokens=300)
    assert other.choices[0].message.content != text, "the whole chat is what is answered"


def test_several_prompts_and_choices(running: Running, client: Any) -> None:
    completion = client.completions.create(model="stand-in", prompt=["One.", "Two."], n=2, seed=3, max_tokens=60)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in completion.choices}) == 4
    assert all(len(choice.text.split()) == 60 for choice in completion.choices), "the stand-in's tokens are words"
    assert {choice.finish_reason for choice in completion.choices} == {"length"}
    streamed = client.completions.create(
        model="stand-in", prompt=["One.", "Two."], n=2, seed=3, max_tokens=60, stream=True
    )
    texts = ["", "", "", ""]
    for chunk in streamed:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in completion.choices]


def test_usage_is_of_prompts_and_texts(client: Any) -> None:
    """The stand-in model counts each word as a token."""
    body = {"model": "stand-in", "prompt": ["One door opened.", "Two."], "n": 2, "seed": 3, "max_tokens": 60}
    completion = client.completions.create(**body)
    words = sum(len(choice.text.split()) for choice in completion.choices)
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (4, words)
    assert completion.usage.total_tokens == 4 + words
    assert sum(completion.alimark["tokens_sampled"]) > 10 * words, "24 candidates a sentence"
    chunks = list(client.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == completion.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    chat = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2, max_tokens=20)
    assert chat.usage.prompt_tokens == 10
    assert chat.usage.completion_tokens == len(chat.choices[0].message.content.split())


def test_every_text_has_its_record(running: Running, client: Any) -> None:
    completion = client.completions.create(model="stand-in", prompt="Again.", max_tokens=20)
    chunks = list(client.completions.create(model="stand-in", prompt="Again.", max_tokens=20, stream=True))
    wanted = {*completion.alimark["record_ids"], *chunks[-1].alimark["record_ids"]}
    with running.client("admin") as admin:
        lines = [
            line for line in admin.get("/v1/records").iter_lines() if any(record_id in line for record_id in wanted)
        ]
    assert len(lines) == 2
    assert all('"text"' not in line and '"text_sha256"' in line for line in lines)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"top_p": 0.1}, {"frequency_penalty": 1}, {"logprobs": 3}, {"extra_body": {"candidates": 1}},
     {"extra_body": {"sentences": 101}}, {"model": "another"}],
)  # fmt: skip
def test_options_that_prevent_the_watermark_are_rejected(client: Any, options: dict[str, Any]) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(**{"model": "stand-in", "prompt": "No.", **options})
    assert 400 <= refused.value.status_code < 500
    assert refused.value.body["message"]
