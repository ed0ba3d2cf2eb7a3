"""Payloads on the command line: keygen --payload-bits, generate --payload and detect --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alimark import Key
from alimark.testing import StandInEmbedder
from commands import Run


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
