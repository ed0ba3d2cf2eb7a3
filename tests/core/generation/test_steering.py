"""Steering: what words add becomes a bias by token towards the next block, and goes to models that may know it only."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from alimark import AliMark, Key, Sampling
from alimark.core.frozen.directions import NOISE_AWARE_FILE, mean_of
from alimark.core.generation.api import GenerationSettings, Prompt, Session, generate_many
from alimark.core.generation.settings import STEERED, STRENGTHS
from alimark.core.generation.steering import MOST, TokenVectors, WordVectors, steerable, token_vectors
from alimark.core.keys.projection import in_table, project, table_of, targets
from alimark.core.llm.base import Draw, Request, StopCondition
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder, StandInLLM

with np.load(NOISE_AWARE_FILE) as _tables:
    [FINGERPRINT] = [name for name in _tables.files if mean_of(name) in _tables.files and _tables[name].shape[1] == 384]


def key_of(number: int = 1, decision: str = "soft") -> Key:
    secret = bytes([number]) * 32
    table_key = Key(secret, embedder="all-MiniLM-L6-v2", fingerprint=FINGERPRINT)
    return (
        table_key if decision == "soft" else Key(secret, embedder="stand-in", fingerprint=StandInEmbedder().fingerprint)
    )


KEY = key_of()
WORDS = WordVectors(
    ("sea", "harbour", "harvest", "lamp"), np.eye(4, 64, dtype=np.float32), np.array([4, 3, 1, 2], np.float32)
)


class Steerable(StandInLLM):
    """A stand-in whose tokens are pieces of up to four characters; it notes the requests."""

    bias_stays_here = True

    def __init__(self, first_words: str = "") -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}
        self.requests: list[Request] = []
        self._first_words = first_words

    def encode(self, text: str) -> list[int]:
        return [self.vocabulary.setdefault(piece, len(self.vocabulary)) for piece in re.findall(r"\n|[^\n]{1,4}", text)]

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        self.requests += requests
        answers = super().draw([replace(request, bias=None) for request in requests], sampling, stop)
        return [[replace(draw, text=self._first_words + draw.text) for draw in draws] for draws in answers]


def test_the_shipped_words_are_those_of_the_default_embedders_table() -> None:
    table = table_of(KEY)
    assert table is not None
    words = WordVectors.of(table.digest)
    assert words is not None
    assert len(words.words) == len(set(words.words)) == len(words.rows) > 10_000
    assert words.rows.shape[1] == len(table.rows)
    # Words of one topic move a sentence alike, and others do not.
    row = {word: words.rows[words.words.index(word)] for word in ("ship", "boat", "music")}
    assert np.corrcoef(row["ship"], row["boat"])[0, 1] > 0.3 > np.corrcoef(row["ship"], row["music"])[0, 1]
    assert WordVectors.of("sha256:other") is None


def test_words_are_kept_as_small_numbers(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    kept = WordVectors(WORDS.words, rows, WORDS.counts)
    np.savez(tmp_path / "words.npz", **kept.arrays("a table"))  # type: ignore[arg-type]
    read = WordVectors.of("a table", tmp_path / "words.npz")
    assert read is not None
    assert read.words == WORDS.words
    np.testing.assert_allclose(read.rows, rows, atol=0.02)


def test_a_block_has_its_direction_in_the_table() -> None:
    target = targets(KEY, 1)[0]
    table = table_of(KEY)
    assert table is not None
    vectors = np.random.default_rng(2).standard_normal((5, 384)).astype(np.float32)
    along = (vectors - table.mean) @ table.rows.T @ in_table(KEY, target)
    np.testing.assert_allclose(along, project(vectors, KEY) @ target, rtol=1e-9)


def test_tokens_get_the_vectors_of_their_words() -> None:
    llm = Steerable()
    vectors = TokenVectors.of(WORDS, llm)
    [sea] = llm.encode(" sea")
    assert vectors.rows[sea] == pytest.approx(WORDS.rows[0])
    first, second = llm.encode(" harbour")[:2]
    assert vectors.rows[first, 1:3] == pytest.approx([3 / 4, 1 / 4]), "the mean of harbour and harvest, by frequency"
    assert vectors.rows[second, 1] > 0 > vectors.rows[second, 2], "the next token tells which of them it is"
    capital = llm.encode(" Sea")[0]
    assert vectors.rows[capital] == pytest.approx(WORDS.rows[0])


def test_a_bias_is_capped_and_leaves_words_as_likely_as_before() -> None:
    llm = Steerable()
    vectors = TokenVectors.of(WORDS, llm)
    direction = np.eye(1, 64)[0]
    weak, strong = vectors.bias(direction, 1.0), vectors.bias(direction, 100.0)
    for bias in (weak, strong):
        assert np.average(np.exp(bias), weights=vectors.counts) == pytest.approx(1.0, rel=1e-5)
        assert bias.max() - bias[vectors.counts > 0].min() <= MOST + 1e-6
    sea, lamp = llm.encode(" sea")[0], llm.encode(" lam")[0]
    assert strong[sea] > weak[sea] > 0 > weak[lamp] > strong[lamp]


def test_each_block_of_each_key_has_its_own_bias_and_quotations_have_none() -> None:
    def biases(key: Key, llm: Steerable) -> list[np.ndarray]:
        session = Session("It was late.", key, GenerationSettings(12, 4, steering=3.0), rule=rule_for, seed=1)
        found = []
        for _ in range(12):
            request = session.request(llm)
            assert request.bias is not None
            found.append(request.bias)
            [draws] = llm.draw([request], Sampling(), lambda text: False)
            units = session.parse(draws)
            features = np.random.default_rng(3).standard_normal((len(units), session.rule.size))
            chosen = session.choose(dict(zip(units, features, strict=True)))
            assert chosen is not None
            session.append(chosen)
        return found

    first, other = biases(KEY, Steerable()), biases(key_of(2), Steerable())
    blocks = {bias.tobytes() for bias in first}
    assert 1 < len(blocks) < 12, "sentences of a run share a block"
    assert blocks.isdisjoint(bias.tobytes() for bias in other)
    quoting = biases(KEY, Steerable("\n> "))
    assert all(not len(bias) for bias in quoting[1:])


def test_only_models_that_may_know_the_key_are_steered() -> None:
    assert steerable(Steerable(), KEY)
    assert not steerable(StandInLLM(), KEY)
    outside = Steerable()
    outside.bias_stays_here = False
    assert not steerable(outside, KEY)
    with pytest.raises(AlimarkError, match="cannot be steered towards this key; leave out the steering"):
        token_vectors(outside, KEY)
    hard = key_of(decision="hard")
    [(_, answer)] = generate_many(
        [Prompt("It was late.")],
        hard,
        StandInEmbedder(),
        Steerable(),
        GenerationSettings(2, 2, steering=1.0),
        rule=rule_for,
    )
    assert isinstance(answer, AlimarkError)
    assert "leave out the steering" in str(answer)


def test_strengths_are_steered_where_that_is_possible() -> None:
    mark = AliMark(KEY)
    settings = mark._generation_settings
    steered = settings({}, Steerable())
    assert (steered.candidates, steered.steering) == STEERED["standard"]
    assert STEERED["light"][0] < STEERED["standard"][0] <= 8 < STEERED["strong"][0]
    alone = settings({"strength": "strong"}, StandInLLM())
    assert (alone.candidates, alone.steering) == (STRENGTHS["strong"], 0)
    chosen = settings({"candidates": 32}, Steerable())
    assert (chosen.candidates, chosen.steering) == (32, 0)
    assert "steering" not in chosen.to_dict()
    assert settings({"steering": 2.0}, Steerable()).to_dict()["steering"] == 2.0
    with pytest.raises(AlimarkError, match="give either a strength or candidates and steering"):
        settings({"strength": "light", "steering": 2.0}, Steerable())
    with pytest.raises(AlimarkError, match="this model cannot be steered"):
        settings({"steering": 2.0}, StandInLLM())
    with pytest.raises(AlimarkError, match="steering must lie between 0 and 30"):
        settings({"steering": 31.0}, Steerable())
    hard = AliMark(Key.generate(embedder=StandInEmbedder(), secret=bytes(32), decision="hard"))
    assert hard._generation_settings({}, Steerable()).steering == 0


def test_a_single_bias_gives_its_direction_away() -> None:
    """What docs/threat-model.md says: words and their vectors are public, so least squares solve for the direction."""
    table = table_of(KEY)
    assert table is not None
    words = WordVectors.of(table.digest)
    assert words is not None
    vectors = TokenVectors.of(words, Steerable())
    direction = in_table(KEY, targets(KEY, 1)[0])
    bias = vectors.bias(direction, 2.5)
    known = vectors.counts > 0
    columns = np.column_stack([vectors.rows[known], np.ones(known.sum())])  # the last one: what all words get less
    guess = np.linalg.lstsq(columns, bias[known], rcond=None)[0][:-1]
    assert guess @ direction / np.linalg.norm(guess) / np.linalg.norm(direction) > 0.98


def test_a_bias_is_in_no_repr() -> None:
    request = Request("It was late.", 1, 0, bias=np.full(3, 0.125, np.float32))
    assert "bias" not in repr(request)
    assert "0.125" not in repr(request)
