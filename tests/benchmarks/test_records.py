"""benchmarks/keep_records.py and tables.py: the records in the repository, and the tables of the documents made from them."""

import json
from pathlib import Path

import pytest

import keep_records
import tables
from alimark.lab.bench.recipe_files import to_toml
from small_recipes import STAND_INS, recipe, run

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_show_the_tables_of_the_records() -> None:
    records = tables.Records(tables.RECORDS)
    page = (DOCS / "soft.md").read_text("utf-8")
    for line in [*tables.cost_table(records), *tables.quality_table(records)]:
        assert line in page, "docs/soft.md is older than the records: run `make tables` and copy what it prints"


def test_the_records_hold_neither_prompts_nor_human_texts_and_are_small() -> None:
    records = tables.Records(tables.RECORDS)
    known = {"set", "line", "prompt", "text", "sampled", "written", "neighbours", "perplexity",
             "secret", "score", "p_value", "attacks"}  # fmt: skip
    assert records.labels
    for rows in records.rows.values():
        assert all(set(row) <= known and len(row["prompt"]) == 64 for row in rows)
        assert len({row["prompt"] for row in rows}) == len(rows)
    assert sum(path.stat().st_size for path in tables.RECORDS.parent.rglob("*") if path.is_file()) <= 5_000_000


@pytest.mark.weights
def test_records_are_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    records = tables.Records(tables.RECORDS)
    first = records.labels[0]
    monkeypatch.setattr(records, "rows", {first: records.rows[first][:3]})
    monkeypatch.setattr(records, "labels", [first])
    [line] = tables.detect_again(records)
    assert line.endswith("were scored again, 0 p-values differ")


@pytest.mark.usefixtures("stand_in_models")
def test_a_workspace_becomes_records_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [watermark] = STAND_INS["watermark"]
    attacks = [{"name": "delete", "rate": 0.5}]
    finished = run(tmp_path / "work", recipe(watermark=[watermark | {"label": "eight"}], attack=attacks, meaning=""))
    (tmp_path / "recipe.toml").write_text(to_toml(finished.recipe), "utf-8")
    kept = tmp_path / "kept"
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "recipe.toml"), str(tmp_path / "work"), str(kept)])
    keep_records.main()
    assert "eight: 4 texts" in capsys.readouterr().out
    (kept / "quoted.json").write_text("[]", "utf-8")
    [row, *_] = list(tables.read(kept, "eight"))
    prompt = finished.cells[0].items[0].prompt
    assert row["prompt"] == keep_records.sha256(prompt)
    assert row["attacks"]["delete 0.5"]["text"] != row["text"]
    assert prompt not in json.dumps(row)
    monkeypatch.setattr(tables, "CHAT", "delete 0.5")
    [line] = tables.cost_table(tables.Records(kept))[2:]
    assert line.startswith("| eight | 8, 0 | ")
    assert line.count(" of 4 |") == 3
    figure = tmp_path / "figure.svg"
    tables.figure(tables.Records(kept), figure)
    assert figure.read_text("utf-8").lstrip().startswith("<?xml")
