"""The evaluation of records: one embedder for diversity, attacks that always fail, and runs that are not finished."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alimark.lab.bench import export, tables
from alimark.lab.bench.evaluate import all_results, evaluate
from alimark.lab.bench.models import Models
from alimark.lab.bench.recipe import attacks
from alimark.lab.bench.recipe_files import to_toml
from alimark.lab.bench.report import write
from alimark.lab.bench.results import save
from alimark.lab.bench.run import Run
from alimark.lab.bench.view.answers import Answers
from alimark.lab.bench.workspace import KeptVectors, Stage, Workspace
from alimark.testing import StandInEmbedder
from commands import Run as Command
from small_recipes import STAND_INS, recipe, rewrite_records, run
from watched import watched


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the embedders that are asked for; all of them are the stand-in."""
    names: list[str] = []

    def embedder(_: Models, name: str) -> StandInEmbedder:
        names.append(name)
        return StandInEmbedder()

    monkeypatch.setattr(Models, "embedder", embedder)
    return names


def answered(folder: Path, **changes: Any) -> Run:
    """A run of a token-level and of a sentence-level watermark with two made-up answers to each prompt, read by an oracle."""
    rows = [
        {"label": "KGW", "scheme": "kgw"},
        {"label": "AliMark", "key": {"embedder": "org/own", "decision": "hard", "block_size": 8}},
    ]
    quality = {"oracle": "org/oracle", "texts": 2, "answers": 2, "prompts": 2}
    run = Run(recipe(watermark=rows, quality=quality, **changes), Workspace(folder))
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
def test_diversity_is_measured_by_one_embedder(
    settings: dict[str, str], name: str, tmp_path: Path, asked: list[str]
) -> None:
    results = evaluate(answered(tmp_path, **settings), "x")
    measured = {row["method"]: row["diversity"] is not None for row in results["quality"]}
    assert measured == {"KGW": True, "AliMark": True, "unmarked": True, "human": False}
    assert {name} <= set(asked) <= {name, settings.get("meaning", STAND_INS["meaning"])}
    [table] = tables.quality(results)
    assert f"among several answers to one prompt, by {name}." in table.note


