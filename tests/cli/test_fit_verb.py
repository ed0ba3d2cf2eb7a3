"""alimark fit semstamp-embedder: the command that fine-tunes an embedder, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alimark import Key
from commands import Run
from tiny_embedders import WORDS, make_model

pytest.importorskip("sentence_transformers")

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALIMARK_HOME", str(tmp_path / "home"))
    return make_model(tmp_path / "base", "bert")


def test_an_embedder_is_fine_tuned_and_named_by_a_key(command: Run, base: Path, tmp_path: Path) -> None:
    sentences = [f"The {a} ran under the {b}." for a in WORDS for b in WORDS if a < b]
    records = [{"original": text, "paraphrase": text.replace("ran under", "quickly ran under")} for text in sentences]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    folder = tmp_path / "tuned"
    words = ("--pairs", tmp_path / "pairs.jsonl", "--embedder", base, "-o", folder, "--set", "epochs=1", "--json")
    done = command("fit", "semstamp-embedder", *words)
    assert done.status == 0, done.err
    origin = json.loads(done.out)["origin"]
    assert origin == json.loads((folder / "alimark.json").read_text())
    assert origin["pairs"] + origin["held_out_pairs"] == len(sentences)
    done = command("keygen", "--scheme", "semstamp", "--embedder", folder, "-o", tmp_path / "key.json")
    assert done.status == 0, done.err
    key = Key.load(tmp_path / "key.json")
    assert (key.scheme, key.embedder) == ("semstamp", str(folder))
    assert key.fingerprint != origin["base_fingerprint"]
    done = command("fit", "semstamp-embedder", *words)
    assert (done.status, "exists" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("semstamp-embedder",), "give --pairs"),
        (("semstamp-embedder", "--pairs", "p.jsonl", "--human", "h.jsonl"), "no --human"),
        (("semstamp-embedder", "--pairs", "p.jsonl", "--set", "colour=red"), "no option colour"),
        (("semstamp-embedder", "--pairs", "p.jsonl", "--set", "margin=9"), "margin"),
        (("semstamp-embedder", "--pairs", "p.jsonl", "--set", "margin=wide"), "these options"),
        (("simmark", "--pairs", "p.jsonl"), "learns from --human"),
    ],
)
def test_wrong_commands(command: Run, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = command("fit", *words, "-o", tmp_path / "out")
    assert done.status == 2
    assert message in done.err
    assert not (tmp_path / "out").exists()
