"""The arithmetic of the token-level watermarks against plain twins, against SciPy and against transformers."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import token_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from alimark.lab.rivals import _prf, exp, kgw, sir, synthid

SECRETS = _prf.words(bytes(range(64)))
ids_of_texts = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(lambda ids: np.array(ids, np.int64))


def test_hashes_are_the_same_in_numpy_torch_and_plain_python() -> None:
    torch = pytest.importorskip("torch")
    a, b = np.arange(7) * 9973, np.array([0, 1, 49151, 2**31])[:, None]
    found = _prf.hashed(SECRETS[0], a, b)
    plain = [[oracle.hashed(SECRETS[0], x, y) for x in a.tolist()] for y in b[:, 0].tolist()]
    assert found.tolist() == plain
    tensors = _prf.torch_hashed(_prf.on("cpu", SECRETS[0]), torch.from_numpy(a), torch.from_numpy(b))
    assert tensors.numpy().view(np.uint64).tolist() == plain
    assert int(_prf.hashed_pair(SECRETS[0, 0], SECRETS[0, 1], np.uint64(a[3]), np.uint64(b[2, 0]))) == plain[2][3]
    units = _prf.torch_unit(tensors).numpy()
    assert (units == _prf.unit(found)).all()
    assert units[0, 0] == oracle.uniform(SECRETS[0], 0, 0)


def test_hashes_are_pinned() -> None:
    """What a key means may not change with a release."""
    assert hex(int(_prf.hashed(SECRETS[0], np.array(5), np.array(7)))) == "0xb8d429da8770744f"


def test_hashes_look_uniform_and_independent_of_the_neighbour() -> None:
    found = _prf.unit(_prf.hashed(SECRETS[1], np.arange(300)[:, None], np.arange(300)))
    assert stats.kstest(found.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(found[:, :-1].ravel(), found[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1]) < 0.02


# KGW


@given(ids_of_texts, st.integers(0, 3), st.sampled_from([0.25, 0.5]))
@settings(max_examples=50, deadline=None)
def test_green_count_equals_the_plain_one(ids: Any, context: int, gamma: float) -> None:
    grams = kgw.distinct_ngrams(ids, context + 1)
    found = int(kgw.green_tokens(SECRETS[0], grams, gamma).sum())

    def is_green(before: tuple[int, ...], token: int) -> bool:
        return oracle.hashed(SECRETS[0], *before, token) < gamma * 2**64

    assert (found, len(grams)) == oracle.green_count(ids.tolist(), context, is_green)


def test_torch_finds_the_same_tokens_green() -> None:
    torch = pytest.importorskip("torch")
    context = np.array([[3, 4], [5, 6]])
    tokens = np.arange(1000)
    grams = [np.column_stack([np.tile(row, (1000, 1)), tokens]) for row in context]
    expected = np.stack([kgw.green_tokens(SECRETS[0], rows, 0.25) for rows in grams])
    every = torch.from_numpy(np.tile(tokens, (2, 1)))
    found = kgw.torch_green(_prf.on("cpu", SECRETS[0]), torch.from_numpy(context), every, 0.25)
    assert (found.numpy() == expected).all()
    assert 0.2 < expected.mean() < 0.3


# EXP


@given(ids_of_texts, st.integers(1, 24), st.sampled_from([0.0, 0.4, 3.0]))
@settings(max_examples=40, deadline=None)
def test_cost_equals_the_plain_edit_distance(ids: Any, length: int, gap: float) -> None:
    found = exp.costs(ids[:16], SECRETS[:2], length, gap)
    plain = [oracle.edit_cost(ids[:16].tolist(), partial(oracle.uniform, one), length, gap) for one in SECRETS[:2]]
    assert found == pytest.approx(plain, rel=1e-5, abs=1e-5)


def test_more_shifts_than_lanes_are_all_tried() -> None:
    ids = np.random.default_rng(1).integers(0, 500, 9)
    plain = oracle.edit_cost(ids.tolist(), partial(oracle.uniform, SECRETS[2]), 150, 0.4)
    assert exp.costs(ids, SECRETS[2:3], 150, 0.4)[0] == pytest.approx(plain, rel=1e-5)


def test_texts_begin_all_over_the_sequence() -> None:
    found = exp.starts(list(range(2000)), 256)
    assert min(found) >= 0
    assert max(found) < 256
    assert stats.chisquare(np.bincount(np.array(found) // 16, minlength=16)).pvalue > 0.001


# SynthID


@given(ids_of_texts, st.integers(2, 4), st.sampled_from([3, 1024]))
@settings(max_examples=50, deadline=None)
def test_g_values_equal_the_plain_ones(ids: Any, n: int, history: int) -> None:
    keys = np.array([7, 1, 2**31], np.uint64)
    table = (np.arange(256) * 37 % 5 < 2).astype(np.uint8)
    hashes = synthid.ngram_hashes(ids, n)[synthid.fresh_contexts(ids, n, history)]
    found = synthid.g_values(hashes, keys, table)
    assert found.tolist() == oracle.g_values(ids.tolist(), keys.tolist(), table.tolist(), n, history)


@pytest.mark.parametrize("history", [4, 1024])
def test_g_values_and_masks_equal_those_of_transformers(history: int) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    keys = [654, 400, 836, 2**31 + 5]
    processor = transformers.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3, keys=keys, sampling_table_size=2**16, sampling_table_seed=0, context_history_size=history,
        device=torch.device("cpu"),
    )  # fmt: skip
    ids = np.random.default_rng(2).integers(0, 12, 200)
    theirs = processor.compute_g_values(torch.from_numpy(ids)[None])[0].numpy()
    table = processor.sampling_table.numpy().astype(np.uint8)
    ours = synthid.g_values(synthid.ngram_hashes(ids, 3), np.array(keys, np.uint64), table)
    assert (ours == theirs).all()
    mask = processor.compute_context_repetition_mask(torch.from_numpy(ids)[None])[0].numpy()
    assert (synthid.fresh_contexts(ids, 3, history) == mask).all()
    assert 0 < mask.sum() < len(mask)


def test_a_tournament_of_transformers_is_the_papers() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    random = np.random.default_rng(3)
    chances = random.dirichlet(np.ones(6))
    bits = random.integers(0, 2, (6, 5))
    processor = transformers.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3, keys=[1], sampling_table_size=2**8, sampling_table_seed=0, context_history_size=4,
        device=torch.device("cpu"),
    )  # fmt: skip
    logs = processor.update_scores(torch.from_numpy(chances).log()[None], torch.from_numpy(bits)[None])
    assert logs.exp()[0].numpy() == pytest.approx(oracle.tournament(chances.tolist(), bits.tolist()), rel=1e-9)


# SIR


def test_tokens_are_assigned_evenly_and_alike_in_torch() -> None:
    torch = pytest.importorskip("torch")
    tokens = np.arange(30_000)
    found = sir.assigned(SECRETS[0], tokens, 300)
    assert stats.chisquare(np.bincount(found, minlength=300)).pvalue > 0.001
    upper = (_prf.torch_hashed(_prf.on("cpu", SECRETS[0]), torch.from_numpy(tokens)) >> 32) & 0xFFFFFFFF
    assert ((upper * 300 >> 32).numpy() == found).all()


def test_training_lowers_both_losses_and_gives_balanced_signs() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(4)
    topics = random.normal(size=(20, 32))
    vectors = np.repeat(topics, 10, axis=0) + 0.5 * random.normal(size=(200, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    _, before = sir.train(vectors, 40, 1, 0, rate=1e-9)
    arrays, after = sir.train(vectors, 40, 40, 0, rate=3e-3)
    assert after["similarity"] < 0.8 * before["similarity"]
    assert after["normalisation"] < 0.5 * before["normalisation"]
    from alimark.core.keys.fitted import Fitted

    network = sir.SIRNetwork.of(Fitted("sir", arrays, {}), 40)
    made = network(vectors)
    again = sir._forward({name: torch.from_numpy(one) for name, one in arrays.items()}, torch.from_numpy(vectors))
    assert made == pytest.approx(again.numpy(), abs=1e-4)
    signs = network.signs(vectors)
    assert abs(signs.mean()) < 0.1
    same = np.mean([np.mean(signs[i] * signs[i + 1]) for i in range(0, 200, 10)])
    other = np.mean([np.mean(signs[i] * signs[(i + 10) % 200]) for i in range(0, 200, 10)])
    assert same > other + 0.3


def test_the_losses_are_the_papers() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    made, vectors = random.normal(size=(3, 4)), random.normal(size=(3, 5))

    def cosine(a: Any, b: Any) -> float:
        return float(a @ b / np.sqrt(a @ a * (b @ b)))

    pairs = [(i, j) for i in range(3) for j in range(3)]
    middle = np.mean([cosine(vectors[i], vectors[j]) for i, j in pairs])
    similarity = np.mean(
        [abs(cosine(made[i], made[j]) - np.tanh(20 * (cosine(vectors[i], vectors[j]) - middle))) for i, j in pairs]
    )
    normalisation = (
        np.mean([abs(row.mean()) for row in made])
        + np.mean([abs(column.mean()) for column in made.T])
        + np.mean([abs(1 - abs(x)) for x in made.ravel()])
    )
    rows, embeddings = torch.from_numpy(made), torch.from_numpy(vectors)
    assert float(sir.mean_cosine(embeddings)) == pytest.approx(middle)
    assert float(sir.similarity_loss(rows, embeddings, sir.mean_cosine(embeddings))) == pytest.approx(similarity)
    assert float(sir.normalisation_loss(rows)) == pytest.approx(normalisation)
