"""`alimark generate`: one prompt and many, resumed by id, also after the process was interrupted or killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from alimark import Key
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.settings import STEERED, STRENGTHS
from alimark.core.llm.base import Draw
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run


def texts(lines: bytes) -> list[tuple[str, str]]:
    return [(record["id"], record["text"]) for record in map(json.loads, lines.splitlines())]


def test_one_prompt(run: Run, key_file: Path) -> None:
    options = ["-k", key_file, "-p", "A day.", "--sentences", 3, "--candidates", 8, "--seed", 4]
    done = run("generate", *options)
    assert done.status == 0
    assert len(done.out.strip()) > 40
    assert "3 sentences" in done.err
    record = json.loads(run("generate", *options, "--json").out)
    assert (record["text"], record["seed"], record["cost"]["candidates"]) == (done.out.strip(), 4, 24)


def test_sentences_are_printed_as_they_are_chosen(run: Run, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    before_each_step: list[str] = []
    draw = StandInLLM.draw

    def echo(text: str = "", nl: bool = True) -> None:
        printed.append(text + "\n" * nl)

    def draw_later(*arguments: Any) -> list[list[Draw]]:
        before_each_step.append("".join(printed))
        return draw(*arguments)

    monkeypatch.setattr("alimark.cli.generate.typer.echo", echo)
    monkeypatch.setattr(StandInLLM, "draw", draw_later)
    assert run("generate", "-k", key_file, "-p", "A day.", "--sentences", 3, "--candidates", 8, "--seed", 4).status == 0
    text = "".join(printed)
    sentences = splitter().sentences(text)
    assert before_each_step == ["", sentences[0], " ".join(sentences[:2])]
    assert text == " ".join(sentences) + "\n"


def test_a_strength_names_a_number_of_candidates(run: Run, key_file: Path) -> None:
    options = ["-k", key_file, "-p", "A day.", "--sentences", 2, "--seed", 4, "--json"]
    for strength in ("light", "strong"):
        settings = json.loads(run("generate", *options, "--strength", strength).out)["settings"]
        assert settings["candidates"] == STRENGTHS[strength]
        assert "strength" not in settings
    both = run("generate", *options, "--strength", "light", "--candidates", 8)
    assert both.status == 2
    assert "either a strength or a number of candidates" in both.err
    assert "light, standard, strong" in run("generate", *options, "--strength", "100").err


@pytest.mark.parametrize("verb", ["generate", "rewrite"])
def test_the_help_names_the_candidates_of_each_strength(run: Run, verb: str) -> None:
    text = " ".join(run(verb, "--help").out.replace("│", " ").split())
    candidates = {strength: steered for strength, (steered, _) in STEERED.items()} if verb == "generate" else STRENGTHS
    assert all(f"{strength}: {count}" in text for strength, count in candidates.items())
    assert verb == "rewrite" or "{}, {} and {} candidates".format(*STRENGTHS.values()) in text


def test_many_prompts_resume_by_id(run: Run, key_file: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    lines = [
        {"id": 1, "prompt": "One day."},
        {"prompt": "Two days."},
        {"id": 3},
        {"id": 4, "prompt": "Four.", "tag": "x"},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["-k", key_file, "--input", source, "--output", output, "--sentences", 2, "--candidates", 4, "--seed", 1]
    first = run("generate", *words, "--json")
    assert json.loads(first.out) == {"written": 3, "skipped": 0, "failed": 1, "short": 0}
    before = output.read_bytes()
    assert json.loads(run("generate", *words, "--json").out)["written"] == 0
    output.write_bytes(before[: before.index(b"\n") + 20])  # killed in the second line
    run("generate", *words)
    assert texts(output.read_bytes()) == texts(before)
    assert json.loads(output.read_text().splitlines()[2])["tag"] == "x"


@pytest.mark.parametrize(
    "words",
    [[], ["-p", " "], ["-p", "x", "--input", "y"], ["--input", "y"], ["-p", "x", "--temperature", "0"],
     ["-p", "x", "--sentences", "0"]],
)  # fmt: skip
def test_wrong_options(run: Run, key_file: Path, words: list[str]) -> None:
    done = run("generate", "-k", key_file, *words)
    assert done.status == 2
    assert done.err.startswith("error: ")


CHILD = """
import sys, time
import alimark.core.embedding.loading, alimark.core.llm
from alimark.testing import StandInEmbedder, StandInLLM
class Slow(StandInLLM):
    def draw(self, *a):
        time.sleep(0.05)
        return super().draw(*a)
