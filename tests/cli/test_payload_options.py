"""Payloads on the command line: keygen --payload-bits, generate --payload and detect --json."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_line_may_have_its_own_payload_and_is_passed_over_where_it_does_not_fit(run: Run, tmp_path: Path) -> None:
    key, source, output = (tmp_path / name for name in ("key.json", "prompts.jsonl", "texts.jsonl"))
    Key.generate(embedder=StandInEmbedder(), payload_bits=8).save(key)
    source.write_text('{"id": 1, "prompt": "One.", "payload": 256}\n{"id": 2, "prompt": "Two.", "payload": "x"}\n'
                      '{"id": 3, "prompt": "Three.", "payload": 9}\n{"id": 4, "prompt": "Four."}\n')  # fmt: skip
    options = ["--sentences", 1, "--candidates", 2, "--payload", 5]
    answer = run("generate", "-k", key, "--input", source, "--output", output, *options)
    assert answer.status == 0
    assert "prompts.jsonl:1: a payload of 8 bits is a whole number from 0 to 255, not 256; passed over" in answer.err
    assert "2 texts written, 0 were there already, 2 lines failed" in answer.err
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert {record["id"]: record["payload"] for record in records} == {"3": 9, "4": 5}


def test_a_line_to_rewrite_may_have_its_own_payload(run: Run, tmp_path: Path) -> None:
    key, source, output = (tmp_path / name for name in ("key.json", "texts.jsonl", "rewritten.jsonl"))
    Key.generate(embedder=StandInEmbedder(), payload_bits=8).save(key)
    lines: list[dict[str, object]] = [{"id": "1"}, {"id": "2", "payload": 9}, {"id": "3", "payload": 256}]
    source.write_text("".join(json.dumps(line | {"text": "The boat came. The crew left."}) + "\n" for line in lines))
    options = ["--input", source, "--output", output, "--candidates", 2, "--payload", 5]
    answer = run("rewrite", "-k", key, *options)
    assert (answer.status, "whole number from 0 to 255, not 256; passed over" in answer.err) == (0, True)
    assert "0 were there already, 1 lines failed" in answer.err
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert {record["id"]: record["payload"] for record in records} == {"1": 5, "2": 9}


def test_keygen_makes_keys_with_payloads(run: Run, tmp_path: Path) -> None:
    made_key = run("keygen", "-o", tmp_path / "key.json", "--payload-bits", 16)
    assert (made_key.status, Key.load(tmp_path / "key.json").payload_bits) == (0, 16)
    assert "a number from 0 to 65535" in made_key.err
    refused = run("keygen", "-o", tmp_path / "other.json", "--payload-bits", 40)
    assert (refused.status, "from 1 to 24" in refused.err) == (2, True)