def test_an_attack_that_fails_on_every_text_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a row without rates, and with failures as misses nothing is found."""
    from alimark.cli.bench import _print_tables

    data = STAND_INS["data"] | {"human_texts": 100}
    wanted = recipe(data=data, attack=[{"name": "delete", "rate": [0.5, 1.0]}, {"name": "merge"}],
                    grid={"watermark.key.block_size": [4, 8]})  # fmt: skip
    bench = run(tmp_path, wanted)
    save(bench.workspace.results("always"), evaluate(bench, "always"))
    bench.workspace.save_recipe("always", to_toml(wanted))
    [results] = all_results(bench.workspace)
    row: Any = next(row for row in results["rows"] if row["attack"] == "delete 1.0")
    assert (row["texts"], row["failed"], row["auroc"], row["scores"]) == (0, 4, None, [])
    assert not any(row["tpr"].values())
    every = row["with_failures"]
    assert every["auroc"]["value"] == 0
    assert every["tpr"]["0.01"]["value"] == every["tpr_nominal"]["0.01"]["value"] == 0
    [table] = tables.details(results)
    labels = [column.label for column in table.columns]
    lines = [line for line in table.lines if line[labels.index("attack")].text == "delete 1.0"]
    cells = [line[labels.index("TPR@1%")] for line in lines]
    assert [(cell.text, cell.small) for cell in cells] == [("–", "all 0.0")] * 2
    assert all("AliMark" in write(table) for write in export.FORMATS.values())
    _, text = write(tmp_path / "report", [results])
    assert "| – (all 0.0) |" in text.read_text("utf-8")
    _print_tables(results)
    assert "delete 1.0" in capsys.readouterr().out
    answers = Answers([bench.workspace])
    assert len(answers.tables) == 2


def test_rejected_answers_are_counted_of_scored_texts(tmp_path: Path) -> None:
    """An attack may have more records than detections while a run is not finished."""
    bench = run(tmp_path, recipe(attack=[{"name": "delete", "rate": 0.5}]))
    [cell] = bench.cells
    [attack] = attacks(cell.recipe)
    attacked = [bench.attack_job(cell, item, attack).id for item in cell.items]
    rewrite_records(tmp_path, "attack", lambda record: record | {"rejected": 1, "left": 2})
    detections = [bench.detect_job(cell, bench.recipe.detection[0], source, item.prompt).id
                  for source, item in zip(attacked, cell.items, strict=True)]  # fmt: skip
    rewrite_records(tmp_path, "detect", lambda record: None if record["id"] in detections[1:] else record)
    row = evaluate(bench, "x", finished=False)["rows"][1]
    assert (row["texts"], row["failed"], row["retried"], row["kept"]) == (1, 0, 1, 2)


def test_a_recipe_that_cannot_be_evaluated_is_left_out_with_a_warning(tmp_path: Path) -> None:
    bench = run(tmp_path, recipe(attack=[]))
    bench.workspace.save_recipe("done", to_toml(bench.recipe))
    save(bench.workspace.results("done"), evaluate(bench, "done"))
    gone = recipe(data=STAND_INS["data"] | {"sets": [str(tmp_path / "gone.jsonl")]})
    bench.workspace.save_recipe("gone", to_toml(gone))
    with pytest.warns(UserWarning, match="the recipe gone was left out: .*gone.jsonl"):
        assert [results["name"] for results in all_results(bench.workspace)] == ["done"]


def test_the_diversity_of_an_unfinished_run_is_left_out(tmp_path: Path, asked: list[str]) -> None:
    """Its embedder may be missing."""
    results = evaluate(answered(tmp_path), "x", finished=False)
    assert [row["diversity"] for row in results["quality"]] == [None] * 4
    assert asked == []


def test_a_run_whose_texts_all_failed_is_reported(tmp_path: Path, command: Command) -> None:
    wanted = recipe(attack=[])
    bench = Run(wanted, Workspace(tmp_path))
    ids: dict[Stage, set[str]] = {
        "generate": {job.id for job in bench.generate_jobs()}, "detect": {job.id for job in bench.detect_jobs()},
    }  # fmt: skip
    for stage, of_stage in ids.items():
        with bench.workspace.writer(stage) as writer:
            for job_id in of_stage:
                writer.write({"id": job_id, "failed": True, "error": "no"})
    results = evaluate(bench, "failed")
    assert [(row["texts"], row["failed"], row["negatives"]) for row in results["rows"]] == [(0, 4, 0)]
    save(bench.workspace.results("failed"), results)
    assert command("bench", "report", tmp_path)[0] == 0
    results["rows"] = []  # as earlier releases wrote them
    save(bench.workspace.results("failed"), results)
    status, _, err = command("bench", "report", tmp_path)
    assert status == 0, err


# Embeddings kept on disk


def test_a_text_is_embedded_once(tmp_path: Path) -> None:
    asked: list[str] = []
    embedder = watched(StandInEmbedder(), asked.extend, "embed")
    with KeptVectors(embedder, tmp_path) as kept:
        first = kept.embed(["One.", "Two.", "One."])
        again = kept.embed(["Two.", "Three."])
    assert asked == ["One.", "Two.", "Three."]
    np.testing.assert_array_equal(first, StandInEmbedder().embed(["One.", "Two.", "One."]))
    np.testing.assert_array_equal(again[0], first[1])
    with KeptVectors(embedder, tmp_path) as later:
        np.testing.assert_array_equal(later.embed(["One.", "Three."]), [first[0], again[1]])
    assert len(asked) == 3


def test_what_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    with KeptVectors(StandInEmbedder(), tmp_path) as kept:
        kept.embed(["One.", "Two."])
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    asked: list[str] = []
    embedder = watched(StandInEmbedder(), asked.extend, "embed")
    with KeptVectors(embedder, tmp_path) as kept:
        vectors = kept.embed(["One.", "Two."])
    assert asked == ["Two."]
    np.testing.assert_array_equal(vectors, StandInEmbedder().embed(["One.", "Two."]))
    with KeptVectors(embedder, tmp_path) as kept:
        np.testing.assert_array_equal(kept.embed(["Two."])[0], vectors[1])
    assert asked == ["Two."]
