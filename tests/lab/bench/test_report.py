"""The report of made-up results: every table and plot, the figures in them, and escaping of hostile text."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import HOSTILE, MadeUp, grid_results, lone_results, main_results
from reader import Page, Written, write

from alimark.errors import MissingExtra
from alimark.lab.bench import report
from alimark.lab.bench.results import load, save
from alimark.lab.bench.shape import PALETTE, colours
from browsers import browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("report"), main_results(), grid_results(), lone_results())


@pytest.fixture(scope="module")
def page(written: Written) -> Page:
    return written.page


SECTIONS = ["Detection", "Changes by the attacks", "Human texts", "Quality", "Cost", "Runtime", "Data", "Examples",
            "Settings and versions"]  # fmt: skip


def test_every_section_of_every_recipe(page: Page) -> None:
    assert page.headings == [
        "Watermarks under attack",
        "All methods under attack", *SECTIONS,
        "Block size", "Detection", "Changes by the attacks", "Human texts", "Quality", "Cost", "Settings and versions",
        "AliMark alone", "Detection", "Changes by the attacks",
    ]  # fmt: skip


def test_every_table_is_there(page: Page, written: Written) -> None:
    starts = ["Detection by attack", "False positives on human texts", "Text quality",
              "Cost of writing a marked text", "Seconds to detect", "Texts used",
              "Versions, machine"]  # fmt: skip
    for start in starts:
        assert page.named(start), start
        assert f"**{start}" in written.markdown
    assert all(table.rows for table in page.tables)


def test_every_plot_is_there(page: Page, written: Written) -> None:
    starts = ["Texts found against the rate of an attack", "ROC curves by attack", "Sentences after an attack",
              "Texts found at 5% false positives, by block size"]  # fmt: skip
    for start in starts:
        assert [title for title in page.plots() if title.startswith(start)], start
        assert f"![{start}" in written.markdown
    linked = re.findall(r"!\[[^\]]*\]\((plots/[a-z0-9-]+\.svg)\)", written.markdown)
    files = sorted(str(file.relative_to(written.folder)) for file in written.folder.glob("plots/*"))
    assert sorted(linked) == files
    assert len(files) == len(page.plots())
    assert all((written.folder / file).read_bytes().startswith(b"<?xml") for file in files)


def test_the_page_stands_by_itself(page: Page, written: Written) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed")
        assert (attributes.get("src") or "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
        assert (attributes.get("href") or "#").startswith("#"), (tag, attributes)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not re.search(r"url\((?!#)|@import", written.html)
    assert "prefers-color-scheme: dark" in written.html
    assert 'name="viewport"' in written.html


def test_links_and_ids_lead_somewhere(page: Page, written: Written) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] for _, attributes in page.tags if attributes.get("href")}
    targets |= {f"#{name}" for name in re.findall(r"url\(#([^)]*)\)", written.html)}
    assert targets <= {f"#{anchor}" for anchor in ids}
    assert {"#main", "#block-size", "#lone", "#main-quality"} <= targets
    for slug in ("main", "block-size", "lone"):
        assert f"(#{slug})" in written.markdown
        assert f'<a id="{slug}"></a>' in written.markdown


# --- What the tables say


def test_a_figure_its_interval_and_the_papers(page: Page, written: Written) -> None:
    table, rows = page.named("Detection by attack")[0], main_results()["rows"]
    rate: Any = next(
        row["tpr"]["0.01"] for row in rows if (row["method"], row["data"], row["attack"]) == ("PMark", "c4", "pegasus")
    )
    start = "data set|method|attack|TPR@1%|TPR@1%, paper|TPR@5%|TPR@5%, paper|AUROC|AUROC, paper"
    assert "|".join(table.headings).startswith(start)
    value, low, high = (f"{100 * rate[end]:.1f}" for end in ("value", "low", "high"))
    assert table.row("c4", "PMark", "pegasus")[3:5] == [f"{value}|{low}–{high}", "78.6"]
    assert table.row("c4", "PMark", "chat")[4] == "26.4|gpt-3.5"  # the paper's name for it
    [line] = [line for line in written.markdown.splitlines() if line.startswith("| c4 | PMark | pegasus |")]
    assert f"| {value} ({low}–{high}) | 78.6 |" in line


def test_texts_and_failures_are_counted(page: Page) -> None:
    table = page.named("Detection by attack")[0]
    end = "texts|failed|human scores|rejected answers|similarity of meaning|sentences after / before"
    assert "|".join(table.headings).endswith(f"|{end}")
    counts = [(*line[:2], *line[-6:-3]) for line in table.rows if line]
    counted = [
        (row["data"], row["method"], str(row["texts"]), str(row["failed"]), str(row["negatives"]))
        for row in main_results()["rows"]
    ]
    assert sorted(counts) == sorted(counted)


def test_quality_cost_runtime_data(page: Page) -> None:
    results = main_results()
    low, middle, high = np.quantile(results["quality"][0]["perplexity"], (0.25, 0.5, 0.75))
    quality = page.named("Text quality")[0].rows
    assert ["booksum", "human", "50", f"{middle:.1f}|{low:.1f}–{high:.1f}"] in [line[:4] for line in quality]
    assert ["booksum", "AliMark", "80", "9,120", "14.2"] in page.named("Cost of writing")[0].rows
    assert ["AliMark", "full", "8", "1", "0.0394"] in page.named("Seconds to detect")[0].rows
    assert page.named("Texts used")[0].rows[-1] == ["c4", "80", "12", "1,204", "3"]
    versions = page.named("Versions, machine")[0]
    assert versions.row("versions") == ["versions", "alimark 0.1.0, python 3.11.7"]
    assert versions.row("seed") == ["seed", "3"]


# --- Hostile text


def test_examples_are_text_whatever_they_hold(written: Written, page: Page) -> None:
    assert "<script>alert" not in written.html
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &lt;b&gt;bold" in written.html
    assert "marked<small>score 4.14</small><small>p = 0.000999</small>" in written.html
    assert "<script" not in written.markdown
    assert '> &lt;script&gt;alert("x")' in written.markdown
    assert r"\| \`code\` \*stars\* &lt;img" in written.markdown
    assert [tag for tag, _ in page.tags].count("img") == len(page.plots())


def test_long_texts_are_folded_and_whole(page: Page, written: Written) -> None:
    text = main_results()["examples"][0]["texts"][1]["text"]
    assert f"<p>{text}</p></details>" in written.html
    assert "<p>W. H. R. Rivers was born in Kent.</p>" in written.html
    assert f"> {text}" in written.markdown


@pytest.mark.parametrize(
    "text", ["# heading", "- point", "1. first", "===", "> quote", "![x](http://x.example/x.png)", "&lt;"]
)
def test_nothing_becomes_markdown(text: str) -> None:
    from alimark.lab.bench.report import _quote

    quoted = _quote(text)
    assert not re.match(r"> ([#>=-]|\d\.|!\[)", quoted)
    assert re.sub(r"\\(?=\W)", "", unescape(quoted.removeprefix("> "))) == text


def test_names_are_no_markup_and_no_paths(tmp_path: Path) -> None:
    made_up = MadeUp(name="../../x<y>", title=HOSTILE)
    made_up.watermark("$a_1$ <b>", 4.0, {"chat 0.5": 0.5}, detection="_with & without", data='"><i>')
    made_up.results["recipe"] = "```\n</pre><script>\n"
    made_up.results["made"] = {"<i>": ["<u>", {"a": True}]}
    twin = MadeUp(name="X/Y").results
    twin["runtime"] = [{"method": "_a", "detection": "", "sentences": 4, "texts": 1, "seconds": 0.1}]
    got = write(tmp_path / "report", made_up.results, twin)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report"]
    assert [tag for tag, _ in got.page.tags if tag in ("i", "script")] == ["script"]
    assert "````toml\n```\n</pre><script>\n````" in got.markdown
    drawn = {file.name for file in (tmp_path / "report/plots").iterdir()}
    assert {"x-y-roc.svg", "x-y-rates.svg"} <= drawn


def test_hostile_labels_stay_text_in_attributes_and_cells(tmp_path: Path) -> None:
    label = "\"'><script>alert(1)</script>{{ 7 * 7 }}"
    made_up = MadeUp(title=label)
    made_up.watermark(label, 4.0, {"chat": 0.5}, data=label, detection=label)
    made_up.example(label, label, marked=f"{label}\x00")
    made_up.results["made"], made_up.results["recipe"] = {"label": label}, label
    got = write(tmp_path, made_up.results)
    assert [tag for tag, _ in got.page.tags].count("script") == 1
    assert "<script>alert" not in got.html
    assert got.page.headings[0] == label
    assert got.page.named("Versions")[0].row("label")[1] == label
    assert "{{ 7 * 7 }}\ufffd</p>" in got.html


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


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    made_up = MadeUp()
    made_up.watermark("AliMark", 5.0, {"chat": 0.5}, grid={"block_size": 8})
    results = made_up.results
    save(tmp_path / "results.json", results)
    first, second = write(tmp_path / "1", results), write(tmp_path / "2", load(tmp_path / "results.json"))
    for file in first.folder.rglob("*.*"):
        assert file.read_bytes() == (second.folder / file.relative_to(first.folder)).read_bytes(), file


def test_a_report_that_cannot_be_made_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write(tmp_path, MadeUp(title="Old").results)

    def fail(chapters: object) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr("alimark.lab.bench.report.markdown", fail)
    with pytest.raises(RuntimeError):
        report.write(tmp_path, [MadeUp(title="New").results])
    assert (tmp_path / "report.html").read_text("utf-8") == old.html
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "report.md"]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"alimark\[lab\]"):
        report.write(tmp_path / "report", [lone_results()])
    assert not (tmp_path / "report").exists()


# --- Plots


def test_a_method_has_one_colour_throughout(written: Written) -> None:
    shades = colours([lone_results(), main_results()])
    assert shades["AliMark"] == PALETTE[0]
    assert shades["SemStamp"] == PALETTE[1]
    assert set(shades) == {"AliMark", "SemStamp", "PMark"}
    # On the written page AliMark comes third, and is the only method of the last two recipes.
    later = written.html[written.html.index('<article id="block-size"') :]
    assert PALETTE[2] in later
    assert PALETTE[0] not in later


# --- In a browser


@pytest.mark.browser
def test_in_a_browser(written: Written, tmp_path: Path) -> None:
    """The console has no messages, the script ran, and all plots and tables are in the document."""
    page = (written.folder / "report.html").as_uri()
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
               "--enable-logging=stderr", "--v=0", "--dump-dom", page]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<img") == len(written.page.plots())
    assert done.stdout.count("<table") == len(written.page.tables)
    assert 'role="button"' in done.stdout
