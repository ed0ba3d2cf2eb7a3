"""The report: every table and plot of made-up results is there and says what they say; hostile text stays text."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from alimark.bench import cells, paper, plots, rates, report, sheet, tables
from alimark.bench.results import Estimate, Example, Human, Results, Row, Where, load, save
from alimark.bench.shape import PALETTE, Paper, colours
from alimark.errors import MissingExtra

HOSTILE = '<script>alert("x")</script> & <b>bold</b> | `code` *stars* <img src=http://x.example/a.png>'

WORDS = "the old sailor sold his boat to a young doctor and nobody had expected such a thing in that village".split()


def estimate(value: float, count: int = 80) -> Estimate:
    reach = 1.96 * (value * (1 - value) / count + 0.0004) ** 0.5
    return {"value": value, "low": max(0.0, value - reach), "high": min(1.0, value + reach), "count": count}


def share(values: Sequence[float], at_most: float) -> Estimate:
    return estimate(sum(value <= at_most for value in values) / len(values), len(values))


class MadeUp:
    """Results of a run that never was: methods of different strength under attacks of different strength."""

    def __init__(
        self, *, name: str = "main", title: str = "All methods under attack", seed: int = 3, texts: int = 80
    ) -> None:
        self.chance, self.random = np.random.default_rng(seed), random.Random(seed)
        self.texts = texts
        self.results: Results = {
            "version": 1, "name": name, "title": title, "recipe": 'title = "made up"\nseed = 3\n',
            "made": {"versions": {"alimark": "0.1.0", "python": "3.11.7"}, "machine": {"cores": 2}, "seed": seed,
                     "when": "2026-11-15 09:00", "seconds": {"generate": 812.25}},
            "data": [], "rows": [], "human": [], "cost": [], "quality": [], "runtime": [], "null": {}, "examples": [],
            "paper": [],
        }  # fmt: skip

    def where(self, method: str, data: str, llm: str, grid: dict[str, Any] | None, detection: str) -> Where:
        return {"method": method, "detection": detection, "llm": llm, "data": data, "grid": grid or {}}

    def watermark(
        self,
        method: str,
        strength: float,
        attacks: dict[str, float],
        *,
        data: str = "booksum",
        llm: str = "opt-1.3b",
        grid: dict[str, Any] | None = None,
        detection: str = "",
    ) -> None:
        """Rows, human texts and cost; an attack takes its share of the strength."""
        where = self.where(method, data, llm, grid, detection)
        human = self.chance.normal(0, 1, 2 * self.texts).tolist()
        p_values = self.chance.uniform(0, 1, 2 * self.texts).tolist()
        rates = {"0.01": share(p_values, 0.01), "0.05": share(p_values, 0.05)}
        scored = {"scores": human, "p_values": p_values, "texts": self.texts, "keys": 2, "false_positives": rates}
        self.results["human"].append(cast(Human, {**where, **scored}))
        for attack, left in {"none": 1.0, **attacks}.items():
            self.results["rows"].append(self.row(where, attack, strength * left, human))
        self.results["cost"].append({**where, "texts": self.texts, "tokens": 9120.4, "seconds": 14.23})

    def row(self, where: Where, attack: str, strength: float, human: Sequence[float]) -> Row:
        name, _, rate = attack.partition(" ")
        failed = 0 if attack == "none" else self.random.choice([0, 0, 2])
        scores = self.chance.normal(strength, 1, self.texts - failed).tolist()
        at = {level: float(np.quantile(human, 1 - float(level))) for level in ("0.01", "0.05")}
        p_values = [min(1.0, float(np.exp(-(max(0.0, score) ** 2) / 2))) for score in scores]
        middle = {"merge": 0.8, "chat": 0.9, "delete": 0.7, "insert": 1.3}.get(name, 1.0)
        return {
            **where, "attack": attack, "attack_name": name, "rate": float(rate) if rate else None, "texts": len(scores),
            "failed": failed, "negatives": len(human),
            "auroc": estimate(float(np.mean(np.greater.outer(scores, human))), len(scores)),
            "tpr": {**{level: estimate(float(np.mean(np.array(scores) > cut)), len(scores)) for level, cut in at.items()},
                    "0.005": estimate(float(np.mean(np.array(scores) > 2.58))), "0.001": None},
            "tpr_nominal": {"0.01": share(p_values, 0.01), "0.05": share(p_values, 0.05)},
            "cosine": None if attack == "none" else estimate(0.87),
            "deltas": [] if attack == "none" else self.chance.normal(middle, 0.12, len(scores)).clip(0.1).tolist(),
            "scores": scores, "p_values": p_values,
        }  # fmt: skip

    def quality(self, method: str, level: float, *, data: str = "booksum", grid: dict[str, Any] | None = None) -> None:
        self.results["quality"].append(
            {
                "method": method, "llm": "opt-1.3b", "data": data, "grid": grid or {}, "oracle": "qwen2.5-coder-1.5b",
                "perplexity": (level * self.chance.lognormal(0, 0.25, 50)).tolist(), "distinct": estimate(0.91),
                "repetition": estimate(0.02), "diversity": None if method == "human" else estimate(0.55),
            }
        )  # fmt: skip

    def example(self, method: str, attack: str, marked: str | None = None) -> None:
        text = " ".join(self.random.choices(WORDS, k=120)).capitalize() + "."
        self.results["examples"].append(
            Example(
                method=method, attack=attack, prompt="W. H. R. Rivers was born in Kent.", human=text, marked=marked or text,
                attacked=" ".join(self.random.choices(WORDS, k=30)),
                scores={"human": 0.12, "marked": 4.136, "attacked": 1.46},
                p_values={"human": 0.44, "marked": 0.0009990, "attacked": 0.071},
            )
        )  # fmt: skip


PROBES = {f"{name} {rate:g}": 1 - loss * rate for name, loss in (("delete", 1.6), ("reorder", 0.5))
          for rate in (0.1, 0.5)}  # fmt: skip


def main_results() -> Results:
    made = MadeUp()
    for data in ("booksum", "c4"):
        for method, strength in (("SemStamp", 4.0), ("PMark", 4.5), ("AliMark", 5.5)):
            probes = PROBES if data == "booksum" else {}
            made.watermark(method, strength, probes | {"pegasus": 0.8, "chat": 0.4}, data=data)
        for method, level in (
            ("human", 22.0),
            ("unmarked", 12.0),
            ("SemStamp", 14.0),
            ("PMark", 12.5),
            ("AliMark", 13.2),
        ):
            made.quality(method, level, data=data)
        made.results["data"].append({"set": data, "texts": 80, "sentences": 12, "short": 1204, "repeats": 3})
    for detection, slope in (("full", 1.1), ("no restructuring", 0.7)):
        for count in (4, 8, 16, 32, 64, 128):
            made.results["runtime"].append(
                {"method": "AliMark", "detection": detection, "sentences": count, "seconds": 0.004 * count**slope}
            )
    for size, spread in (("4", 0.06), ("8", 0.04), ("16", 0.03)):
        made.results["null"][size] = made.chance.normal(0.4 + 0.02 * len(size), spread, 300).tolist()
    made.example("AliMark", "chat")
    made.example("PMark", "pegasus", marked=HOSTILE)
    made.results["paper"] = paper.values("main")
    return made.results


def grid_results() -> Results:
    made = MadeUp(name="block size", title="Block size", seed=5)
    for size, strength in ((2, 3.0), (8, 5.2)):
        made.watermark("AliMark", strength, {"pegasus": 0.8, "chat": 0.5}, grid={"block_size": size})
        made.quality("AliMark", 12 + size / 10, grid={"block_size": size})
    made.results["paper"] = paper.values("perplexity")
    return made.results


def lone_results() -> Results:
    """One method, nothing but rows."""
    made = MadeUp(name="lone", title="AliMark alone", seed=7)
    made.watermark("AliMark", 5.0, PROBES)
    made.results["human"], made.results["cost"], made.results["made"], made.results["recipe"] = [], [], {}, ""
    return made.results


# --- What is written


@dataclass
class Written:
    folder: Path
    html: str
    markdown: str

    @property
    def page(self) -> Page:
        return Page(self.html)


@dataclass
class Shown:
    """A table as a reader sees it: headings, and rows of cells; a cell's small print follows after a bar."""

    title: str
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def row(self, *start: str) -> list[str]:
        (found,) = [row for row in self.rows if row[: len(start)] == list(start)]
        return found


