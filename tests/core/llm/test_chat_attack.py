"""The chat attack against servers: a real one, and one that fails; whole runs of the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alimark.lab.attacks import Target, load_attack
from alimark.lab.attacks.checks import text_flaw
from commands import Run
from fake_server import FAULTS, KEY, Fake, Reply, Seen, fake, waits

__all__ = ["fake", "waits"]  # fixtures, used by name

TEXTS = [
    f"The old sailor number {i} sold his boat to a young doctor. Nobody in the village had expected such a thing. "
    "He moved into a small house behind the church. Every morning he walked down to the harbour."
    for i in range(6)
]


def rewritten(seen: Seen) -> Reply:
    """Another text of as many words, which depends on the question alone."""
    asked = seen.body["messages"][-1]["content"].rpartition("\n\n")[2]
    number = asked.split()[4]
    said = (
        f"A young doctor bought the boat of sailor number {number}, an old man. The village was taken by surprise. "
        "His new house was a small one at the back of the church. The harbour saw him each morning."
    )
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    return Reply({"choices": [choice], "usage": {"completion_tokens": 40}})


@pytest.fixture
def run(command: Run, fake: Fake, waits: list[float], tmp_path: Path) -> Run:
    lines = [json.dumps({"id": f"t{i}", "text": text, "key_id": "ak1"}) for i, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["--input", tmp_path / "texts.jsonl", "--output", tmp_path / "attacked.jsonl"]
    return partial(command, "attack", "chat", *words, "--llm", f"openai:{fake.url}#m", "--seed", 1)


def written(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "attacked.jsonl").read_text("utf-8").splitlines()]


def test_a_run(fake: Fake, run: Run, tmp_path: Path) -> None:
    fake.answer = rewritten
    status, _, said = run()
    assert status == 0, said
    assert "6 texts attacked, 0 failed" in said
    records = written(tmp_path)
    assert [record["id"] for record in records] == [f"t{i}/chat" for i in range(6)]
    for i, record in enumerate(records):
        assert record["parent_id"] == f"t{i}"
        assert record["original"] == TEXTS[i]
        assert record["key_id"] == "ak1"
        assert f"sailor number {i}," in record["text"]
        assert record["attack"]["name"] == "chat"
        assert record["attack"]["settings"]["temperature"] == 1.0
        assert record["cost"] == {"tries": 1, "tokens": 40}
        assert "failed" not in record
    assert KEY not in json.dumps(records)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_is_gone_ends_the_run_and_a_later_one_finishes_it(
    fake: Fake, run: Run, tmp_path: Path, fault: Reply
) -> None:
    fake.answer = lambda seen: rewritten(seen) if "number 0" in json.dumps(seen.body) else fault
    status, _, said = run()
    assert status == 2
    assert "error: " in said
    assert "Traceback" not in said
    assert KEY not in said
    assert [record["id"] for record in written(tmp_path)] == ["t0/chat"]
    fake.answer = rewritten
    status, _, said = run()
    assert status == 0
    assert "5 texts attacked, 0 failed (recorded as such), 1 were there already" in said
    assert [record["id"] for record in written(tmp_path)] == [f"t{i}/chat" for i in range(6)]


def test_a_model_that_will_not_is_recorded_as_failed(fake: Fake, run: Run, tmp_path: Path) -> None:
    refusal = {"index": 0, "message": {"role": "assistant", "content": "I'm sorry, but no."}, "finish_reason": "stop"}
    fake.answer = lambda seen: (
        Reply({"choices": [refusal], "usage": {"completion_tokens": 5}})
        if "number 3" in json.dumps(seen.body)
        else rewritten(seen)
    )
    status, _, said = run("--tries", 2)
    assert status == 0
    assert "5 texts attacked, 1 failed" in said
    record = written(tmp_path)[3]
    assert record["failed"] is True
    assert record["error"] == "refusal, after 2 tries"
    assert record["original"] == TEXTS[3]
    assert record["cost"] == {"tries": 2, "tokens": 10}
    assert "text" not in record
    assert len(record["rejected"]) == 2
    asked = len(fake.seen)
    status, _, said = run("--tries", 2)  # what failed is done, too
    assert len(fake.seen) == asked
    assert "6 were there already" in said


def test_other_settings_in_the_same_file_are_refused(fake: Fake, run: Run) -> None:
    fake.answer = rewritten
    run()
    for more in (("--temperature", 0.5), ("--seed", 2)):
        status, _, said = run(*more)
        assert status == 2
        assert "other settings" in said


@pytest.mark.weights
def test_a_real_server(fresh_server: str) -> None:
    """A model of 135 million parameters is no paraphraser: what counts is that all it says is taken or told to be flawed."""
    attack = load_attack("chat", llm=f"openai:{fresh_server}", max_tokens=96, tries=2)
    made = dict(attack.run(Target(text, i) for i, text in enumerate(TEXTS[:3])))
    assert sorted(made) == [0, 1, 2]
    for i, one in made.items():
        assert one.tokens > 0
        assert one.failed == (not one.text)
        if one.failed:
            assert one.tries == 2
            assert len(one.rejected) == 2
        else:
            assert not text_flaw(one.text, TEXTS[i])
