"""The tables of a report as cells: their figures, and the paper's beside them."""

from collections.abc import Mapping
from typing import Any

from made_up import MadeUp, estimate, lone_results

from alimark.lab.bench import paper, tables
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Results


def test_rates_that_no_row_has_are_left_out() -> None:
    results = lone_results()
    titles = [metric.title for metric in tables.metrics(results["rows"])]
    assert titles == ["TPR@1%", "TPR@5%", "AUROC", "TPR@0.5%", "p ≤ 0.01", "p ≤ 0.05"]


def test_false_positives_beyond_doubt_are_pointed_out() -> None:
    results = lone_results()
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {})
    results["human"] = made_up.results["human"]
    for value, high in ((0.05, False), (0.2, True)):
        results["human"][0]["false_positives"]["0.05"] = estimate(value, 160)
        (table,) = tables.human(results)
        assert [column.label for column in table.columns][-2:] == ["p ≤ 0.01", "p ≤ 0.05"]
        assert table.lines[0][-1].high == high


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
    assert [[cell.text for cell in line] for line in table.lines] == [
        ["AliMark", "", "128", "1", "0.500", "0.340"],
        ["AliMark", "no restructuring", "128", "1", "0.500", "0.0700"],
    ]


def test_every_table_of_rates_names_its_statistic() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5})
    made_up.watermark("EXP", 5.0, {"chat": 0.5})
    for part in ("rows", "human"):
        for row in made_up.results[part]:
            row["statistic"] = "score" if row["method"] == "EXP" else "z"
    for table in (*tables.details(made_up.results), *tables.human(made_up.results)):
        assert "Statistic: the method's own z for AliMark; the score standardised by random keys for EXP." in table.note


def test_rejected_answers_and_failures_stand_in_the_table() -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5, "delete 0.3": 0.5})
    for row in made_up.results["rows"]:
        hit = row["attack"] == "chat"
        row |= {"texts": 90 if hit else 100, "failed": 10 if hit else 0, "retried": 25 if hit else 0}
        if hit:
            row["with_failures"] = {
                "auroc": estimate(0.5), "tpr": {"0.01": estimate(0.123)}, "tpr_nominal": {"0.01": estimate(0.2)},
            }  # fmt: skip
    [table] = tables.details(made_up.results)
    labels = [column.label for column in table.columns]
    clean, chat, _ = table.lines
    cells = [chat[labels.index(name)].text for name in ("attack", "failed", "rejected answers")]
    assert cells == ["chat", "10", "25.0%"]
    assert chat[labels.index("TPR@1%")].small.endswith("; all 12.3")
    assert "all" not in clean[labels.index("TPR@1%")].small


def test_names_say_only_what_differs() -> None:
    made_up = MadeUp()
    for data in ("booksum", "c4"):
        made_up.watermark("AliMark", 5.0, {"chat": 0.5}, data=data, grid={"block_size": 8})
    [table] = tables.details(made_up.results)
    assert [column.label for column in table.columns][:4] == ["data set", "block size", "method", "attack"]
    assert [[cell.text for cell in line[:4]] for line in table.lines] == [
        [data, "8", "AliMark", attack] for data in ("booksum", "c4") for attack in ("no attack", "chat")
    ]


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
    assert tables.summary(made_up.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 100.0% (AliMark). "
        "TPR@1% under attack, on average: 65.0% (AliMark)."
    )
    made_up.watermark("PMark", 5.0, {"chat": 0.5})
    for row, value in zip(made_up.results["rows"][3:], (0.98, 0.5)):
        row["tpr"]["0.01"] = estimate(value)
    assert tables.summary(made_up.results).endswith(
        "TPR@1% under attack, on average: 50.0% (PMark), 40.0% (AliMark)."  # of the attack that both met
    )
