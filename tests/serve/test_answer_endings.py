"""Answers that end where the model ends them, and that say where they are too short to carry a mark."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from services import Running, serving

from alimark.testing import StandInLLM
from watched import watched


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve"), writer=StandInLLM(ends=0.2)) as service:
        yield service


def ask(running: Running, seed: int, **options: object) -> tuple[dict[str, str], dict]:  # type: ignore[type-arg]
    with running.client("generate") as client:
        body = {"messages": [{"role": "user", "content": "Who?"}], "seed": seed, **options}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.headers), answer.json()


def test_answers_end_where_the_model_ends(running: Running) -> None:
    lengths = []
    for seed in range(30):
        headers, answer = ask(running, seed)
        mark, [choice] = answer["alimark"], answer["choices"]
        assert choice["finish_reason"] == "stop"
        lengths.append(len(mark["matches"][0]))
        assert 3 <= mark["sentences_needed"] <= 12, "6 at the usual agreement"
        assert mark["too_short"] == [not mark["found"][0] and lengths[-1] < mark["sentences_needed"]]
        assert headers["x-alimark-too-short"] == str(mark["too_short"][0]).lower()
        assert mark["p_value"] is None, "a token that may not detect learns no p-value"
        assert mark["words_marked"] == mark["words"], "all of it is prose"
    assert 1 < sum(lengths) / 30 < 8, "4 at the mean"


def test_an_answer_that_is_cut_says_so(running: Running) -> None:
    answers = [ask(running, seed, sentences=1)[1] for seed in range(8)]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length", "stop"}


def test_a_streamed_answer_ends_alike(running: Running) -> None:
    _, plain = ask(running, 3)
    with running.client("generate") as client:
        body = {"messages": [{"role": "user", "content": "Who?"}], "seed": 3, "stream": True}
        lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == plain["choices"][0]["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["alimark"]["too_short"] == plain["alimark"]["too_short"]


def test_completions_may_end_unless_a_number_of_sentences_is_asked_for(running: Running) -> None:
    with running.client("generate") as client:
        ended = client.post("/v1/completions", json={"prompt": "It was late.", "seed": 1}).json()
        whole = client.post("/v1/completions", json={"prompt": "It was late.", "seed": 1, "sentences": 9}).json()
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert len(whole["alimark"]["matches"][0]) == 9
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_a_stream_without_a_text_ends_with_the_error_of_a_plain_answer(tmp_path: Path, path: str) -> None:
    asked = {"completions": {"prompt": "It was late, and nobody came."}, "responses": {"input": "Who?"}}
    body = asked.get(path, {"messages": [{"role": "user", "content": "Who?"}]})
    with serving(tmp_path, writer=StandInLLM(context_characters=-1)) as service, service.client("generate") as client:
        plain = client.post(f"/v1/{path}", json=body)
        streamed = client.post(f"/v1/{path}", json=body | {"stream": True})
    assert (plain.status_code, plain.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert '"context_length_exceeded"' in streamed.text
    assert "[DONE]" not in streamed.text


def test_a_stream_begins_with_the_fields_that_all_its_chunks_have(running: Running) -> None:
    with running.client("generate") as client:
        body = {"messages": [{"role": "user", "content": "Who?"}], "seed": 3, "stream": True, "sentences": 1}
        first = client.post("/v1/chat/completions", json=body).text.partition("\n\n")[0]
    [choice] = json.loads(first.removeprefix("data: "))["choices"]
    assert choice == {
        "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None
    }  # fmt: skip


def test_the_first_sentence_of_a_chat_comes_sooner(tmp_path: Path) -> None:
    asked: list[int] = []
    llm = watched(StandInLLM(), lambda requests: asked.extend(request.count for request in requests))
    question = {"role": "user", "content": "Who?"}
    later = [question, {"role": "assistant", "content": "The keeper came late."}, question]
    with serving(tmp_path, writer=llm, candidates=80) as service, service.client("generate") as client:
        for messages, sooner in (([question], True), (later, False)):
            asked.clear()
            body = {"messages": messages, "seed": 3, "sentences": 3}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            assert (asked[0] == 20) is sooner
            assert max(asked[1:]) > 20
