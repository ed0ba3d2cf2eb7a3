"""The tables of a report as cells: their figures, the marks of the best, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from made_up import MadeUp, estimate, lone_results

from alimark.bench import cells, paper, rates, tables
from alimark.bench.results import Results
from alimark.bench.shape import Paper


def test_rates_that_no_row_has_are_left_out() -> None:
    results = lone_results()
    titles = [metric.title for metric in rates.metrics(results["rows"])]
    assert titles == ["TPR@1%", "TPR@5%", "AUROC", "TPR@0.5%", "p ≤ 0.01", "p ≤ 0.05"]


def shown_as(*texts: str) -> list[cells.Cell]:
    return [cells.Cell(text, value=float(text) if text[:1].isdigit() else None) for text in texts]


@pytest.mark.parametrize(
    ("texts", "marks"),
    [
        ("90.0 80.0 70.0", ["best", "second", ""]),
        ("90.0 90.0 80.0", ["best", "best", "second"]),  # equal as shown
        ("90.0 80.0 80.0 –", ["best", "second", "second", ""]),
        ("100.0 100.0", ["", ""]),  # nobody is best
        ("90.0", [""]),
        ("9.5 10.5", ["second", "best"]),  # numbers, not letters
    ],
)
def test_best_and_second(texts: str, marks: list[str]) -> None:
    shown = shown_as(*texts.split())
    assert [cell.mark for cell in cells.marked(shown, [0] * len(shown))] == marks


def test_best_and_second_within_each_set() -> None:
    row = cells.marked(shown_as("90.0", "80.0", "10.0", "20.0"), ["a", "a", "b", "b"])
    assert [cell.mark for cell in row] == ["best", "second", "second", "best"]


def test_false_positives_beyond_doubt_are_pointed_out() -> None:
    results = lone_results()
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {})
    results["human"] = made_up.results["human"]
    for value, mark in ((0.05, ""), (0.2, "high")):
        results["human"][0]["false_positives"]["0.05"] = estimate(value, 160)
        (table,) = tables.human(results)
        assert [column.label for column in table.columns][-2:] == ["p ≤ 0.01", "p ≤ 0.05"]
        assert table.lines[0].cells[-1].mark == mark


def test_what_quality_is_compared_with_has_no_settings_unless_they_matter() -> None:
    made_up = MadeUp()
    made_up.quality("unmarked", 12.0, grid={"block_size": 2})
    made_up.quality("AliMark", 13.0, grid={"block_size": 2})
    (table,) = tables.quality(made_up.results)
    assert [[cell.text for cell in line.cells[:2]] for line in table.lines] == [["", "unmarked"], ["2", "AliMark"]]
    made_up.quality("unmarked", 12.0, grid={"block_size": 4})
    (table,) = tables.quality(made_up.results)
    assert [line.cells[0].text for line in table.lines] == ["2", "2", "4"]


# --- The paper's figures


def beside(results: Results, row: Mapping[str, Any], metric: str = "tpr@0.05") -> tuple[float, str] | None:
    return Paper(results).find(row, metric)


def test_the_papers_figure_of_another_llm_says_so() -> None:
    made_up = MadeUp()
    made_up.watermark("alimark", 5.0, {"chat": 0.5}, llm="smollm2-135m", data="Booksum")
    made_up.results["paper"] = paper.values("main")
    assert beside(made_up.results, made_up.results["rows"][0]) == (1.0, "opt-1.3b")
    assert beside(made_up.results, made_up.results["rows"][1]) == (0.666, "opt-1.3b, gpt-3.5")
    made_up.watermark("AliMark", 5.0, {}, llm="qwen3-1.7b")
    assert beside(made_up.results, made_up.results["rows"][-1]) == (0.999, "")
    made_up.watermark("AliMark", 5.0, {}, data="another")
    assert beside(made_up.results, made_up.results["rows"][-1]) is None


def test_the_papers_figures_keep_to_their_setting() -> None:
    made_up = MadeUp()
    made_up.results["paper"] = [*paper.values("main"), *paper.values("candidates")]
    for candidates in (8, 24):
        made_up.watermark("AliMark", 5.0, {}, grid={"candidates": candidates})
    assert beside(made_up.results, made_up.results["rows"][0]) == (0.974, "")
    assert beside(made_up.results, made_up.results["rows"][1]) is None


def test_a_name_with_its_owner_is_the_same_setting() -> None:
    made_up = MadeUp()
    made_up.results["paper"] = paper.values("embedder")
    made_up.watermark("AliMark", 5.0, {}, grid={"embedder": "sentence-transformers/all-distilroberta-v1"})
    assert beside(made_up.results, made_up.results["rows"][0]) == (0.998, "")


def test_the_papers_ways_of_detection_stand_beside_ours() -> None:
    made_up = MadeUp()
    made_up.results["paper"] = [*paper.values("main"), *paper.values("runtime")]
    for detection in ("", "no restructuring"):
        made_up.watermark("AliMark", 5.0, {}, detection=detection)
        made_up.results["runtime"].append(
            {"method": "AliMark", "detection": detection, "sentences": 128, "seconds": 0.5}
        )
    first, second = made_up.results["rows"]
    assert beside(made_up.results, first) == (1.0, "")
    assert beside(made_up.results, second) is None  # the paper has figures for its full detection only
    (table,) = tables.runtime(made_up.results)
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["AliMark", "", "0.500", "0.340"],
        ["AliMark", "no restructuring", "0.500", "0.0700"],
    ]


# --- In a sentence


def test_the_summary() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5, "pegasus": 0.9})
    for row, value in zip(made_up.results["rows"], (1.0, 0.4, 0.9)):
        row["tpr"]["0.01"] = estimate(value)
    assert rates.summary(made_up.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 100.0%. Under attack 65.0% on average; least under "
        "chat (40.0%)."
    )
    made_up.watermark("PMark", 5.0, {"chat": 0.5})
    for row, value in zip(made_up.results["rows"][3:], (0.98, 0.5)):
        row["tpr"]["0.01"] = estimate(value)
    assert rates.summary(made_up.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 98.0% to 100.0%. Under attack, PMark is found most, "
        "on average in 50.0% of the texts; next comes AliMark (40.0%)."  # of the attack that both met
    )
