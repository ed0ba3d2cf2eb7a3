"""`alimark detect`: verdicts and exit statuses, reports, several keys, and one-line errors."""

import io
import json
import re
import sys
import threading
from pathlib import Path

import pytest

import alimark
import alimark.cli.detect
import alimark.cli.loading
import alimark.core.detection.preparing
import alimark.core.embedding.loading
import alimark.core.llm
from alimark import AliMark, Key
from alimark.cli.demo import HUMAN
from alimark.cli.detections import alignment_table
from alimark.core.frozen.text.splitting import splitter
from alimark.errors import ModelError
from alimark.testing import StandInEmbedder
from commands import Run
from fixed_texts import fixed_key, unmarked
from small_documents import docx

EMBEDDER = StandInEmbedder()


def human_file(tmp_path: Path, text: str = HUMAN) -> Path:
    path = tmp_path / "human.txt"
    path.write_text(text, "utf-8")
    return path


def base_secret(key_file: Path) -> str:
    return str(json.loads(key_file.read_text())["secret"])


def test_found_is_0_and_shows_the_alignment(run: Run, key_file: Path, marked_file: Path) -> None:
    done = run("detect", "-k", key_file, marked_file)
    assert done.status == 0
    first, second = done.out.splitlines()[:2]
    assert first.endswith(
        ": The mark of this key is in the text. By chance a text would look like this at most once in 1,000."
    )
    assert second.startswith("  found at a false-positive rate of 0.01: p <= 0.001, score ")
    assert done.out.count("kept") >= 8
    assert "bits" not in done.out
    assert done.err == ""
    assert len(re.findall(r"[■·]{16} ", done.out)) >= 8  # a pipe counts as 160 columns


