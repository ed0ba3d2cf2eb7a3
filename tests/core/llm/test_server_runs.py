"""Runs of the command line against a server that fails: they go on or end with a clear error; finished texts are on disk."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import alimark.core.embedding.loading
from alimark import Key
from alimark.testing import StandInEmbedder
from commands import Run
from fake_server import FAULTS, KEY, Answer, Fake, Reply, Seen, completions

EMBEDDER = StandInEmbedder()
TEXTS = [
    f"The old sailor number {i} sold his boat to a young doctor. Nobody in the village had expected such a thing. "
    "He moved into a small house behind the church. Every morning he walked down to the harbour."
    for i in range(6)
]


def said(content: str, tokens: int) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return Reply({"choices": [choice], "usage": {"completion_tokens": tokens}})


def rewritten(seen: Seen) -> Reply:
    """Another text of as many words, which depends on the question alone."""
    asked = seen.body["messages"][-1]["content"].rpartition("\n\n")[2]
    number = asked.split()[4]
    return said(
        f"A young doctor bought the boat of sailor number {number}, an old man. The village was taken by surprise. "
        "His new house was a small one at the back of the church. The harbour saw him each morning.",
        40,
    )


@pytest.fixture
def generate(command: Run, fake: Fake, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(alimark.core.embedding.loading, "load_embedder", lambda name, **_: EMBEDDER)
    Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32))).save(tmp_path / "key.json")
    lines = [json.dumps({"id": f"t{i}", "prompt": f"Story number {i} begins here."}) for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["generate", "-k", tmp_path / "key.json", "--input", tmp_path / "prompts.jsonl", "--seed", 1]
    words += ["--output", tmp_path / "out.jsonl", "--llm", f"openai:{fake.url}#m", "--sentences", 3]
    return partial(command, *words, "--candidates", 4)


@pytest.fixture
def attack(command: Run, fake: Fake, waits: list[float], tmp_path: Path) -> Run:
    lines = [json.dumps({"id": f"t{i}", "text": text, "key_id": "ak1"}) for i, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["--input", tmp_path / "texts.jsonl", "--output", tmp_path / "out.jsonl"]
    return partial(command, "attack", "chat", *words, "--llm", f"openai:{fake.url}#m", "--seed", 1)


Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def records(tmp_path: Path) -> Read:
    """What a run has written."""
    return lambda: [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("verb", "answer", "ids", "summary"),
    [
        ("generate", completions, "t{}", "1 were there already"),
        ("attack", rewritten, "t{}/chat", "5 texts attacked, 0 failed (recorded as such), 1 were there already"),
    ],
)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_is_gone_ends_the_run_and_a_later_one_finishes_it(
    fake: Fake, records: Read, fault: Reply, verb: str, answer: Answer, ids: str, summary: str,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("alimark.core.generation.api.default_batch", lambda _: 2)
    run: Run = request.getfixturevalue(verb)
    fake.answer = lambda seen: answer(seen) if "number 0" in json.dumps(seen.body) else fault
    status, _, err = run()
    assert status == 2
    assert "error: " in err
    assert "Traceback" not in err
    assert KEY not in err
    assert [record["id"] for record in records()] == [ids.format(0)]
    fake.answer = answer
    status, _, err = run()
    assert status == 0
    assert summary in err
    assert [record["id"] for record in records()] == [ids.format(i) for i in range(6)]
    if verb == "generate":
        assert [record["seed"] for record in records()] == list(range(1, 7))


def test_a_run_against_a_server_and_its_limits_are_told(fake: Fake, generate: Run, records: Read) -> None:
    fake.answer = completions
    status, _, err = generate()
    assert status == 0, err
    assert [record["id"] for record in records()] == [f"t{i}" for i in range(6)]
    assert all(len(record["sentences"]) == 3 for record in records())
    assert "no repetition penalty" in err
    assert any("repetition" in limit for limit in records()[0]["settings"]["limits"])


def test_one_bad_prompt_is_passed_over(fake: Fake, generate: Run, records: Read) -> None:
    fake.answer = lambda seen: Reply({"error": "no"}, 400) if "number 2" in seen.body["prompt"] else completions(seen)
    status, _, err = generate()
    assert status == 0
    assert "prompts.jsonl:3" in err
    assert "1 lines failed" in err
    assert [record["id"] for record in records()] == ["t0", "t1", "t3", "t4", "t5"]


def test_attacked_texts_are_recorded(fake: Fake, attack: Run, records: Read) -> None:
    fake.answer = rewritten
    status, _, err = attack()
    assert status == 0, err
    assert "6 texts attacked, 0 failed" in err
    assert [record["id"] for record in records()] == [f"t{i}/chat" for i in range(6)]
    for i, record in enumerate(records()):
        assert (record["parent_id"], record["original"], record["key_id"]) == (f"t{i}", TEXTS[i], "ak1")
        assert f"sailor number {i}," in record["text"]
        assert (record["attack"]["name"], record["attack"]["settings"]["temperature"]) == ("chat", 1.0)
        assert record["cost"] == {"tries": 1, "tokens": 40}
        assert "failed" not in record
    assert KEY not in json.dumps(records())
    for more in (("--temperature", 0.5), ("--seed", 2)):
        status, _, err = attack(*more)
        assert status == 2
        assert "other settings" in err


def test_a_model_that_will_not_is_recorded_as_failed(fake: Fake, attack: Run, records: Read) -> None:
    refusal = said("I'm sorry, but no.", 5)
    fake.answer = lambda seen: refusal if "number 3" in json.dumps(seen.body) else rewritten(seen)
    status, _, err = attack("--tries", 2)
    assert status == 0
    assert "5 texts attacked, 1 failed" in err
    record = records()[3]
    assert (record["failed"], record["error"]) == (True, "refusal, after 2 tries")
    assert record["original"] == TEXTS[3]
    assert record["cost"] == {"tries": 2, "tokens": 10}
    assert "text" not in record
    assert len(record["rejected"]) == 2
    asked = len(fake.seen)
    status, _, err = attack("--tries", 2)  # what failed is done, too
    assert len(fake.seen) == asked
    assert "6 were there already" in err
