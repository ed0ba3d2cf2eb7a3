"""benchmarks/quality.py with several answers to one prompt, the tables of a run's records, and benchmarks/evasion.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evasion
import method_table
import quality
import share_found
from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.keys.key import Key
from alimark.lab.bench.recipe import attacks
from alimark.lab.bench.recipe_files import to_toml
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from alimark.testing import StandInEmbedder
from attacker import Defence, learn, nothing_learned, tail
from small_recipes import STAND_INS, recipe, rewrite_records


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two watermarks; the first two of four prompts are answered three times."""
    [watermark] = STAND_INS["watermark"]
    wanted = recipe(
        watermark=[watermark | {"label": label, "key": watermark["key"] | {"block_size": size}}
                   for label, size in (("one", 8), ("two", 16))],
        data=STAND_INS["data"] | {"human_texts": 10, "human_keys": 2},
        attack=[{"name": "delete", "rate": 0.5}], meaning="",
        quality={"texts": 3, "answers": 3, "prompts": 2},
    )  # fmt: skip
    bench = Run(wanted, Workspace(tmp_path_factory.mktemp("work")))
    bench.run()
    return bench


def test_tables_of_a_run_with_an_attacked_text_that_has_no_z(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts of its method are ranked by the score, and rejected answers have a column."""
    (tmp_path / "recipe.toml").write_text(to_toml(run.recipe), "utf-8")
    shutil.copytree(run.workspace.folder, tmp_path / "work")
    cell, [attack], [detection] = run.cells[0], attacks(run.recipe), run.recipe.detection
    source = run.attack_job(cell, cell.items[0], attack).id
    scored = run.detect_job(cell, detection, source, cell.items[0].prompt).id
    changes: dict[str, Any] = {source: {"rejected": 2}, scored: {"z": None}}
    for stage in ("attack", "detect"):
        rewrite_records(tmp_path / "work", stage, lambda record: record | changes.get(record["id"], {}))
    for table in (method_table, share_found):
        words = [f"{table.__name__}.py", str(tmp_path / "recipe.toml"), str(tmp_path / "work"), "--set", "statistic=z"]
        monkeypatch.setattr("sys.argv", words)
        table.main()
        out = capsys.readouterr().out
        assert "score standardised by random keys" in next(line for line in out.splitlines() if "one: " in line)
        assert "the method's own z" in next(line for line in out.splitlines() if "two: " in line)
        if table is method_table:
            assert "| | sound | rejected answers | AUROC |" in out
            cells = [line.split("|")[3].strip() for line in out.splitlines() if " of 4 |" in line]
            assert cells == ["-", "-", "25%", "0%"]


def test_what_is_read_first_is_paired(tmp_path: Path) -> None:
    wanted = recipe(quality={"oracle": "some", "texts": 3, "answers": 2, "prompts": 2})
    run = Run(wanted, Workspace(tmp_path))
    [cell] = run.cells
    places = {answer.reading.id: (answer.place, answer.kind) for answer in quality.answers(run, cell)}
    order = [places.get(job.id) for job in quality.readings(run)]
    label = cell.watermark.label
    assert order[:10] == [
        ((answer, number), kind)
        for answer, number in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
        for kind in (label, "unmarked")
    ]
    assert order[10:] == [None] * 3  # human texts


def test_the_difference_of_two_watermarks_is_paired() -> None:
    nan = float("nan")
    first, second = np.array([0.5, 0.5, 0.001, nan]), np.array([0.001, 0.001, 0.001, 0.001])
    assert share_found.difference(first, second).startswith("; +67 [")
    assert share_found.difference(first, first) == "; +0 [+0, +0]"
    assert share_found.difference(np.array([nan]), np.array([0.1])) == ""


def test_disguised_texts_are_found_by_the_further_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["none", "HTML entities", "Cyrillic look-alikes", "sorted"]
    monkeypatch.setitem(evasion.TRANSFORMATIONS, "sorted", lambda text: "".join(sorted(text)))
    options = ["--output", str(tmp_path), "--stand-in", "--texts", "2", "--only", *names]
    monkeypatch.setattr("sys.argv", ["evasion.py", *options])
    evasion.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert {name: results[f"hard/{name}"]["after"] for name in names} == dict(zip(names, (2, 2, 2, 0), strict=True))
    assert [results[f"hard/{name}"]["before"] for name in names] == [2, 2, 0, 0]


@pytest.mark.parametrize("name", evasion.TRANSFORMATIONS)
def test_every_transformation_but_one_changes_the_text(name: str) -> None:
    text = 'The old lamp went out. "Nobody saw it," the keeper said. Then the wind rose over the bay.'
    assert (evasion.TRANSFORMATIONS[name](text) == text) == (name == "none")


# benchmarks/attacker.py: the block sequences of each defence, and what its attacker learns from made-up runs

PERIOD = 6


def test_each_defence_gives_the_detector_its_sequences() -> None:
    def sequences(defence: Defence) -> Packed:
        key = defence.key(StandInEmbedder(), bytes(32))
        return defence.sequences(key, 30)

    plain = Key.generate(embedder=StandInEmbedder(), secret=bytes(32)).blocks(30)
    assert (sequences(Defence("none")) == plain[None]).all()
    assert sequences(Defence("starts", 4)).shape == (1, 30)
    assert len(np.unique(sequences(Defence("sub-keys", 8)))) == 8 * len(set(plain))


def made_up(defence: Defence, blocks: Floats, texts: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """The sums of the runs of texts whose sentences are shifted by their blocks, and the states of the texts."""
    states = rng.integers(defence.states, size=texts)
    carried = blocks[defence.routes(3)[states]]
    return PERIOD * carried + np.sqrt(PERIOD) * rng.normal(size=carried.shape), states


@pytest.mark.parametrize("defence", [Defence("none"), Defence("starts", 4), Defence("sub-keys", 4)])
def test_blocks_are_learned_from_enough_texts(defence: Defence) -> None:
    rng = np.random.default_rng(1)
    blocks = 2.5 * rng.normal(size=(int(defence.routes(3).max()) + 1, 32)) / np.sqrt(32)
    runs, states = made_up(defence, blocks, 300, rng)
    learned = learn(runs, defence, PERIOD, rng)
    cosines = []
    for text, state in zip(runs[:20], states, strict=False):
        known, true = learned.of_text(text, collected=True), blocks[defence.routes(3)[state]]
        cosines.append((known * true).sum() / np.linalg.norm(known) / np.linalg.norm(true))
    assert np.median(cosines) > 0.9


def test_a_text_like_no_collected_one_counts_alone() -> None:
    rng = np.random.default_rng(2)
    runs = PERIOD * rng.normal(size=(1, 3, 32))
    learned = learn(runs, Defence("sub-keys", 4), PERIOD, rng)
    alone = nothing_learned(3, 32, PERIOD).of_text(-runs[0], collected=False)
    assert learned.of_text(-runs[0], collected=False) == pytest.approx(alone)


def test_the_tail_is_close_to_an_exponential_one() -> None:
    null = np.random.default_rng(3).exponential(size=4000)
    assert tail(float(-np.log(1e-5)), null) == pytest.approx(1e-5, rel=2)
    assert tail(0.0, null) == 1.0
