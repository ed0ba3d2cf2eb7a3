"""The tables of a report as cells: their figures, the marks of the best, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from made_up import MadeUp, estimate, lone_results

from alimark.lab.bench import paper, rates, tables
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Results


def test_rates_that_no_row_has_are_left_out() -> None:
    results = lone_results()
    titles = [metric.title for metric in rates.metrics(results["rows"])]
    assert titles == ["TPR@1%", "TPR@5%", "AUROC", "TPR@0.5%", "p ≤ 0.01", "p ≤ 0.05"]


def shown_as(*texts: str) -> list[tables.TableCell]:
    return [tables.TableCell(text, value=float(text) if text[:1].isdigit() else None) for text in texts]


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
    assert tables.ranks(shown, [0] * len(shown))[0] == marks


def test_best_and_second_within_each_set() -> None:
    marks = ["best", "second", "second", "best"]
    assert tables.ranks(shown_as("90.0", "80.0", "10.0", "20.0"), ["a", "a", "b", "b"]) == (marks, True)


def with_intervals(*ends: tuple[float, float, float]) -> list[tables.TableCell]:
    return [
        tables.estimated({"value": value, "low": low, "high": high, "count": 9}, tables.percent)
        for low, value, high in ends
    ]


@pytest.mark.parametrize(
    ("ends", "marks"),
    [
        ([(0.8, 0.9, 0.95), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)], ["best", "second", ""]),
        ([(0.8, 0.9, 0.95), (0.4, 0.5, 0.6), (0.3, 0.4, 0.5)], ["best", "", ""]),  # the second is not settled
        ([(0.6, 0.7, 0.8), (0.5, 0.6, 0.7), (0.1, 0.2, 0.3)], ["", "", ""]),
        ([(0.8, 0.9, 0.95), (0.8, 0.9, 0.95), (0.1, 0.2, 0.3)], ["best", "best", "second"]),
    ],
)
def test_nothing_is_ranked_where_intervals_overlap(ends: list[tuple[float, float, float]], marks: list[str]) -> None:
    assert tables.ranks(with_intervals(*ends), [0, 0, 0]) == (marks, marks[0] != "")


def test_a_table_says_where_there_are_too_few_texts_to_rank() -> None:
    made_up = MadeUp()
    for method, values in (("PMark", (0.5, 0.1)), ("AliMark", (0.52, 0.9))):
        made_up.watermark(method, 5.0, {"chat": 0.5})
        for row, value in zip(made_up.results["rows"][-2:], values):
            row["tpr"]["0.01"] = estimate(value)
    table = rates.overview(made_up.results)[0]
    assert table.unranked == "Too few texts to rank, since the interval of the best overlaps another: no attack."
    assert [[cell.mark for cell in line.cells[1:]] for line in table.lines] == [["", "second"], ["", "best"]]
    made_up.results["rows"][-1]["tpr"]["0.01"] = estimate(0.12)
    table = rates.overview(made_up.results)[0]
    assert table.unranked == "Too few texts to rank, since the interval of the best overlaps another: in every column."
    assert "there are too few texts to rank them" in rates.summary(made_up.results)


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
            {"method": "AliMark", "detection": detection, "sentences": 128, "texts": 1, "seconds": 0.5}
        )
    first, second = made_up.results["rows"]
    assert beside(made_up.results, first) == (1.0, "")
    assert beside(made_up.results, second) is None  # the paper has figures for its full detection only
    (table,) = tables.runtime(made_up.results)
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["AliMark", "", "0.500", "0.340"],
        ["AliMark", "no restructuring", "0.500", "0.0700"],
    ]


def test_every_table_of_rates_names_its_statistic() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5})
    made_up.watermark("EXP", 5.0, {"chat": 0.5})
    for part in ("rows", "human"):
        for row in made_up.results[part]:
            row["statistic"] = "score" if row["method"] == "EXP" else "z"
    every = [*rates.overview(made_up.results), *rates.details(made_up.results), *tables.human(made_up.results)]
    assert len(every) == 5
    for table in every:
        assert "Statistic: the method's own z for AliMark; the score standardised by random keys for EXP." in table.note


def test_the_mean_statistic_of_p_values_is_named_as_their_logarithm() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {})
    made_up.results["human"][0]["statistic"] = "p"
    [table] = tables.human(made_up.results)
    assert "Statistic: -log10 of the p-value by random keys." in table.note


def test_both_readings_of_the_papers_rates_and_a_note_about_them() -> None:
    made_up = MadeUp()
    made_up.results["paper"] = paper.values("main")
    made_up.watermark("AliMark", 5.0, {"pegasus": 0.5, "delete 0.3": 0.5})
    made_up.watermark("PMark", 5.0, {"pegasus": 0.5, "delete 0.3": 0.5})
    one, five, auroc = rates.overview(made_up.results)
    for table, label in ((one, "ours at 0.1%"), (five, "ours at 0.5%")):
        assert [column.label for column in table.columns if column.over == "pegasus"] == ["ours", label, "paper"]
        assert "by interpolation, and prints the results as TPR@1% and TPR@5%" in table.note
        assert (
            sum(column.label == label for column in table.columns) == 2
        )  # not beside attacks that the paper has no figure for
    assert "by interpolation" not in auroc.note
    row = made_up.results["rows"][1]
    place = [column.label for column in one.columns].index("ours at 0.1%", 4)
    assert one.lines[0].cells[place].text == f"{100 * row['tpr_public']['0.01']:.1f}"
    [details] = rates.details(made_up.results)
    assert [column.label for column in details.columns if column.over == "TPR@5%"] == ["ours", "ours at 0.5%", "paper"]


def test_rejected_answers_and_failures_stand_in_every_table() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5, "delete 0.3": 0.5})
    made_up.watermark("PMark", 5.0, {"chat": 0.5, "delete 0.3": 0.5})
    for row in made_up.results["rows"]:
        hit = row["attack"] == "chat"
        row |= {"texts": 90 if hit else 100, "failed": 10 if hit else 0, "retried": 25 if hit else 0}
        if hit:
            row["with_failures"] = {
                "auroc": estimate(0.5), "tpr": {"0.01": estimate(0.123)}, "tpr_nominal": {"0.01": estimate(0.2)},
            }  # fmt: skip
    overview = rates.overview(made_up.results)
    for table in overview:
        assert "chat: 25.0% with rejected answers, 10.0% failed." in table.note
        assert "delete" not in table.note
    assert overview[0].lines[0].cells[2].small.endswith("; all 12.3")
    assert "all" not in overview[0].lines[0].cells[1].small
    [details] = rates.details(made_up.results)
    labels = [column.label for column in details.columns]
    line = next(line for line in details.lines if line.group == "chat")
    assert [line.cells[labels.index(name)].text for name in ("failed", "rejected answers")] == ["10", "25.0%"]
    assert line.cells[labels.index("TPR@1%")].small.endswith("; all 12.3")


def test_an_attack_with_a_preset_stands_beside_the_papers() -> None:
    made_up = MadeUp()
    made_up.results["paper"] = paper.values("main")
    made_up.watermark("AliMark", 5.0, {"pegasus": 0.5})
    row = made_up.results["rows"][1]
    row["attack"] = "pegasus (preset paper)"
    assert beside(made_up.results, row) == (0.956, "")


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
    assert "Under attack, PMark (50.0%) and AliMark (40.0%) are found most on average" in rates.summary(made_up.results)
    for row in made_up.results["rows"]:
        row["tpr"]["0.01"] = estimate((row["tpr"]["0.01"] or estimate(0))["value"], 8000)
    assert rates.summary(made_up.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 98.0% to 100.0%. Under attack, PMark is found most, "
        "on average in 50.0% of the texts; next comes AliMark (40.0%)."  # of the attack that both met
    )
