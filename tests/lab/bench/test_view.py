"""The local page on the records of a run: what it lists, how it compares texts, exports, and who may read it."""

import csv
import io
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from made_up import MadeUp
from typer.testing import CliRunner

from alimark.cli.main import app
from alimark.lab.bench import export, tables
from alimark.lab.bench.evaluate import evaluate
from alimark.lab.bench.recipe_files import to_toml
from alimark.lab.bench.results import save
from alimark.lab.bench.tables import Column, Table, TableCell
from alimark.lab.bench.view.answers import Answers, word_diff
from alimark.lab.bench.view.server import ViewServer
from alimark.lab.bench.workspace import Workspace
from browsers import browser
from small_recipes import recipe, records, rewrite_records, run

HOSTILE = '<img src=x onerror="document.title=1"> the end\ud800.'


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two watermarks; the first text that had sentences inserted holds markup."""
    folder = tmp_path_factory.mktemp("view") / "work"
    mark = {"key": {"embedder": "stand-in", "decision": "hard"}, "generate": {"candidates": 8}}
    token = {"scheme": "semstamp", "label": "SemStamp", "key": {"embedder": "stand-in"}, "generate": {"candidates": 8}}
    wanted = recipe(
        data={"sets": ["manual"], "texts": 4, "sentences": 4, "human_texts": 40},
        watermark=[mark, token],
        attack=[{"name": "delete", "rate": 0.5}, {"name": "insert", "rate": 0.5}],
        meaning="",
    )
    bench = run(folder, wanted)
    bench.workspace.save_recipe("small", to_toml(wanted))
    save(bench.workspace.results("small"), evaluate(bench, "small"))
    [first, *_] = (record["id"] for record in records(folder)["attack"] if record["attack"]["name"] == "insert")

    def with_markup(record: dict[str, Any]) -> dict[str, Any]:
        return record | {"text": f"{record['text']} {HOSTILE}"} if record["id"] == first else record

    rewrite_records(folder, "attack", with_markup)
    return folder


@pytest.fixture(scope="module")
def answers(work: Path) -> Answers:
    return Answers([Workspace(work)], fpr=0.05)


@contextmanager
def served(answers: Answers) -> Iterator[ViewServer]:
    with ViewServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: ViewServer, path: str, host: str = "", **query: object) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    target = f"{path}?{urlencode(query)}" if query else path
    connection.request("GET", target, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, dict(response.headers), content


def test_every_scored_text_is_listed(answers: Answers) -> None:
    choices = answers.choices()
    assert choices["fields"]["attack"] == ["no attack", "delete 0.5", "insert 0.5", "human text"]
    assert choices["fields"]["watermark"] == ["AliMark", "SemStamp"]
    assert choices["texts"] == 2 * (4 * 3 + 40)
    clean = answers.listed({"attack": "no attack", "watermark": "AliMark"}, 0)
    assert (clean["total"], clean["pages"]) == (4, 1)
    verdicts = {entry.verdict for entry in answers.entries if entry.attack == "no attack"}
    assert "found" in verdicts
    found, not_found = (
        answers.listed({"attack": "human text", "verdict": name}, 0)["total"] for name in ("found", "not found")
    )
    assert (found + not_found, not_found > 65) == (80, True)


def test_only_one_page_of_texts_is_sent(answers: Answers) -> None:
    first, last = answers.listed({}, 0), answers.listed({}, 99)
    assert (first["total"], first["pages"], last["page"]) == (104, 3, 2)
    assert (len(first["rows"]), len(last["rows"])) == (50, 4)
    assert all(len(row["beginning"]) <= 120 for row in first["rows"])


def test_an_attacked_text_beside_its_original(answers: Answers) -> None:
    [row, *_] = answers.listed({"attack": "delete 0.5", "watermark": "AliMark"}, 0)["rows"]
    text = answers.text(row["number"])
    for kind, whole in (("removed", text["original"]), ("added", text["text"])):
        assert "".join(words for piece, words in text["diff"] if piece in ("same", kind)) == whole
    assert any(kind == "removed" for kind, _ in text["diff"])
    assert (text["prompt"] != "", text["settings"]) == (True, {"rate": 0.5, "preset": ""})
    human = answers.listed({"attack": "human text"}, 0)["rows"][0]
    assert answers.text(human["number"])["diff"] == []


def test_the_alignment_is_computed_under_the_key_of_the_text(answers: Answers) -> None:
    [row, *_] = answers.listed({"attack": "no attack", "watermark": "AliMark"}, 0)["rows"]
    evidence = answers.alignment(row["number"], "attacked")
    assert evidence["p_value"] == row["p_value"]
    assert len(evidence["sentences"]) == 4
    assert any(step["kind"] == "match" for step in evidence["alignment"])
    attacked = answers.listed({"attack": "delete 0.5", "watermark": "AliMark"}, 0)["rows"][0]["number"]
    assert len(answers.alignment(attacked, "attacked")["sentences"]) == 2
    assert len(answers.alignment(attacked, "original")["sentences"]) == 4
    other = answers.listed({"watermark": "SemStamp"}, 0)["rows"][0]["number"]
    with pytest.raises(Exception, match="SemStamp does not align"):
        answers.alignment(other, "attacked")


def test_word_diff_of_texts_without_spaces() -> None:
    pieces = word_diff("我喜欢喝茶。", "我喜欢喝咖啡。")
    assert pieces == [
        ("same", "我喜欢喝"), ("removed", "茶"), ("added", "咖啡"), ("same", "。"),
    ]  # fmt: skip
    long = "word " * 20_000
    assert "".join(text for kind, text in word_diff(long, f"{long}end") if kind != "added") == long


# --- Tables


def test_tables_of_the_report(answers: Answers) -> None:
    assert list(answers.tables) == ["small: Detection by attack", "small: False positives on human texts"]
    table = answers.table("small: Detection by attack")
    assert [line[1].text for line in table.lines] == ["no attack"] * 2 + ["delete 0.5"] * 2 + ["insert 0.5"] * 2


def test_csv_names_the_statistic_and_has_failures_as_misses() -> None:
    table = Table(
        "t",
        [Column("method", number=False), Column("chat"), Column("texts")],
        [[TableCell("A"), TableCell("50.0", "x; all 40.0", 0.5, every=0.4), TableCell("9", value=9)],
         [TableCell("B"), TableCell("60.0", "x", 0.6), TableCell("8", value=8)]],
        note="Statistic: z.",
    )  # fmt: skip
    assert list(csv.reader(io.StringIO(export.to_csv(table)))) == [
        ["method", "chat", "chat, failed as misses", "texts", "note"],
        ["A", "0.5", "0.4", "9", "Statistic: z."],
        ["B", "0.6", "0.6", "8", "Statistic: z."],
    ]


def test_csv_has_numbers_and_no_formulas() -> None:
    table = Table(
        "t",
        [Column("method", number=False), Column("chat")],
        [[TableCell("=1+1"), TableCell("50.0", "x", 0.5, interval=(0.25, 0.75))]],
    )
    rows = list(csv.reader(io.StringIO(export.to_csv(table))))
    assert rows == [["method", "chat", "chat low", "chat high"], ["'=1+1", "0.5", "0.25", "0.75"]]


def test_latex_is_escaped_and_balanced() -> None:
    table = Table(
        "Rates at 5% & more", [Column("a_b", number=False), Column("chat"), Column("set #1")],
        [[TableCell("x\\y"), TableCell("90.0", "80–95", 0.9, high=True), TableCell("1")]], note="100% {of} texts",
    )  # fmt: skip
    text = export.to_latex(table)
    assert r"\caption{Rates at 5\% \& more}" in text
    assert r"x\textbackslash{}y & \textbf{90.0} {\scriptsize (80--95)} & 1 \\" in text
    assert r"set \#1" in text
    assert text.count("{") == text.count("}")


def test_a_report_table_in_all_formats() -> None:
    made_up = MadeUp()
    for method in ("PMark", "AliMark"):
        made_up.watermark(method, 5.0, {"chat": 0.5})
    for table in tables.details(made_up.results):
        texts = {form: write(table) for form, write in export.FORMATS.items()}
        assert all("AliMark" in text and "chat" in text for text in texts.values())
        assert all("Statistic: the method's own z." in text for text in texts.values())
        widths = {len(row) for row in csv.reader(io.StringIO(texts["csv"]))}
        assert len(widths) == 1


# --- The server


def test_only_with_the_token_and_the_own_host(answers: Answers) -> None:
    with served(answers) as server:
        page = f"/{server.token}/"
        assert server.server_address[0] == "127.0.0.1"
        status, headers, content = get(server, page)
        assert (status, b"Records of a run" in content) == (200, True)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Cache-Control"] == "no-store"
        assert get(server, "/")[0] == get(server, "/wrong/choices")[0] == 404
        assert get(server, page, host="evil.example")[0] == 403
        assert get(server, f"{page}../../etc/passwd")[0] == 404
        assert get(server, f"{page}text", number=10**9)[0] == 404
        assert get(server, f"{page}text", number="x")[0] == 400
        assert get(server, f"{page}export", title="small: Detection by attack", format="exe")[0] == 400
        status, headers, content = get(server, f"{page}export", title="small: Detection by attack", format="latex")
        assert (status, b"\\toprule" in content) == (200, True)
        assert headers["Content-Disposition"] == 'attachment; filename="table.tex"'
        for file in ("view.js", "show.js", "style.css", "view.css", "icon.svg"):
            assert get(server, f"{page}{file}")[0] == 200


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "view", str(tmp_path)])
    assert "holds no records" in str(result.exception or result.output)


def test_two_runs_that_go_on(work: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "records").mkdir(parents=True)
    answers = Answers([Workspace(work), Workspace(other)], fpr=0.05)
    assert (answers.choices()["texts"], answers.state) == (104, 1)
    shutil.copytree(work, other, dirs_exist_ok=True)
    with served(answers) as server:
        page = f"/{server.token}/"
        assert json.loads(get(server, f"{page}choices")[2])["fields"]["run"] == [str(work), str(other)]
        assert (answers.state, len(answers.tables)) == (2, 4)
        status, _, content = get(server, f"{page}text", number=0, state=1)
        assert (status, b"choose the text again" in content) == (404, True)
        text = json.loads(get(server, f"{page}text", number=0, state=2)[2])
    assert {(text["run"], text["watermark"]), *((entry["run"], entry["watermark"]) for entry in text["others"])} == {
        (str(folder), mark) for folder in (work, other) for mark in ("AliMark", "SemStamp")
    }
    answers.refresh()
    assert answers.state == 2


# --- In a browser


@pytest.mark.browser
def test_in_a_browser(answers: Answers) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    complaints: list[str] = []
    with served(answers) as server, playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=browser(), args=["--no-sandbox", "--disable-gpu"])
        page: Any = opened.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(30_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(server.url) else complaints.append(asked.url))
        page.goto(server.url)
        page.wait_for_selector("#table table")
        assert page.inner_text("#count") == "104 texts"
        assert page.locator("#texts tbody tr").count() == 50
        page.click("#next")
        playwright.expect(page.locator("#place")).to_have_text("page 2 of 3")
        page.select_option("#by-watermark", "AliMark")
        page.select_option("#by-attack", "insert 0.5")
        playwright.expect(page.locator("#count")).to_have_text("4 texts")
        hostile = next(i for i in answers.chosen({"attack": "insert 0.5"}) if "<img" in answers.text(i)["text"])
        page.click(f"#texts tr[data-number='{hostile}'] td >> nth=2")
        page.wait_for_selector("#aligned svg")
        assert '<img src=x onerror="document.title=1">' in page.inner_text("#attacked")  # as text, not as markup
        assert page.locator("#attacked ins").count() > 0
        assert page.title() == "Records of a run"
        page.select_option("#aligned select", "original")
        playwright.expect(page.locator("#aligned .text span")).to_have_count(4)
        with page.expect_download() as download:
            page.click("#csv")
        assert Path(download.value.path()).read_text().startswith("method,attack,TPR@5%")
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        opened.close()
    assert complaints == []
