"""The official client against the service: what it gets is marked, plain and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from services import Running, serving

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve")) as service:
        yield service


@pytest.fixture(scope="module")
def client(running: Running) -> Any:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.tokens["generate"], max_retries=0)


def found(running: Running, text: str, key_id: str) -> bool:
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
    assert [one.id for one in client.models.list()] == ["stand-in"]


def test_completion(running: Running, client: Any) -> None:
    made = client.completions.create(model="stand-in", prompt="The door opened.", seed=1)
    assert made.alimark["key_id"] == running.service.ring.all()[0].id
    assert len(made.alimark["matches"][0]) == 12
    assert made.choices[0].finish_reason == "length"
    assert found(running, made.choices[0].text, made.alimark["key_id"])


def test_streamed_completion_says_the_same(client: Any) -> None:
    plain = client.completions.create(model="stand-in", prompt="The door opened.", seed=1)
    chunks = list(client.completions.create(model="stand-in", prompt="The door opened.", seed=1, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert len([chunk for chunk in chunks if chunk.choices[0].text.strip()]) == 12, "sentence by sentence"
    assert all(chunk.alimark["key_id"] == plain.alimark["key_id"] for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_plain_and_streamed(running: Running, client: Any) -> None:
    made = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2)
    text = made.choices[0].message.content
    assert found(running, text, made.alimark["key_id"])
    streamed = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text
    other = client.chat.completions.create(model="stand-in", messages=MESSAGES[-1:], seed=2)
    assert other.choices[0].message.content != text, "the whole chat is what is answered"


def test_several_prompts_and_choices(running: Running, client: Any) -> None:
    made = client.completions.create(model="stand-in", prompt=["One.", "Two."], n=2, seed=3, max_tokens=60)
    assert [one.index for one in made.choices] == [0, 1, 2, 3]
    assert len({one.text for one in made.choices}) == 4
    assert all(len(bits) == 3 for bits in made.alimark["matches"]), "60 tokens are three sentences"
    streamed = client.completions.create(
        model="stand-in", prompt=["One.", "Two."], n=2, seed=3, max_tokens=60, stream=True
    )
    texts = ["", "", "", ""]
    for chunk in streamed:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [one.text for one in made.choices]


def test_usage_is_of_prompts_and_texts(client: Any) -> None:
    """The stand-in counts a word a token."""
    asked = {"model": "stand-in", "prompt": ["One door opened.", "Two."], "n": 2, "seed": 3, "max_tokens": 60}
    made = client.completions.create(**asked)
    words = sum(len(one.text.split()) for one in made.choices)
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, words)
    assert made.usage.total_tokens == 4 + words
    assert sum(made.alimark["tokens_sampled"]) > 10 * words, "24 candidates a sentence"
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == made.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    chat = client.chat.completions.create(model="stand-in", messages=MESSAGES, seed=2, max_tokens=20)
    assert chat.usage.prompt_tokens == 10
    assert chat.usage.completion_tokens == len(chat.choices[0].message.content.split())


def test_every_text_has_its_record(running: Running, client: Any) -> None:
    made = client.completions.create(model="stand-in", prompt="Again.", max_tokens=20)
    chunks = list(client.completions.create(model="stand-in", prompt="Again.", max_tokens=20, stream=True))
    wanted = {*made.alimark["record_ids"], *chunks[-1].alimark["record_ids"]}
    with running.client("admin") as admin:
        lines = [line for line in admin.get("/v1/records").iter_lines() if any(one in line for one in wanted)]
    assert len(lines) == 2
    assert all('"text"' not in line and '"text_sha256"' in line for line in lines)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"top_p": 0.1}, {"stop": ["."]}, {"logprobs": 3}, {"extra_body": {"candidates": 1}},
     {"extra_body": {"sentences": 101}}, {"model": "another"}],
)  # fmt: skip
def test_nobody_opts_out_and_nothing_is_passed_over(client: Any, options: dict[str, Any]) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(**{"model": "stand-in", "prompt": "No.", **options})
    assert 400 <= refused.value.status_code < 500
    assert refused.value.body["message"]