class Page(HTMLParser):
    """What is on a page; fails where tags do not match."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[Shown] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append(Shown(dict(attrs).get("aria-label") or ""))
        if tag == "tr" and self.tables:
            self.tables[-1].rows.append([])
        if tag == "td":
            self.tables[-1].rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open and self.open[-1] not in ("tr", "tbody"):
            mark = {"b": "*", "u": "_", "small": "|"}.get(self.open[-1], "")
            self.tables[-1].rows[-1][-1] += mark + data
        elif "thead" in self.open and self.open[-1] == "th":
            self.tables[-1].headings.append(data)
        elif self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)

    def named(self, start: str) -> list[Shown]:
        return [table for table in self.tables if table.title.startswith(start)]

    def plots(self) -> list[str]:
        return [attributes["aria-label"] or "" for tag, attributes in self.tags if tag == "svg"]


def write(folder: Path, *results: Results) -> Written:
    page, text = report.write(folder, results)
    assert (page, text) == (folder / "report.html", folder / "report.md")
    return Written(folder, page.read_text("utf-8"), text.read_text("utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("report"), main_results(), grid_results(), lone_results())


@pytest.fixture(scope="module")
def page(written: Written) -> Page:
    return written.page


SECTIONS = ["Detection", "What the attacks did", "Human texts", "Quality", "Cost", "Runtime", "Data", "Examples",
            "How it was made"]  # fmt: skip


def test_every_section_of_every_recipe(page: Page) -> None:
    assert page.headings == [
        "Watermarks under attack",
        "All methods under attack", *SECTIONS,
        "Block size", "Detection", "What the attacks did", "Human texts", "Quality", "Cost", "How it was made",
        "AliMark alone", "Detection", "What the attacks did",
    ]  # fmt: skip


def test_every_table_is_there(page: Page, written: Written) -> None:
    starts = ["TPR@1%: ", "TPR@5%: ", "AUROC: ", "Every figure, attack by attack", "Human texts taken for marked ones",
              "How the texts read", "What a marked text took to write", "Seconds to detect", "Texts that were used",
              "What made this", "Detection by attack"]  # fmt: skip
    for start in starts:
        assert page.named(start), start
        assert f"**{start}" in written.markdown
    assert all(table.rows for table in page.tables)


def test_every_plot_is_there(page: Page, written: Written) -> None:
    starts = ["Texts found against the rate of an attack", "ROC curves by attack (logarithmic axis)",
              "ROC curves by attack (linear axis)", "Scores of human, marked and attacked texts",
              "Sentences after an attack", "Perplexity of the texts", "Scores (z) of human texts",
              "Seconds to detect one text", "Texts found at 5% false positives, by block size"]  # fmt: skip
    for start in starts:
        assert [title for title in page.plots() if title.startswith(start)], start
        assert f"![{start}" in written.markdown
    linked = re.findall(r"!\[[^\]]*\]\((plots/[a-z0-9-]+\.png)\)", written.markdown)
    files = sorted(str(file.relative_to(written.folder)) for file in written.folder.glob("plots/*"))
    assert sorted(linked) == files
    assert len(files) == len(page.plots())
    assert all((written.folder / file).read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_page_stands_by_itself(page: Page, written: Written) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not re.search(r"url\((?!#)|@import", written.html)
    assert "prefers-color-scheme: dark" in written.html
    assert 'name="viewport"' in written.html


def test_links_and_ids_lead_somewhere(page: Page, written: Written) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] for _, attributes in page.tags if attributes.get("href")}
    targets |= {f"#{name}" for name in re.findall(r"url\(#([^)]*)\)", written.html)}
    assert targets <= {f"#{one}" for one in ids}
    assert {"#main", "#block-size", "#lone", "#main-quality"} <= targets
    for slug in ("main", "block-size", "lone"):
        assert f"(#{slug})" in written.markdown
        assert f'<a id="{slug}"></a>' in written.markdown


# --- What the tables say


def find(results: Results, **wanted: Any) -> Row:
    (found,) = [row for row in results["rows"] if wanted.items() <= row.items()]
    return found


def test_a_figure_its_interval_and_the_papers(page: Page) -> None:
    table, row = page.named("TPR@1%")[0], find(main_results(), method="PMark", data="c4", attack="pegasus")
    found = row["tpr"]["0.01"]
    assert found is not None
    line = [line for line in table.rows if line[:1] == ["PMark"]][1]  # booksum's, then c4's
    columns = [
        "method",
        "ours",
        "paper",
        *(f"{r}" for _ in range(2) for r in (0.1, 0.5)),
        "ours",
        "paper",
        "ours",
        "paper",
    ]
    assert table.headings == ["method", "no attack", "delete", "reorder", "pegasus", "chat", *columns[1:]]
    cell = line[columns.index("ours", 2)]
    assert cell.lstrip("*_") == f"{100 * found['value']:.1f}|{100 * found['low']:.1f}–{100 * found['high']:.1f}"
    assert line[columns.index("ours", 2) + 1] == "*78.6"  # the paper's best of these three
    assert line[-1].lstrip("*_") == "26.4|gpt-3.5"  # the paper's name for it


def test_the_same_figures_in_markdown(written: Written) -> None:
    found = find(main_results(), method="PMark", data="c4", attack="pegasus")["tpr"]["0.01"]
    assert found is not None
    lines = [line for line in written.markdown.splitlines() if line.startswith("| c4 | PMark |")]
    assert f"{100 * found['value']:.1f}" in lines[0]
    assert f"({100 * found['low']:.1f}–{100 * found['high']:.1f}) | **78.6** |" in lines[0]
    assert "| _26.4_ (gpt-3.5) |" in lines[0] or "| 26.4 (gpt-3.5) |" in lines[0]


def test_texts_and_failures_are_counted(page: Page) -> None:
    table = page.named("Every figure, attack by attack: booksum")[0]
    rows = [row for row in main_results()["rows"] if row["data"] == "booksum"]
    assert table.headings[-11:-6] == ["texts", "failed", "human scores", "meaning kept", "sentences after / before"]
    found = [(line[0], *line[-5:-2]) for line in table.rows if line]
    counted = [(row["method"], str(row["texts"]), str(row["failed"]), str(row["negatives"])) for row in rows]
    assert sorted(found) == sorted(counted)


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
    found = cells.marked(shown_as("90.0", "80.0", "10.0", "20.0"), ["a", "a", "b", "b"])
    assert [cell.mark for cell in found] == ["best", "second", "second", "best"]


def test_one_method_is_ranked_over_the_grid_and_several_within(page: Page) -> None:
    table = page.named("AUROC")[1]
    assert [line[:2] for line in table.rows if line] == [["2", "AliMark"], ["8", "AliMark"]]
    assert any(cell.startswith("*") for line in table.rows for cell in line)
    made = MadeUp()
    for sentences in (4, 12):
        for method, strength in (("PMark", 2.0), ("AliMark", 6.0)):
            made.watermark(method, strength * sentences / 12, {}, grid={"sentences": sentences})
    several = rates.overview(made.results)[0]
    assert several.ranked == "methods at the same settings"
    marks = [(line.cells[0].text, line.cells[1].text, line.cells[2].mark) for line in several.lines]
    assert marks == [
        ("4", "PMark", "second"),
        ("4", "AliMark", "best"),
        ("12", "PMark", "second"),
        ("12", "AliMark", "best"),
    ]


def test_false_positives_beyond_doubt_are_pointed_out() -> None:
    results = lone_results()
    made = MadeUp()
    made.watermark("AliMark", 5.0, {})
    results["human"] = made.results["human"]
    for value, mark in ((0.05, ""), (0.2, "high")):
        results["human"][0]["false_positives"]["0.05"] = estimate(value, 160)
        (table,) = tables.human(results)
        assert [column.label for column in table.columns][-2:] == ["p ≤ 0.01", "p ≤ 0.05"]
        assert table.lines[0].cells[-1].mark == mark


def test_quality_cost_runtime_data(page: Page) -> None:
    results = main_results()
    low, middle, high = np.quantile(results["quality"][0]["perplexity"], (0.25, 0.5, 0.75))
    quality = page.named("How the texts read")[0].rows
    assert ["human", "50", f"{middle:.1f}|{low:.1f}–{high:.1f}"] in [line[:3] for line in quality]
    assert ["AliMark", "80", "9,120", "14.2"] in page.named("What a marked text took")[0].rows
    runtime = page.named("Seconds to detect")[0]
    assert runtime.row("AliMark", "full")[2:4] == ["0.0184", "0.0394"]
    assert page.named("Texts that were used")[0].rows[-1] == ["c4", "80", "12", "1,204", "3"]
    made = page.named("What made this")[0]
    assert made.row("versions") == ["versions", "alimark 0.1.0, python 3.11.7"]
    assert made.row("seed") == ["seed", "3"]


def test_the_papers_perplexity_of_the_same_setting(page: Page) -> None:
    table = page.named("How the texts read")[1]
    at = {line[0]: line[4] for line in table.rows if line}
    assert at == {"2": "12.9", "8": "13.2"}


# --- The paper's figures


def beside(results: Results, row: Mapping[str, Any], metric: str = "tpr@0.05") -> tuple[float, str] | None:
    return Paper(results).find(row, metric)


def test_the_papers_figure_of_another_llm_says_so() -> None:
    made = MadeUp()
    made.watermark("alimark", 5.0, {"chat": 0.5}, llm="smollm2-135m", data="Booksum")
    made.results["paper"] = paper.values("main")
    assert beside(made.results, made.results["rows"][0]) == (1.0, "opt-1.3b")
    assert beside(made.results, made.results["rows"][1]) == (0.666, "opt-1.3b, gpt-3.5")
    made.watermark("AliMark", 5.0, {}, llm="qwen3-1.7b")
    assert beside(made.results, made.results["rows"][-1]) == (paper.value(
        "main", "AliMark", "qwen3-1.7b", "booksum", "none", "tpr@0.05"), "")  # fmt: skip
    made.watermark("AliMark", 5.0, {}, data="another")
    assert beside(made.results, made.results["rows"][-1]) is None


def test_the_papers_figures_keep_to_their_setting() -> None:
    made = MadeUp()
    made.results["paper"] = [*paper.values("main"), *paper.values("candidates")]
    for candidates in (8, 24):
        made.watermark("AliMark", 5.0, {}, grid={"candidates": candidates})
    assert beside(made.results, made.results["rows"][0]) == (0.974, "")
    assert beside(made.results, made.results["rows"][1]) is None


def test_a_name_with_its_owner_is_the_same_setting() -> None:
    made = MadeUp()
    made.results["paper"] = paper.values("embedder")
    made.watermark("AliMark", 5.0, {}, grid={"embedder": "sentence-transformers/all-distilroberta-v1"})
    assert beside(made.results, made.results["rows"][0]) == (0.998, "")


def test_what_quality_is_compared_with_has_no_settings_unless_they_matter() -> None:
    made = MadeUp()
    made.quality("unmarked", 12.0, grid={"block_size": 2})
    made.quality("AliMark", 13.0, grid={"block_size": 2})
    (table,) = tables.quality(made.results)
    assert [[cell.text for cell in line.cells[:2]] for line in table.lines] == [["", "unmarked"], ["2", "AliMark"]]
    made.quality("unmarked", 12.0, grid={"block_size": 4})
    (table,) = tables.quality(made.results)
    assert [line.cells[0].text for line in table.lines] == ["2", "2", "4"]


def test_the_papers_ways_of_detection_stand_beside_ours() -> None:
    made = MadeUp()
    made.results["paper"] = [*paper.values("main"), *paper.values("runtime")]
    for detection in ("", "no restructuring"):
        made.watermark("AliMark", 5.0, {}, detection=detection)
        made.results["runtime"].append({"method": "AliMark", "detection": detection, "sentences": 128, "seconds": 0.5})
    first, second = made.results["rows"]
    assert beside(made.results, first) == (1.0, "")
    assert beside(made.results, second) is None  # the paper has figures for its full detection only
    (table,) = tables.runtime(made.results)
    assert [[cell.text for cell in line.cells] for line in table.lines] == [
        ["AliMark", "", "0.500", "0.340"],
        ["AliMark", "no restructuring", "0.500", "0.0700"],
    ]


# --- In a sentence


def test_the_summary() -> None:
    made = MadeUp()
    made.watermark("AliMark", 5.0, {"chat": 0.5, "pegasus": 0.9})
    for row, value in zip(made.results["rows"], (1.0, 0.4, 0.9)):
        row["tpr"]["0.01"] = estimate(value)
    assert rates.summary(made.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 100.0%. Under attack 65.0% on average; least under "
        "chat (40.0%)."
    )
    made.watermark("PMark", 5.0, {"chat": 0.5})
    for row, value in zip(made.results["rows"][3:], (0.98, 0.5)):
        row["tpr"]["0.01"] = estimate(value)
    assert rates.summary(made.results) == (
        "Texts by opt-1.3b to prompts of booksum. TPR@1% without attack: 98.0% to 100.0%. Under attack, PMark is found most, "
        "on average in 50.0% of the texts; next comes AliMark (40.0%)."  # of the attack that both met
    )


# --- Hostile text


def test_examples_are_text_whatever_they_hold(written: Written, page: Page) -> None:
    assert "<script>alert" not in written.html
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; &lt;b&gt;bold" in written.html
    assert "marked<small>score 4.14</small><small>p = 0.000999</small>" in written.html
    assert "<script" not in written.markdown
    assert '> &lt;script&gt;alert("x")' in written.markdown
    assert r"\| \`code\` \*stars\* &lt;img" in written.markdown
    assert [tag for tag, _ in page.tags].count("img") == 0


def test_long_texts_are_folded_and_whole(page: Page, written: Written) -> None:
    text = main_results()["examples"][0]["human"]
    assert f"<p>{text}</p></details>" in written.html
    assert "<p>W. H. R. Rivers was born in Kent.</p>" in written.html
    assert f"> {text}" in written.markdown


@pytest.mark.parametrize(
    "text", ["# heading", "- point", "1. first", "===", "> quote", "![x](http://x.example/x.png)", "&lt;"]
)
def test_nothing_becomes_markdown(text: str) -> None:
    from alimark.bench.markdown import _quote

    quoted = _quote(text)
    assert not re.match(r"> ([#>=-]|\d\.|!\[)", quoted)
    assert re.sub(r"\\(?=\W)", "", unescape(quoted.removeprefix("> "))) == text


def test_names_are_no_markup_and_no_paths(tmp_path: Path) -> None:
    made = MadeUp(name="../../x<y>", title=HOSTILE)
    made.watermark("$a_1$ <b>", 4.0, {"chat 0.5": 0.5}, detection="_with & without", data='"><i>')
    made.results["recipe"] = "```\n</pre><script>\n"
    made.results["made"] = {"<i>": ["<u>", {"a": True}]}
    twin = MadeUp(name="X/Y").results
    twin["runtime"] = [{"method": "_a", "detection": "", "sentences": 4, "seconds": 0.1}]
    got = write(tmp_path / "report", made.results, twin)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report"]
    assert [tag for tag, _ in got.page.tags if tag in ("i", "script")] == ["script"]
    assert "````toml\n```\n</pre><script>\n````" in got.markdown
    drawn = {file.name for file in (tmp_path / "report/plots").iterdir()}
    assert {"x-y-roc.png", "x-y-rates.png", "x-y-2-runtime.png"} <= drawn


# --- What is missing, what stays the same


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    bare = MadeUp(title="").results
    bare["made"], bare["recipe"] = {}, ""
    got = write(tmp_path / "bare", bare)
    assert got.page.headings == ["main"]
    assert not got.page.tables
    assert not got.page.plots()
    assert got.markdown == "# main\n"
    assert not (tmp_path / "bare/plots").exists()


def test_one_recipe_has_no_contents_and_no_empty_parts(tmp_path: Path) -> None:
    made = MadeUp(title="No attack")
    made.watermark("AliMark", 5.0, {})
    made.results["human"], made.results["cost"] = [], []
    for row in made.results["rows"]:
        row["cosine"], row["tpr"]["0.005"] = None, None
    got = write(tmp_path, made.results)
    assert got.page.headings == ["No attack", "Detection", "How it was made"]
    assert "Contents" not in got.html
    assert got.page.plots() == ["Scores of human, marked and attacked texts"]
    (table,) = got.page.named("Detection by attack")
    assert table.headings == [
        "attack",
        "TPR@1%",
        "TPR@5%",
        "AUROC",
        "p ≤ 0.01",
        "p ≤ 0.05",
        "texts",
        "failed",
        "human scores",
    ]


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    made = MadeUp()
    made.watermark("AliMark", 5.0, {"chat": 0.5}, grid={"block_size": 8})
    results = made.results
    save(tmp_path / "results.json", results)
    first, second = write(tmp_path / "1", results), write(tmp_path / "2", load(tmp_path / "results.json"))
    for file in first.folder.rglob("*.*"):
        assert file.read_bytes() == (second.folder / file.relative_to(first.folder)).read_bytes(), file


def test_a_report_that_cannot_be_made_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write(tmp_path, MadeUp(title="Old").results)

    def fail(chapters: object) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr("alimark.bench.markdown.page", fail)
    with pytest.raises(RuntimeError):
        report.write(tmp_path, [MadeUp(title="New").results])
    assert (tmp_path / "report.html").read_text("utf-8") == old.html
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "report.md"]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"alimark\[bench\]"):
        report.write(tmp_path / "report", [lone_results()])
    assert not (tmp_path / "report").exists()


# --- Plots


def test_a_method_has_one_colour_throughout(written: Written) -> None:
    found = colours([lone_results(), main_results()])
    assert found["AliMark"] == PALETTE[0]
    assert found["SemStamp"] == PALETTE[1]
    assert found["human"] not in PALETTE
    assert len({found[method] for method in ("AliMark", "SemStamp", "PMark", "human", "unmarked")}) == 5
    # On the written page AliMark comes third, and is the only method of the last two recipes.
    later = written.html[written.html.index('<article id="block-size"') :]
    assert PALETTE[2] in later
    assert PALETTE[0] not in later


def test_the_page_gives_plots_their_ink(written: Written) -> None:
    assert sheet.INK not in written.html
    assert sheet.RULE not in written.html
    assert "currentColor" in written.html


def test_roc_curve_against_a_count() -> None:
    chance = np.random.default_rng(1)
    marked, human = chance.integers(0, 12, 40).tolist(), chance.integers(-4, 8, 60).tolist()
    false, true = plots.roc_curve(marked, human)
    points = [(0.0, 0.0)]
    for level in sorted({*marked, *human}, reverse=True):
        points.append((sum(x >= level for x in human) / 60, sum(x >= level for x in marked) / 40))
    expected = np.interp([x for x, _ in points], false, true)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert np.all(np.diff(false) >= 0)
    assert np.all(np.diff(true) >= 0)
    sure = [i for i, (x, _) in enumerate(points) if [one for one, _ in points].count(x) == 1]
    assert np.allclose(expected[sure], [points[i][1] for i in sure])
    assert float(np.trapezoid(true, false)) == pytest.approx(
        np.mean([(a > b) + 0.5 * (a == b) for a in marked for b in human])
    )


# --- In a browser


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no chromium, chromium-browser or google-chrome on this machine to open the page in")


def test_in_a_browser(written: Written, tmp_path: Path) -> None:
    """Nothing is complained of, the script ran, and everything that was written is in the document."""
    page = (written.folder / "report.html").as_uri()
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
               "--enable-logging=stderr", "--v=0", "--dump-dom", page]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == len(written.page.plots())
    assert done.stdout.count("<table") == len(written.page.tables)
    assert 'role="button"' in done.stdout
