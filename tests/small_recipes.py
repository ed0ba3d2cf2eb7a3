"""A recipe with a stand-in model and embedder, and functions to run it and to read its records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alimark.lab.bench.recipe import Recipe
from alimark.lab.bench.recipe_files import parse
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

STAND_INS: dict[str, Any] = {
    "title": "stand-ins",
    "data": {"sets": ["manual"], "texts": 4, "sentences": 4, "human_texts": 110},
    "llm": {"name": "stand-in"},
    "watermark": [
        {"key": {"embedder": "stand-in", "decision": "hard", "block_size": 8}, "generate": {"candidates": 8}}
    ],
    "attack": [{"name": "delete", "rate": [0.25, 0.5]}, {"name": "insert", "rate": 0.5}],
    "detection": [{"options": {"draws": 99}}],
    "meaning": "stand-in",
}


def recipe(**changes: Any) -> Recipe:
    """The recipe above with some of its tables replaced."""
    return parse(STAND_INS | changes)


def run(folder: Path, wanted: Recipe | None = None, **options: Any) -> Run:
    """Run all stages of a recipe in a folder."""
    finished = Run(wanted or recipe(), Workspace(folder), **options)
    finished.run()
    return finished


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All records of a workspace by stage, sorted by id, without times."""
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "records").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for record in lines:
            for clock in ("seconds", "elapsed"):
                record.get("cost", {}).pop(clock, None)
        stage = path.stem.partition("-")[0]
        by_stage[stage] = sorted(by_stage.get(stage, []) + lines, key=lambda record: str(record["id"]))
    return by_stage


def rewrite_records(folder: Path, stage: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Changes the records of a stage; those that become None are left out."""
    path = folder / "records" / f"{stage}.jsonl"
    changed = [change(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in changed if record is not None), "utf-8")