alimark.core.embedding.loading.load_embedder = lambda name, **_: StandInEmbedder()
alimark.core.llm.load_llm = lambda name, **_: Slow()
from alimark.cli.main import main
sys.argv = ["alimark", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupt_keeps_every_finished_text(tmp_path: Path, key_file: Path, sent: int, status: int) -> None:
    source, output = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"id": i, "prompt": f"Day {i}."}) + "\n" for i in range(2000)))
    words = ["generate", "-k", str(key_file), "--input", str(source), "--output", str(output), "--sentences", "2",
             "--candidates", "4", "--seed", "1"]  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not output.exists() or output.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    os.kill(child.pid, sent)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == status
    assert b"Traceback" not in errors
    assert (b"interrupted; what was finished is kept" in errors) == (sent == signal.SIGINT)
    done = output.read_bytes().split(b"\n")[:-1]
    assert len(done) >= 3
    assert [json.loads(line)["id"] for line in done] == [str(i) for i in range(len(done))]


# Payloads: keygen --payload-bits, generate --payload and detect --json


def test_a_payload_is_written_and_read(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    Key.generate(embedder=StandInEmbedder(), payload_bits=8, secret=bytes(range(32))).save(key)
    options = ["-k", key, "--sentences", 24, "--candidates", 32, "--seed", 4]
    record = json.loads(run("generate", *options, "-p", "A day.", "--payload", 77, "--json").out)
    assert record["payload"] == 77
    (tmp_path / "text.txt").write_text(record["text"])
    detection = json.loads(run("detect", "-k", key, tmp_path / "text.txt", "--json").out)
    assert (detection["payload"]["value"], detection["payload"]["confidence"] > 0.9) == (77, True)
    assert "payload 77, right with probability" in run("detect", "-k", key, tmp_path / "text.txt").out
    too_large = run("generate", *options, "-p", "A day.", "--payload", 256)
    assert (too_large.status, "from 0 to 255" in too_large.err) == (2, True)


@pytest.mark.parametrize(("verb", "field"), [("generate", "prompt"), ("rewrite", "text")])
def test_a_line_may_have_its_own_payload(run: Run, tmp_path: Path, verb: str, field: str) -> None:
    """A line whose payload does not fit is passed over."""
    key, source, output = (tmp_path / name for name in ("key.json", "in.jsonl", "out.jsonl"))
    Key.generate(embedder=StandInEmbedder(), payload_bits=8).save(key)
    payloads: list[dict[str, object]] = [{"payload": 256}, {"payload": "x"}, {"payload": 9}, {}]
    lines = [{"id": n, field: "The boat came. The crew left.", **payload} for n, payload in enumerate(payloads, 1)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sentences = ["--sentences", 1] if verb == "generate" else []
    options = ["--input", source, "--output", output, "--candidates", 2, "--payload", 5, *sentences]
    answer = run(verb, "-k", key, *options)
    assert answer.status == 0
    assert "in.jsonl:1: a payload of 8 bits is a whole number from 0 to 255, not 256; passed over" in answer.err
    assert "0 were there already, 2 lines failed" in answer.err
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert {record["id"]: record["payload"] for record in records} == {"3": 9, "4": 5}


def test_keygen_makes_keys_with_payloads(run: Run, tmp_path: Path) -> None:
    made_key = run("keygen", "-o", tmp_path / "key.json", "--payload-bits", 16)
    assert (made_key.status, Key.load(tmp_path / "key.json").payload_bits) == (0, 16)
    assert "a number from 0 to 65535" in made_key.err
    refused = run("keygen", "-o", tmp_path / "other.json", "--payload-bits", 40)
    assert (refused.status, "from 1 to 24" in refused.err) == (2, True)
