"""`alimark demo` with the stand-ins."""

from __future__ import annotations

import json

from alimark.cli.demo import changed
from commands import Run


def test_demo_with_the_stand_ins(run: Run) -> None:
    done = run("demo", "--json", "--candidates", 64)
    assert done.status == 0, done.err
    answers = {answer["text"]: answer["verdict"] for answer in json.loads(done.out)["answers"]}
    assert answers["marked"] == "found"
    assert len(answers) == 4
    assert run("demo", "--candidates", 8).out.count("\n") > 15


def test_the_demos_change_is_a_merge_a_split_and_a_deletion() -> None:
    sentences = [f"This is the sentence number {i}." for i in range(12)]
    assert changed(sentences).count(".") == 12 - 1 + 1 - 1
    assert changed(sentences[:1]) == sentences[0]
