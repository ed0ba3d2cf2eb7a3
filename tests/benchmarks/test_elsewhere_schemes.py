"""benchmarks/elsewhere.py writes texts of every scheme, also of those that learn from text or ask a chat model."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import elsewhere
from alimark.core.text.human_text import language_reference
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from alimark.lab.rivals.postmark import PostMark
from alimark.testing import StandInEmbedder


def test_texts_written_elsewhere_are_those_of_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in inserts no words, so PostMark's texts are recorded with failed groups of words, here as there."""
    PostMark.fit(list(islice(language_reference(), 40)), StandInEmbedder(), words=200).save(tmp_path / "words.npz")
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"""
        title = "written elsewhere"
        [data]
        sets = ["manual"]
        texts = 2
        sentences = 4
        human_texts = 4
        [llm]
        name = "stand-in"
        [[watermark]]
        label = "SAMark"
        scheme = "samark"
        key = {{ embedder = "stand-in" }}
        generate = {{ candidates = 8 }}
        [[watermark]]
        label = "PostMark"
        scheme = "postmark"
        key = {{ embedder = "stand-in", fitted = "{tmp_path / "words.npz"}" }}
        """
    )
    there = Run(load(path, []), Workspace(tmp_path / "there"))
    there.run()
    here = tmp_path / "here"
    Workspace(here)

    def call(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["elsewhere.py", *map(str, words)])
        elsewhere.main()

    call("jobs", path, here, "--stages", "generate", "--output", tmp_path / "jobs.jsonl")
    call("do", tmp_path / "jobs.jsonl", tmp_path / "made")
    call("take", tmp_path / "made", here)
    ids = [job.id for job in there.generate_jobs()]
    expected, local = there.workspace.records("generate", ids), Workspace(here).records("generate", ids)
    assert {identifier: local[identifier]["text"] for identifier in ids} == {
        identifier: expected[identifier]["text"] for identifier in ids
    }
    schemes = [expected[identifier]["scheme"] for identifier in ids]
    assert schemes.count("samark") == schemes.count("postmark") == 2
    failed = [record["cost"]["rejected"] for record in local.values() if record["scheme"] == "postmark"]
    assert all(rejected["failed"] >= 1 for rejected in failed)
    scored = there.workspace.records("detect", [job.id for job in there.detect_jobs()])
    assert scored
    assert not any(record.get("failed") for record in scored.values())
