"""The official OpenAI client: marked texts, streams, no-op fields, stop, limits, errors, retries, responses."""

from collections.abc import Iterator
from typing import Any

import pytest
from services import Running, serving

from alimark.core.llm.openai import OpenAI
from fake_server import Fake, Reply

openai = pytest.importorskip("openai")

ASK = [{"role": "user", "content": "Tell me a story."}]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "Nobody."},
    {"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]},
]
NO_OPS: dict[str, Any] = {
    "stop": None, "n": None, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, "top_logprobs": None,
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "response_format": {"type": "text"},
    "logit_bias": {}, "store": False, "metadata": {"team": "news"}, "user": "u1", "service_tier": "auto",
    "modalities": ["text"], "max_completion_tokens": None, "stream_options": None, "seed": 5, "temperature": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.tokens["generate"], max_retries=0) as client:
        yield client


def words(text: str) -> int:
    return len(text.split())


def is_found(running: Running, text: str, key_id: str) -> bool:
    with running.client("detect") as detector:
        answer = detector.post("/v1/detect", json={"input": text, "keys": [key_id]})
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["results"][0]["verdict"] == "found")


def test_completion_plain_and_streamed(running: Running, client: Any) -> None:
    completion = client.completions.create(model="stand-in", prompt="The door opened.", seed=1)
    assert completion.alimark["key_id"] == running.key.id
    assert len(completion.alimark["matches"][0]) == 12
    assert completion.choices[0].finish_reason == "length"
    assert is_found(running, completion.choices[0].text, completion.alimark["key_id"])
    chunks = list(client.completions.create(model="stand-in", prompt="The door opened.", seed=1, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == completion.choices[0].text
    assert len([chunk for chunk in chunks if chunk.choices[0].text.strip()]) == 12, "sentence by sentence"
    assert all(chunk.alimark["key_id"] == running.key.id for chunk in chunks)
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
    options = {"prompt": ["One.", "Two."], "n": 2, "seed": 3, "max_tokens": 60}
    completion = client.completions.create(model="stand-in", **options)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in completion.choices}) == 4
    assert all(len(choice.text.split()) == 60 for choice in completion.choices), "the stand-in's tokens are words"
    assert {choice.finish_reason for choice in completion.choices} == {"length"}
    streamed = client.completions.create(model="stand-in", **options, stream=True)
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
        lines = [line for line in admin.get("/v1/records").iter_lines() if any(name in line for name in wanted)]
    assert len(lines) == 2
    assert all('"text"' not in line and '"text_sha256"' in line for line in lines)


def test_fields_that_ask_for_nothing_change_nothing(client: Any) -> None:
    bare = client.chat.completions.create(model="stand-in", messages=ASK, seed=5, max_tokens=40)
    full = client.chat.completions.create(model="stand-in", messages=ASK, max_tokens=40, **NO_OPS)
    assert full.choices[0].message.content == bare.choices[0].message.content
    legacy = client.completions.create(
        model="stand-in", prompt="So.", max_tokens=9, echo=False, best_of=1, suffix=None, logprobs=None, stop=[]
    )
    assert words(legacy.choices[0].text) == 9


def test_an_answer_can_be_sent_back_as_it_came(client: Any) -> None:
    first = client.chat.completions.create(model="stand-in", messages=ASK, seed=5, max_tokens=20)
    turns = [*ASK, first.choices[0].message, {"role": "user", "content": "Go on."}]
    second = client.chat.completions.create(model="stand-in", messages=turns, seed=5, max_tokens=20)
    assert second.choices[0].message.content
    assert second.choices[0].message.content != first.choices[0].message.content


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["stand-in"]
    assert client.models.retrieve("stand-in").id == "stand-in"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/another")


