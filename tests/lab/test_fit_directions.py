"""Directions that are learned for an embedder without shipped ones: `fit_directions`, the keys that hold them, the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from alimark import AliMark, Key, detect
from alimark.core.frozen.directions import DirectionTable
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.projection import project
from alimark.errors import AlimarkError, KeyFileError
from alimark.lab.directions import fit_directions
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from fixed_texts import EMBEDDER, written

SECRET = bytes(range(32))
TEXTS = [" ".join(written(None, 20, seed=seed)) for seed in range(100, 115)]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit_directions(TEXTS, EMBEDDER)


@pytest.fixture(scope="module")
def key(fitted: Fitted) -> Key:
    return Key.generate(embedder=EMBEDDER, fitted=fitted, secret=SECRET)


def test_directions_and_their_origin(fitted: Fitted) -> None:
    rows, mean = fitted.arrays["directions"], fitted.arrays["mean"]
    assert (rows.shape, mean.shape) == ((64, 64), (64,))
    assert fitted.scheme == "alimark"
    assert (fitted.origin["embedder"], fitted.origin["texts"], fitted.origin["seed"]) == ("stand-in", 15, 1)
    again, other = fit_directions(TEXTS, EMBEDDER), fit_directions(TEXTS, EMBEDDER, seed=2)
    np.testing.assert_array_equal(again.arrays["directions"], rows)
    assert not np.array_equal(other.arrays["directions"], rows)


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(AlimarkError, match="at least 200 sentences"):
        fit_directions(TEXTS[:5], EMBEDDER)
    with pytest.raises(AlimarkError, match="at least 200 sentences"):  # of texts too short to tell how sentences differ
        fit_directions(["One sentence. Another one."], EMBEDDER)
    with pytest.raises(AlimarkError, match="no sentence"):
        fit_directions([], EMBEDDER)


def test_a_key_takes_its_vectors_from_learned_directions(fitted: Fitted, key: Key) -> None:
    table = DirectionTable.of(fitted.arrays["directions"], fitted.arrays["mean"])
    assert (key.span, key.public()["directions"]) == (64, table.digest)
    basis = np.linalg.qr(table.rows.T)[0]
    vectors = key.vectors(64)
    np.testing.assert_allclose(vectors @ basis @ basis.T, vectors, atol=1e-9)
    rows = EMBEDDER.embed(["A dog barked."])
    np.testing.assert_allclose(project(rows, key), (rows - table.mean) @ vectors.T, atol=1e-9)


def test_a_key_file_holds_its_table(fitted: Fitted, key: Key, tmp_path: Path) -> None:
    fitted.save(tmp_path / "directions.npz")
    assert Key.generate(embedder=EMBEDDER, fitted=Fitted.load(tmp_path / "directions.npz"), secret=SECRET) == key
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again, again.public()) == (key, key.public())
    np.testing.assert_array_equal(again.vectors(64), key.vectors(64))
    np.testing.assert_array_equal(again.like(SECRET).vectors(64), key.vectors(64))
    content = json.loads((tmp_path / "key.json").read_text())
    del content["fitted"]
    (tmp_path / "key.json").write_text(json.dumps(content))
    with pytest.raises(KeyFileError, match=r"directions .* are not known"):
        Key.load(tmp_path / "key.json")


def test_a_marked_text_is_found(key: Key, tmp_path: Path) -> None:
    key.save(tmp_path / "key.json")
    mark = AliMark(Key.load(tmp_path / "key.json"), embedder=EMBEDDER)
    text = mark.generate("A long story.", StandInLLM(), sentences=12, candidates=48, seed=3).text
    detection = mark.detect(text)
    assert detection.verdict() == "found"
    whole = Key.generate(embedder=EMBEDDER, secret=SECRET)
    together = detect(text, [whole, key, key.like(bytes(32))], embedder=EMBEDDER)
    assert together[0].key_id == key.id
    assert together[0].raw == pytest.approx(detection.raw)


def test_learned_directions_that_do_not_fit_are_refused(fitted: Fitted) -> None:
    for other in ({"decision": "hard"}, {"span": 0}):
        with pytest.raises(KeyFileError, match="leave the learned data out"):
            Key.generate(embedder=EMBEDDER, fitted=fitted, **other)
    with pytest.raises(KeyFileError, match="learned with the embedder stand-in"):
        Key.generate(embedder=StandInEmbedder(32), fitted=fitted)
    with pytest.raises(KeyFileError, match="data learned for alimark cannot be used for simmark"):
        Key.generate(scheme="simmark", embedder=EMBEDDER, fitted=fitted)
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(embedder=EMBEDDER, fitted=fitted, span=65)
    for arrays in ({}, {"directions": np.zeros((3, 64), "<f4")}, {"directions": np.eye(64), "mean": np.zeros(3)}):
        with pytest.raises(KeyFileError, match="alimark fit directions"):
            Key.generate(embedder=EMBEDDER, fitted=Fitted("alimark", arrays, fitted.origin))


@pytest.mark.usefixtures("stand_in_models")
def test_the_whole_road_on_the_command_line(command: Run, tmp_path: Path) -> None:
    corpus, table, key_file = tmp_path / "human.jsonl", tmp_path / "directions.npz", tmp_path / "key.json"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    done = command("fit", "directions", "--human", corpus, "--embedder", "stand-in", "-o", table, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["origin"]["texts"] == len(TEXTS)
    done = command("keygen", "--embedder", "stand-in", "--fitted", table, "-o", key_file)
    assert done.status == 0, done.err
    assert len(done.err.splitlines()) == 3  # no line about missing directions
    key = Key.load(key_file)
    assert (done.out.strip(), key.span, key.fitted is not None) == (key.id, 64, True)
    done = command("generate", "-k", key_file, "-p", "It was a day.", "--seed", 3, "--sentences", 12)
    assert done.status == 0, done.err
    (tmp_path / "text.txt").write_text(done.out)
    assert json.loads(command("detect", "-k", key_file, tmp_path / "text.txt", "--json").out)["verdict"] == "found"


@pytest.mark.usefixtures("stand_in_models")
def test_wrong_commands(command: Run, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"text": TEXTS[0]}))
    out = tmp_path / "d.npz"
    for words, message in (
        (("--human", few), "at least 200 sentences"),
        (("--set", "rank=3"), "directions has no option rank of learning; it has: seed"),
    ):
        done = command("fit", "directions", "--embedder", "stand-in", "-o", out, *words)
        assert done.status == 2
        assert message in done.err
        assert not out.exists()
    fit_directions(TEXTS, EMBEDDER).save(out)
    done = command("keygen", "--embedder", "stand-in", "--decision", "hard", "--fitted", out, "-o", tmp_path / "k.json")
    assert (done.status, (tmp_path / "k.json").exists()) == (2, False)
    assert "leave the learned data out" in done.err
