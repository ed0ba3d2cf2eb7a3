"""The evaluation of records: one embedder for diversity, attacks that always fail, and runs that are not finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alimark.bench import tables
from alimark.bench.evaluate import evaluate
from alimark.bench.models import Models
from alimark.bench.run import Run
from alimark.bench.workspace import Workspace
from alimark.embedding.base import Embedder
from alimark.testing import StandInEmbedder
from small_recipes import recipe


class NotedEmbedders(Models):
    """Gives the stand-in for every embedder, and notes the names that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def embedder(self, name: str) -> Embedder:
        self.asked.append(name)
        return StandInEmbedder()


def answered(folder: Path, models: Models, **changes: Any) -> Run:
    """A run of a token-level and of a sentence-level watermark with two made-up answers to each prompt, read by an oracle."""
    rows = [
        {"label": "KGW", "scheme": "kgw"},
        {"label": "AliMark", "key": {"embedder": "org/own", "decision": "hard", "block_size": 8}},
    ]
    quality = {"oracle": "org/oracle", "texts": 2, "answers": 2, "prompts": 2}
    run = Run(recipe(watermark=rows, quality=quality, **changes), Workspace(folder), models=models)
    with run.workspace.writer("generate") as writer:
        for number, job in enumerate({job.id: job for job in run.generate_jobs()}.values()):
            writer.write({"id": job.id, "text": f"This is answer {number}. It has two sentences."})
    with run.workspace.writer("quality") as writer:
        for job_id in {job.id for job in run.reading_jobs()}:
            writer.write({"id": job_id, "perplexity": 9.0, "distinct": 0.9, "repetition": 0.1})
    return run


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"embedder": "org/all", "meaning": "org/meaning"}, "org/all"),
        ({"meaning": "org/meaning"}, "org/meaning"),
        ({"meaning": ""}, "all-MiniLM-L6-v2"),
    ],
)
def test_diversity_is_measured_by_one_embedder(settings: dict[str, str], name: str, tmp_path: Path) -> None:
    models = NotedEmbedders()
    results = evaluate(answered(tmp_path, models, **settings), "x")
    measured = {row["method"]: row["diversity"] is not None for row in results["quality"]}
    assert measured == {"KGW": True, "AliMark": True, "unmarked": True, "human": False}
    assert set(models.asked) == {name}
    [table] = tables.quality(results)
    assert f"among several answers to one prompt, by {name}." in table.note
