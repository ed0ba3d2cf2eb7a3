"""`alimark calibrate`: rates on human text and the centre of an embedder."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from alimark import Key
from alimark.cli import show
from alimark.cli.calibrate import rates_table
from alimark.core.generation.api import GenerationSettings
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from fixed_texts import generate

EMBEDDER = StandInEmbedder()


def test_rates_and_centre(run: Run, key_file: Path, tmp_path: Path) -> None:
    human = tmp_path / "human.jsonl"
    texts = [generate("S.", Key.load(key_file), EMBEDDER, StandInLLM(), GenerationSettings(4, 1), seed=i).text
             for i in range(40)]  # fmt: skip
    human.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]))
    centre = tmp_path / "centre.json"
    done = run("calibrate", "-k", key_file, "--human", human, "--sentences", "4,3", "--draws", 99, "--fresh",
               "--keys", 4, "--centring", "--centre-out", centre, "--json")  # fmt: skip
    assert done.status == 0, done.err
    four, three = json.loads(done.out)
    assert four["texts"] + four["repeats"] + four["too_short"] == 41
    assert three["sentences"] == 3
    assert set(four["spread"]) == {"keys", "texts", "as is", "centred"}
    assert all(0 <= share <= 1 for share in four["fresh_keys"]["p"])
    done = run("calibrate", "-k", key_file, "--human", human, "--sentences", 4, "--draws", 99)
    assert (done.status, done.out.count("Conclusion: ")) == (0, 1)
    keygen = run("keygen", "-o", tmp_path / "centred.json", "--centre", centre, "--embedder", "stand-in")
    assert keygen.status == 0, keygen.err
    assert Key.load(tmp_path / "centred.json").centre is not None


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_the_terminal(width: int) -> None:
    shares = {"p": [0.01, 0.05, 0.5], "p_randomised": [0.01, 0.05, 0.5]}
    spread = {name: [0.01, 0.05, 0.5] for name in ("mean", "std", "least", "most")}
    report = {
        "texts": 500, "sentences": 12, "levels": [0.01, 0.05, 0.5], "this_key": shares, "fresh_keys": shares,
        "interval_99": [(0.0, 0.024), (0.026, 0.078), (0.442, 0.558)], "z_as_normal": [0.01, 0.05, 0.5],
        "fresh_z_as_normal": [0.01, 0.05, 0.5], "spread": {"keys": 200, "as is": spread, "centred": spread},
    }  # fmt: skip
    console = Console(width=width, record=True, file=io.StringIO())
    show.print_table(rates_table(report), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert all(f"p <= {level}" in lines[0] for level in ("0.01", "0.05", "0.5"))
    assert len([line for line in lines if line.count("%") >= 3]) == 15


def test_a_table_that_does_not_fit_is_printed_row_by_row() -> None:
    table = Table()
    for name in range(12):
        table.add_column(f"column-number-{name}", no_wrap=True)
    table.add_row(*(f"value {name}" for name in range(12)))
    console = Console(width=80, record=True, file=io.StringIO())
    show.print_table(table, console)
    assert console.export_text().splitlines()[:12] == [f"column-number-{name}: value {name}" for name in range(12)]


def test_too_few_texts(run: Run, key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text('{"text": "One. Two."}\n')
    assert "at least 20" in run("calibrate", "-k", key_file, "--human", tmp_path / "h.jsonl", "--sentences", 2).err
