"""A run over many prompts against a server that fails: it goes on or ends with a clear error, finished texts are on disk."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import alimark.core.embedding.loading
from alimark import Key
from alimark.core.llm.base import Request, Sampling
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from fake_server import FAULTS, Fake, Reply, Seen, fake, waits

__all__ = ["fake", "waits"]  # fixtures, used by name

EMBEDDER = StandInEmbedder()
PROMPTS = [f"Story {i} begins here." for i in range(6)]


def told(seen: Seen) -> Reply:
    """Choices by the stand-in: sentences that depend on prompt and seed."""
    request = Request(seen.body["prompt"], seen.body.get("n", 1), seen.body.get("seed", 0))
    [draws] = StandInLLM().draw([request], Sampling(), lambda text: text.rstrip().endswith((".", "!", "?", '"')))
    choices = [
        {"index": i, "text": f"{draw.text.rstrip()} Then more", "finish_reason": "length"}
        for i, draw in enumerate(draws)
    ]
    return Reply({"choices": choices, "usage": {"completion_tokens": sum(draw.tokens for draw in draws)}})


@pytest.fixture
def run(command: Run, fake: Fake, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(alimark.core.embedding.loading, "load_embedder", lambda name, **_: EMBEDDER)
    Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32))).save(tmp_path / "key.json")
    lines = [json.dumps({"id": f"p{i}", "prompt": prompt}) for i, prompt in enumerate(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
    words = ["generate", "-k", tmp_path / "key.json", "--input", tmp_path / "prompts.jsonl", "--seed", 1]
    words += ["--output", tmp_path / "texts.jsonl", "--llm", f"openai:{fake.url}#m", "--sentences", 3]
    return partial(command, *words, "--candidates", 4)


def written(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text("utf-8").splitlines()]


def test_a_run_against_a_server_and_its_limits_are_told(fake: Fake, run: Run, tmp_path: Path) -> None:
    fake.answer = told
    status, _, said = run()
    assert status == 0, said
    records = written(tmp_path)
    assert [record["id"] for record in records] == [f"p{i}" for i in range(6)]
    assert all(len(record["sentences"]) == 3 for record in records)
    assert "no repetition penalty" in said
    assert any("repetition" in limit for limit in records[0]["settings"]["limits"])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_is_gone_ends_the_run_and_a_later_one_finishes_it(
    fake: Fake, run: Run, tmp_path: Path, fault: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alimark.core.generation.api.default_batch", lambda _: 2)
    fake.answer = lambda seen: told(seen) if "Story 0" in seen.body["prompt"] else fault
    status, _, said = run()
    assert status == 2
    assert "error: " in said
    assert "Traceback" not in said
    assert [record["id"] for record in written(tmp_path)] == ["p0"]
    fake.answer = told
    status, _, said = run()
    assert status == 0
    assert "1 were there already" in said
    records = written(tmp_path)
    assert [record["id"] for record in records] == [f"p{i}" for i in range(6)]
    assert [record["seed"] for record in records] == list(range(1, 7))


def test_one_bad_prompt_is_passed_over(fake: Fake, run: Run, tmp_path: Path) -> None:
    fake.answer = lambda seen: Reply({"error": "no"}, 400) if "Story 2" in seen.body["prompt"] else told(seen)
    status, _, said = run()
    assert status == 0
    assert "prompts.jsonl:3" in said
    assert "1 lines failed" in said
    assert [record["id"] for record in written(tmp_path)] == ["p0", "p1", "p3", "p4", "p5"]
