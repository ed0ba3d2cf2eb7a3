"""Input that tries to fool an audit: every line gets one answer, and none of its fields is read as a result."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from corpora import task

from alimark import Key
from alimark.audit.answers import SCHEMA
from alimark.audit.run import run
from alimark.cli.audit import shown_name
from alimark.core.detection.settings import DetectionSettings
from alimark.errors import RecordError
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()
TEXT = "The lamp went out. Nobody saw it. The rain began."


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32)))


def audit(key: Key, source: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the answers; every answer has the fixed schema."""
    output = source.with_name("found.jsonl")
    asked = task(source, output, key, settings=DetectionSettings(draws=99, stop_after=5), max_document=100_000)
    summary = run(asked).record()
    answers = [json.loads(line) for line in output.read_bytes().decode("utf-8").split("\n")[:-1]]
    assert summary["documents"] == summary["documents_read"] == len(answers)
    assert all(answer.keys() <= SCHEMA.keys() for answer in answers)
    assert len({answer["id"] for answer in answers}) == len(answers)
    return summary, answers


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_fields_that_are_called_as_results(tmp_path: Path, key: Key) -> None:
    claims: list[dict[str, Any]] = [
        {},
        {"failed": True, "error": "skip me"},
        {"p_value": 1e-9, "q_value": 0, "found": True, "verdict": "found"},
        {"passages": [{"first": 1}], "warnings": ["fine"], "score": 99, "draws": 10**9},
        {"input": {"p_value": 0}, "key_id": "ak0", "keys_tried": 5},
        {"sentences": ["a"], "prompt": "p", "near_flips": "x"},
    ]
    records = [{"id": f"d{i}", "text": TEXT, **claim} for i, claim in enumerate(claims)]
    summary, answers = audit(key, write(tmp_path / "docs.jsonl", records))
    assert (summary["failed"], summary["found_at_fdr"]) == (0, 0)
    results = [answer | {"id": "", "place": 0, "input": {}} for answer in answers]
    assert all(result == results[0] for result in results)
    assert answers[2]["input"] == claims[2]
    assert answers[4]["input"] == claims[4]


def test_ids_that_collide_with_made_up_ones(tmp_path: Path, key: Key) -> None:
    broken = f"{tmp_path / 'docs.jsonl'}@0"  # the id that the first line, which is no record, is given
    names: list[Any] = ["a#3", "a", "a", "a", broken, None, broken, 1, "1", True, "True", ["x"], "", "", "a#3#3"]
    lines = [json.dumps({"id": name, "text": TEXT}) for name in names]
    lines.insert(0, "{broken")
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    summary, answers = audit(key, tmp_path / "docs.jsonl")
    assert (summary["documents"], summary["failed"]) == (16, 1)
    ids = [answer["id"] for answer in answers]
    assert {broken, "a", "1"} <= set(ids)
    assert [sum(name.startswith(start) for name in ids) for start in ("a#", "1#")] == [4, 1]
    before = (tmp_path / "found.jsonl").read_bytes()
    summary, _ = audit(key, tmp_path / "docs.jsonl")
    assert summary["documents_now"] == 0
    assert (tmp_path / "found.jsonl").read_bytes() == before


def test_lines_that_cannot_be_read_or_written(tmp_path: Path, key: Key) -> None:
    lines = [
        '{"id": "huge", "text": "T. U.", "x": 1e999}',
        '{"id": "NaN", "text": "T. U.", "x": NaN}',
        '{"id": "deep", "text": "T. U.", "x": ' + "[" * 900 + "]" * 900 + "}",
        '{"id": "deeper", "text": "T. U.", "x": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"id": "long", "text": "' + "x" * 200_000 + '"}',
        '{"id": "half", "text": "One \\ud800 here. Two.", "y": "\\udfff"}',
        '{"id": "digits", "text": "T. U.", "n": ' + "9" * 5000 + "}",
        '{"id": "twice", "text": 7, "text": "T. U."}',
        '{"id": "nothing", "text": null}',
        '{"id": "list", "text": ["T.", "U."]}',
        "\x00\x00",
        '{"id": "\\u001b[2J[red]", "text": "T. U."}',
    ]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n")
    summary, answers = audit(key, tmp_path / "docs.jsonl")
    assert summary["documents"] == len(lines)
    of_id = {answer["id"]: answer for answer in answers}
    assert not any(of_id[name].get("failed") for name in ("huge", "twice"))
    assert "NaN" not in of_id, "which is no JSON"
    assert of_id["nothing"]["failed"]
    assert sum("200,0" in answer.get("error", "") for answer in answers) == 1
    assert shown_name("\x1b[2J[red]\n") == "\\x1b[2J[red]\\x0a"


@pytest.mark.parametrize("damage", ["cut", "flip", "not gzip"])
def test_a_damaged_gz_file_gives_what_can_be_read_and_one_failed_record(tmp_path: Path, key: Key, damage: str) -> None:
    data = gzip.compress("".join(json.dumps({"id": i, "text": f"{TEXT} {i}."}) + "\n" for i in range(60)).encode(), 0)
    broken = {"cut": data[:2000], "flip": data[:2000] + b"\xff" * 40 + data[2040:], "not gzip": b"plain"}[damage]
    (tmp_path / "docs.jsonl.gz").write_bytes(broken)
    summary, answers = audit(key, tmp_path / "docs.jsonl.gz")
    assert summary["failed"] >= 1
    assert answers[-1]["failed"]
    assert (summary["documents"] > 10) == (damage != "not gzip")


def test_an_output_of_an_earlier_release_is_refused(tmp_path: Path, key: Key) -> None:
    source = write(tmp_path / "docs.jsonl", [{"id": "a", "text": TEXT}])
    earlier = json.dumps({"id": "b", "source": "web", "p_value": 0.5, "key_id": key.id}) + "\n"
    source.with_name("found.jsonl").write_text(earlier)
    with pytest.raises(RecordError, match="not an answer of this release"):
        audit(key, source)
    assert source.with_name("found.jsonl").read_text() == earlier
