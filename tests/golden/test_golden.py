"""Keys, scores and texts of earlier releases stay as they were: the golden files of make.py, computed again.

`make.py --check` compares bit for bit. Here floats that come out of matrix products may differ in their last digits, as
they do between machines.
"""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import make
import pytest

TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(make.compute()))
    return content


def test_key_files_load_with_the_same_id_and_are_written_as_they_were(tmp_path: Path) -> None:
    golden = make.committed()
    keys = make.load_keys()
    assert {stem: key.id for stem, key in keys.items()} == {
        stem: part["id"] for stem, part in golden.items() if "id" in part
    }
    for stem, key in keys.items():
        path = make.HERE / "keys" / f"{stem}.json"
        assert json.loads(path.read_text("utf-8"))["id"] == key.id
        key.save(tmp_path / path.name)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_scores_p_values_alignments_records_and_texts_are_the_same(computed: dict[str, Any]) -> None:
    count, lines = make.differences(computed, make.committed(), tolerance=TOLERANCE)
    assert lines == []
    assert make.count_scores(computed) >= 350
    assert count > 10_000


def test_every_kind_of_answer_occurs() -> None:
    answers = [answer for part in make.committed().values() for answer in part.get("detect", {}).values()]
    assert {answer["verdict"] for answer in answers} == {"found", "not found", "too short to tell"}
    for field in ("p_tail", "stopped_early", "passages", "keys_tried", "evidence", "recorded"):
        assert any(field in answer for answer in answers)
    moves = " ".join(answer.get("alignment", "") for answer in answers)
    assert all(move in moves for move in ("merge", "split", "left>", "right>"))


@pytest.mark.parametrize(
    ("stem", "name", "field", "value"),
    [
        ("hard-8", "default/letter", "p_value", (0.5).hex()),
        ("hard-8", "default/letter", "draws", 999),
        ("soft-v3-offsets", "default/letter", "raw", (0.25).hex()),
        ("soft-v3", "default/page", "alignment", "1>1:4"),
        ("kgw", "default/letter", "verdict", "found"),
        ("synthid", "default/letter", "p_value", (0.01).hex()),
        ("hard-8", "default/letter", "new", 1),
    ],
)
def test_a_change_is_noticed(stem: str, name: str, field: str, value: object) -> None:
    changed = deepcopy(make.committed())
    changed[stem]["detect"][name][field] = value
    _, lines = make.differences(changed, make.committed(), tolerance=TOLERANCE)
    assert len(lines) == 1
    assert f"/{stem}/detect/{name}/{field}" in lines[0]


def test_the_last_bit_counts_without_a_tolerance() -> None:
    changed = deepcopy(make.committed())
    answer = changed["soft-v3"]["detect"]["default/letter"]
    answer["raw"] = (float.fromhex(answer["raw"]) * (1 + 2**-52)).hex()
    assert make.differences(changed, make.committed(), tolerance=TOLERANCE)[1] == []
    assert len(make.differences(changed, make.committed())[1]) == 1


def test_the_script_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, make.__file__, "--help"], capture_output=True, text=True, check=True)
    assert "--check" in done.stdout
