"""Directions that are learned for an embedder without shipped ones: `fit_directions`, the keys that hold them, the commands."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh

from alimark import AliMark, Key, detect
from alimark.core.frozen.directions import DirectionTable
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.projection import project
from alimark.errors import AlimarkError, KeyFileError
from alimark.lab.directions import Statistics, combine, directions_of, distorted, fit_directions, table_of
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from fixed_texts import EMBEDDER, written
from paraphrase_pairs import Pair, aligned, pair_statistics

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
    with pytest.raises(KeyFileError, match=r"was changed: its id does not match"):
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


# How directions are learned

FIVE = np.eye(5)


# The alignment


@pytest.mark.parametrize(
    ("original", "paraphrase", "links"),
    [
        ([0, 1, 2], [0, 1, 2], [(0, 0), (1, 1), (2, 2)]),
        ([0, 1, 2], [0, 2], [(0, 0), (2, 1)]),  # the second sentence was left out
        ([0, 1], [0, 3, 1], [(0, 0), (1, 2)]),  # a sentence was added
        ([0, 1, 2], [3, 4], []),  # nothing of the text is left
        ([0, 1, 2], [2, 0], [(0, 1)]),  # the order is kept
    ],
)
def test_texts_are_aligned_in_order(original: list[int], paraphrase: list[int], links: list[tuple[int, int]]) -> None:
    assert [tuple(link) for link in aligned(FIVE[original], FIVE[paraphrase]).tolist()] == links


def test_a_sentence_that_stands_for_two_is_not_returned() -> None:
    both = (FIVE[0] + FIVE[1]) / np.sqrt(2)
    merged = aligned(FIVE[[0, 1, 2]], np.stack([both, FIVE[2]]))
    assert merged.tolist() == [[2, 1]]
    split = aligned(np.stack([both, FIVE[2]]), FIVE[[0, 1, 2]])
    assert split.tolist() == [[1, 2]]


def test_without_sentences_nothing_is_aligned() -> None:
    for original, paraphrase in ((0, 3), (3, 0), (0, 0), (1, 0)):
        assert aligned(FIVE[:original], FIVE[:paraphrase]).shape == (0, 2)


@given(seed=st.integers(0, 2**32), n=st.integers(0, 8), m=st.integers(0, 8))
def test_links_are_in_order_and_one_to_one(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    original, paraphrase = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (rng.normal(size=(k, 3)) for k in (n, m))
    )
    links = aligned(original, paraphrase)
    assert (np.diff(links, axis=0) > 0).all()
    assert all(original[i] @ paraphrase[j] > 0 for i, j in links)


# The directions


def covariance(seed: int, size: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(3 * size, size)) * np.linspace(0.2, 2, size)
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("ridge", [1e-4, 0.5])
def test_directions_are_generalised_eigenvectors_scaled_to_unit_spread(ridge: float) -> None:
    spread, noise = covariance(1, 12), covariance(2, 12)
    rows, ratios = directions_of(spread, noise, 7, ridge)
    regular = noise + ridge * np.trace(noise) / 12 * np.eye(12)
    values, vectors = eigh(spread, regular)
    np.testing.assert_allclose(ratios, values[::-1][:7], rtol=1e-9)
    for row, vector in zip(rows, vectors.T[::-1], strict=False):
        scaled = vector / np.sqrt(vector @ spread @ vector)
        np.testing.assert_allclose(row, scaled * np.sign(scaled @ row), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rows @ spread @ rows.T, np.eye(7), atol=1e-9)
    np.testing.assert_allclose(np.diag(rows @ regular @ rows.T), 1 / ratios, rtol=1e-9)
    assert (rows.sum(axis=1) >= 0).all()


def test_a_noisy_direction_comes_last() -> None:
    spread, noise = np.eye(4), np.diag([1.0, 0.01, 9.0, 0.1])
    rows, ratios = directions_of(spread, noise, 4)
    assert np.abs(rows).argmax(axis=1).tolist() == [1, 3, 0, 2]
    assert (np.diff(ratios) < 0).all()


def test_corpora_count_the_same_whatever_their_size() -> None:
    rng, corpora = np.random.default_rng(3), []
    for texts, scale in ((40, 1.0), (4, 3.0)):
        statistics = Statistics(3)
        for _ in range(texts):
            statistics.add_text(scale * rng.normal(size=(50, 3)) + 2)
        statistics.add_noise(scale * rng.normal(size=(texts * 50, 3)) / 2)
        corpora.append(statistics)
    spread, noise, _, mean = combine(corpora)
    np.testing.assert_allclose(spread, np.eye(3) * (1 + 9) / 2, atol=0.8)
    np.testing.assert_allclose(noise, np.eye(3) * (1 + 9) / 8, atol=0.3)
    np.testing.assert_allclose(mean, 2, atol=0.2)


def test_a_direction_that_topics_share_comes_last() -> None:
    rng, statistics = np.random.default_rng(8), Statistics(3)
    for _ in range(200):
        statistics.add_text(rng.normal(size=(20, 3)) + rng.normal(size=3) * [3.0, 0.0, 0.0])
    statistics.add_noise(rng.normal(size=(4000, 3)) * [0.3, 0.4, 0.5])
    for weight, order in ((0.0, [0, 1, 2]), (2.0, [1, 2, 0])):
        table, _ = table_of([statistics], topic_weight=weight)
        assert np.abs(table.rows).argmax(axis=1).tolist() == order


def test_pairs_of_texts_and_paraphrases() -> None:
    text = written(None, 6, seed=1)
    shorter = [text[0], *text[2:]]
    statistics = pair_statistics([Pair(text, shorter), Pair(text, [f"{s} So it was." for s in text])], EMBEDDER)
    assert (statistics.sentences, statistics.spread_count) == (6, 5)  # one text, though it has two paraphrases
    assert 8 <= statistics.noise_count <= 11
    only_same = pair_statistics([Pair(text, shorter)], EMBEDDER)
    np.testing.assert_allclose(only_same.noise, 0, atol=1e-9)


# The noise model


def test_a_distorted_sentence_has_fewer_words_of_the_same() -> None:
    sentence = 'The old sailor sold his boat to a young doctor from the city, and said: "Never again!"'
    copies = {distorted(sentence, Random(seed)) for seed in range(20)}
    assert len(copies) > 10
    words = set(sentence.lower().rstrip('!"').split())
    for copy in copies:
        assert set(copy.split()) <= words
        assert not copy.endswith(("!", '"'))
    assert distorted(sentence, Random(4)) == distorted(sentence, Random(4))


@pytest.mark.parametrize("sentence", ["Yes.", "...", "", "   "])
def test_the_shortest_sentence_can_be_distorted(sentence: str) -> None:
    assert len(distorted(sentence, Random(1)).split()) == len(sentence.rstrip(".").split())