@pytest.mark.parametrize("most", [1, 7, 50])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_limits_are_kept_to_the_token(client: Any, field: str, most: int) -> None:
    options = {"model": "stand-in", "messages": ASK, "seed": 2, field: most}
    answer = client.chat.completions.create(**options)
    assert answer.usage.completion_tokens == words(answer.choices[0].message.content) == most
    assert answer.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_sequences_plain_and_streamed(client: Any) -> None:
    options = {"model": "stand-in", "messages": ASK, "seed": 2, "max_tokens": 80}
    whole = client.chat.completions.create(**options)
    assert whole == client.chat.completions.create(**options, stop=["not there"]).model_copy(
        update={name: getattr(whole, name) for name in ("id", "created", "alimark")}
    )
    for stop in (" the ", [". T", '." '], "e ", ["zzz", ", "]):
        plain = client.chat.completions.create(**options, stop=stop)
        text = plain.choices[0].message.content
        assert not any(word in text for word in ([stop] if isinstance(stop, str) else stop))
        assert plain.choices[0].finish_reason == ("stop" if words(text) < 80 else "length")
        chunks = list(client.chat.completions.create(**options, stop=stop, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == plain.choices[0].finish_reason
        assert stop not in ("e ", " the ") or words(text) < 80


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"50": 10}}, "logit_bias"),
        ({"presence_penalty": 1.5}, "presence_penalty"),
    ],
)
def test_what_marked_text_cannot_have_is_refused(client: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(**{"model": "stand-in", "messages": ASK} | options)
    assert refused.value.code == "unmarkable"
    assert refused.value.param == field
    assert refused.value.body["message"].startswith(f"Marked text cannot have what the field {field} asks for: ")


def test_errors_have_the_classes_of_the_client(running: Running, client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=ASK)
    wrong: dict[str, Any]
    for wrong in ({"messages": []}, {"extra_body": {"candidates": 1}}):
        with pytest.raises(openai.UnprocessableEntityError):
            client.chat.completions.create(**{"model": "stand-in", "messages": ASK} | wrong)
    with pytest.raises(openai.APIStatusError, match="at most 100 sentences"):
        client.chat.completions.create(model="stand-in", messages=ASK, extra_body={"sentences": 101})
    for api_key, kind in (
        ("alm_no", openai.AuthenticationError),
        (running.tokens["detect"], openai.PermissionDeniedError),
    ):
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=api_key, max_retries=0) as other, pytest.raises(kind):
            other.models.list()


def test_responses(client: Any) -> None:
    chat = client.chat.completions.create(
        model="stand-in", messages=[{"role": "system", "content": "Be kind."}, *ASK], seed=4, max_tokens=30
    )
    options = {
        "model": "stand-in", "instructions": "Be kind.", "input": ASK[0]["content"], "max_output_tokens": 30,
        "extra_body": {"seed": 4}, "store": False, "tools": [], "text": {"format": {"type": "text"}},
    }  # fmt: skip
    answer = client.responses.create(**options)
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 30
    assert answer.alimark["marked"] is True
    events = list(client.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == answer.output_text
    turns = [*ASK, *(item.model_dump() for item in answer.output), {"role": "user", "content": "Go on."}]
    assert client.responses.create(model="stand-in", input=turns, max_output_tokens=9).usage.output_tokens == 9
    include = {"model": "stand-in", "input": "So?", "max_output_tokens": 9}
    assert client.responses.create(**include, include=["reasoning.encrypted_content"]).usage.output_tokens == 9
    with pytest.raises(openai.UnprocessableEntityError, match="probabilities of its tokens"):
        client.responses.create(**include, include=["message.output_text.logprobs"])
    with pytest.raises(openai.UnprocessableEntityError, match="stores no conversations"):
        client.responses.create(model="stand-in", input="So?", previous_response_id="resp_1")


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture
def passing(fake: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    fake.answer = lambda seen: Reply(
        {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": USAGE}
    )
    upstream = OpenAI(fake.url, "m", dialect="openai", backoff=0.0, retries=0)
    with serving(tmp_path_factory.mktemp("serve"), writer=upstream, unmarkable="pass-on") as running:
        url = f"{running.url}/v1"
        with openai.OpenAI(base_url=url, api_key=running.tokens["generate"], max_retries=0) as client:
            yield client


def test_what_marked_text_cannot_have_is_passed_on_if_the_operator_wants_it(fake: Fake, passing: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    raw = passing.chat.completions.with_raw_response.create(model="m", messages=ASK, tools=tools)
    assert raw.headers["x-alimark-marked"] == "false"
    answer = raw.parse()
    assert answer.choices[0].message.tool_calls[0].function.name == "f"
    assert answer.alimark["marked"] is False
    assert answer.alimark["reason"].startswith("tools: ")
    assert fake.seen[-1].body["tools"] == tools
    own = {"sentences": 3, "payload": 5}  # fields that the engine's server does not know
    usage = {"include_usage": True}
    chunks = list(
        passing.chat.completions.create(
            model="m", messages=ASK, tools=tools, stream=True, stream_options=usage, extra_body=own
        )
    )
    assert chunks[0].choices[0].delta.tool_calls[0].function.name == "f"
    assert chunks[0].alimark["marked"] is False
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 7)
    assert not fake.seen[-1].body.keys() & own
    asked = len(fake.seen)
    with pytest.raises(openai.NotFoundError):
        passing.chat.completions.create(model="another", messages=ASK, tools=tools)
    assert len(fake.seen) == asked


def test_an_engine_that_cannot_answer_by_itself_is_named(tmp_path: Any) -> None:
    from stand_ins import stand_in_service

    from alimark.errors import AlimarkError

    with pytest.raises(AlimarkError, match="cannot answer requests by itself"):
        stand_in_service(tmp_path, unmarkable="pass-on")