def test_not_found_is_1(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    done = run("detect", "-k", key_file, marked_file, human_file(tmp_path, "One short text."))
    assert done.status == 1
    assert "too short to tell" in done.out
    assert "it has 1 sentence, and needs about 6." in done.out


def test_evidence(run: Run, key_file: Path, marked_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIMARK_SIGNING_KEY", str(tmp_path / "signing-key.pem"))
    report, human = tmp_path / "r.json", human_file(tmp_path)
    done = run("detect", "-k", key_file, marked_file, human, "--json", "--report", report, "--draws", 300)
    shown, evidence = json.loads(done.out), json.loads(report.read_text())
    assert shown[0]["verdict"] == evidence["texts"][0]["result"]["verdict"] == "found"
    assert evidence["texts"][1]["result"]["draws"] == 300
    assert evidence["texts"][0]["result"]["key_id"] == Key.load(key_file).id
    assert base_secret(key_file) not in report.read_text() + done.out
    done = run("verify", report, marked_file, human, "-k", key_file)
    assert (done.status, done.out.count("passed: "), done.err) == (0, 7, "")
    done = run("verify", report, marked_file, "-k", key_file)
    assert (done.status, "human.txt”, which the evidence is about, was not checked" in done.out) == (1, True)
    page = tmp_path / "r.html"
    assert run("detect", "-k", key_file, marked_file, "--report", page).status == 0
    assert "alimark verify r.html marked.txt" in page.read_text()
    done = run("verify", page, marked_file)
    assert (done.status, "not computed again" in done.err) == (0, True)
    assert run("verify", page, human, "-k", key_file).status == 1
    Key.generate(embedder=EMBEDDER, decision="hard").save(tmp_path / "other.json")
    assert run("verify", page, marked_file, "-k", tmp_path / "other.json").status == 1
    monkeypatch.setenv("ALIMARK_SIGNING_KEY", str(tmp_path / "elsewhere.pem"))
    done = run("verify", page, marked_file)
    assert (done.status, "--signer" in done.out) == (1, True)
    assert run("verify", page, marked_file, "--signer", evidence["signer"]["fingerprint"]).status == 0
    assert run("verify", page).status == 2
    assert run("verify", marked_file, marked_file).status == 2


def test_standard_input(key_file: Path, marked_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(marked_file) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert run("detect", "-k", key_file, "-").status == 0


def test_a_strict_rate_raises_the_draws(run: Run, key_file: Path, marked_file: Path) -> None:
    done = run("detect", "-k", key_file, marked_file, "--fpr", "1e-4", "--json")
    assert json.loads(done.out)["draws"] == 100_000


def test_whose_key(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    for number in range(5):
        fixed_key(100 + number).save(folder / f"{number}.json")
    done = run("detect", "-k", folder, "-k", key_file, marked_file, "--json")
    best = json.loads(done.out)
    assert best["key_id"] == Key.load(key_file).id
    assert best["keys_tried"] == 6
    assert len(best["next_best"]) == 2


def test_long_texts_are_searched_for_passages(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    other = " ".join(unmarked(60, 3))
    mixed = human_file(tmp_path, f"{other} {marked_file.read_text()} {other}")
    done = run("detect", "-k", key_file, mixed)
    assert done.status == 0
    assert "the p-value pays for both" in done.out
    assert re.search(r"passage: sentences 6\d to 7\d, .*, p <= 0.002\n", done.out)
    assert "passage: sentences 6" in run("detect", "-k", key_file, mixed, "--excerpt").out
    assert run("detect", "-k", key_file, mixed, "--no-excerpt").status == 1


def test_alignments_show_if_found_or_asked_for(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    human = human_file(tmp_path, " ".join(unmarked(12, 3)))
    assert "strength" not in run("detect", "-k", key_file, human).out
    assert "strength" in run("detect", "-k", key_file, human, "--alignment").out
    assert "strength" not in run("detect", "-k", key_file, marked_file, "--no-alignment").out


def test_found_in_a_short_text_carries_a_caveat(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    short = " ".join(splitter(Key.load(key_file).splitter).units(marked_file.read_text())[:5])
    done = run("detect", "-k", key_file, human_file(tmp_path, short))
    assert "is in the text" in done.out
    assert "reliably found from about 6 on" in " ".join(done.out.split())


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_alignment_fits_the_terminal(key_file: Path, marked_file: Path, width: int) -> None:
    from rich.console import Console

    detection = AliMark(Key.load(key_file), embedder=EMBEDDER).detect(marked_file.read_text())
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(alignment_table(detection, width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["block", "sentence", "change", "strength", "marked", "text"]
    assert all(re.search(r"[■·]{8,16} +\d+% +\S", line) for line in lines[1:13])


def test_a_weak_mark_is_not_0_percent(key_file: Path, marked_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    detection = AliMark(Key.load(key_file), embedder=EMBEDDER).detect(marked_file.read_text())
    monkeypatch.setattr(type(detection), "sentence_chances", property(lambda _: (0.0,) * 12))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(alignment_table(detection, 120))
    shown = console.export_text()
    assert "0%" not in shown
    assert "No sentence shows the mark by itself; the text as a whole does." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "no text"), (b"a\xff\x00bad", "not text"), (b" \n", "no text"), (b"\xef\xbb\xbf", "no text")],
)
def test_bad_files(run: Run, key_file: Path, tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    done = run("detect", "-k", key_file, tmp_path / "bad.txt")
    assert done.status == 2
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_text_that_is_too_long_is_refused_before_models_are_loaded(
    run: Run, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alimark.cli.loading, "load_mark", fails)
    done = run("detect", "-k", key_file, human_file(tmp_path, "The lamp went out. " * 21_000), "--no-excerpt")
    assert (done.status, "21,000 sentences and the limit is 2,000; cut it into parts" in done.err) == (2, True)


def test_missing_files_and_contradictions(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    for words in (
        ["-k", key_file, tmp_path / "none.txt"],
        ["-k", tmp_path / "none.json", marked_file],
        ["-k", key_file],
        ["-k", tmp_path / "empty", marked_file],
        ["-k", key_file, marked_file, "--engine", "ray"],
        ["-k", key_file, marked_file, "--restructure", "x,y"],
        ["-k", key_file, marked_file, "--fpr", "0"],
        ["-k", key_file, marked_file, "--null", "mine"],
        ["-k", key_file, marked_file, "--report", tmp_path / "r.pdf"],
        ["-k", key_file, "-", "--report", tmp_path / "r.json"],
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = run("detect", *words)
        assert done.status == 2, words
        assert done.err.startswith(("error: ", "Usage: ")), words
        assert "Traceback" not in done.err


def test_one_bad_file_of_several(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty[b].txt").write_text("")
    done = run("detect", "-k", key_file, marked_file, tmp_path / "empty[b].txt")
    assert done.status == 2
    assert "is in the text" in done.out
    assert "empty[b].txt: the file contains no text" in done.err
    odd = tmp_path / "a[draft].txt"
    odd.write_text(marked_file.read_text())
    assert "a[draft].txt: The mark" in " ".join(run("detect", "-k", key_file, odd).out.split())


def test_unexpected_errors(run: Run, key_file: Path, marked_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(alimark.core.detection.preparing, "prepare", broken)
    done = run("detect", "-k", key_file, marked_file)
    assert done.status == 2
    assert "unexpected ZeroDivisionError" in done.err
    assert run("detect", "--no-such-option").status == 2
    assert run("detect", "-k", key_file, marked_file, "--draws", 50).status == 2


def test_it_waits_for_kernels(run: Run, key_file: Path, marked_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ends daemon threads in the middle of their work, and crashes where this work is a compiler's."""
    ended = threading.Event()
    monkeypatch.setattr(alimark.cli.detect, "_warm_up", lambda *_: ended.wait(30))
    monkeypatch.setattr(alimark.cli.loading, "load_mark", fails)
    done = run("detect", "-k", key_file, marked_file)
    [thread] = [thread for thread in threading.enumerate() if thread.name == "alimark-kernels"]
    ended.set()
    assert (done.status, thread.daemon) == (2, False)
    thread.join()


def test_kernels_wait_for_models(run: Run, key_file: Path, marked_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(alimark.cli.detect, "_warm_up", lambda *_: compiled.append(1))
    monkeypatch.setattr(alimark.cli.loading, "fetch_models", fails)
    done = run("detect", "-k", key_file, marked_file)
    assert (done.status, done.err, compiled) == (2, "error: there is no network\n", [])


def fails(*_: object) -> None:
    raise ModelError("there is no network")


def test_debug_shows_the_traceback(run: Run) -> None:
    assert "Traceback" in run("detect", "--debug", "-k", "no-such-key", "x.txt").err
    assert "Traceback" not in run("detect", "-k", "no-such-key", "x.txt").err


def test_a_readable_key_is_warned_of(run: Run, key_file: Path, marked_file: Path) -> None:
    key_file.chmod(0o644)
    done = run("detect", "-k", key_file, marked_file)
    assert done.status == 0
    assert done.err.startswith("warning: others can read")


def test_documents_and_addresses(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("selectolax")
    text = marked_file.read_text()
    menu = "<nav>" + "<a href=x>Home and News</a> " * 9 + "</nav>"
    (tmp_path / "page.html").write_text(f"<title>T</title>{menu}<p>{text}")
    (tmp_path / "letter.docx").write_bytes(docx(text))
    done = run("detect", "-k", key_file, tmp_path / "page.html", tmp_path / "letter.docx", "--json")
    assert done.status == 0, done.err
    p_values = [record["p_value"] for record in json.loads(done.out)]
    [plain] = [json.loads(run("detect", "-k", key_file, marked_file, "--json").out)["p_value"]]
    assert p_values == [plain, plain]
    assert "characters of menus" in done.err
    done = run("detect", "-k", key_file, "https://example.org/page.html")
    assert (done.status, "does not download pages" in done.err) == (2, True)
