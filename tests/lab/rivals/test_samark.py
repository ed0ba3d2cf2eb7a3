"""SAMark: its rule and statistic against plain oracles, its filters, and its p-values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle_rivals as oracle
import pytest
from rival_keys import EMBEDDER, Vectors, human, random_rows
from scipy import stats

from alimark import Key, load
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings, Session
from alimark.core.generation.selection import TextOrigin, Weight
from alimark.core.llm.base import Draw
from alimark.core.schemes.registry import rule_for
from alimark.errors import KeyMismatch
from alimark.lab.rivals.samark import AnchorRule
from alimark.testing import StandInLLM


def key_of(number: int = 0, **parameters: Any) -> Key:
    return Key.generate(scheme="samark", embedder=EMBEDDER, secret=number.to_bytes(32, "big"), **parameters)


def oracle_z(key: Key, vectors: Sequence[Sequence[float]]) -> float:
    directions = oracle.channels(key, len(vectors[0]), "samark/directions")
    channels = [[oracle.cosine(direction, vector) for vector in vectors] for direction in directions]
    if key.parameters["signs"] == "key":
        signs = AnchorRule(key).signs.tolist()
    else:
        signs = [-1.0 if sum(values) < 0 else 1.0 for values in channels]
    scores = [
        math.tanh(key.parameters["slope"] * sign * value)
        for sign, values in zip(signs, channels, strict=True)
        for value in values
    ]
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
    return mean * math.sqrt(len(scores)) / math.sqrt(variance)


@pytest.mark.parametrize("signs", ["key", "text"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_the_statistic_is_the_oracles_and_does_not_depend_on_the_order(signs: str, channels: int) -> None:
    rows = random_rows(12, channels)
    key = key_of(channels, signs=signs, channels=channels, slope=4.0)
    mark = load(key, embedder=Vectors(rows))
    detection = mark.detect(Vectors.text(range(12)), draws=50)
    assert detection.z == pytest.approx(oracle_z(key, rows.tolist()))
    assert detection.evidence["counted"] == 12 * channels
    reversed_text = mark.detect(Vectors.text(range(11, -1, -1)), draws=50)
    assert reversed_text.z == pytest.approx(detection.z)
    assert reversed_text.p_value == detection.p_value


def test_the_score_is_not_centred_by_the_text() -> None:
    """A text whose sentences all lie at the same place has the highest score there is; centring would leave nothing of it."""
    key = key_of(1)
    direction = AnchorRule(key).directions(64)
    place = AnchorRule(key).signs @ direction
    near = place + 0.05 * random_rows(10, 3)
    detection = load(key, embedder=Vectors(near)).detect(Vectors.text(range(10)))
    assert detection.evidence["aligned"] == 20
    assert detection.p_value < 0.01


@pytest.mark.parametrize("signs", ["key", "text"])
def test_p_values_of_other_texts_are_uniform_even_where_all_sentences_are_alike(signs: str) -> None:
    rows = random_rows(6, 5) * 0.5 + random_rows(1, 6)
    text = Vectors.text(range(6))
    p_values = []
    for number in range(300):
        mark = load(key_of(number, signs=signs), embedder=Vectors(rows))
        p_values.append(mark.detect(text, settings=RandomKeys(draws=99)).p_randomised)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


@pytest.mark.parametrize("signs", ["key", "text"])
def test_marked_texts_are_found_and_others_are_not(signs: str) -> None:
    for number in range(3):
        mark = load(key_of(number, signs=signs), embedder=EMBEDDER)
        generation: Any = mark.generate("A day.", StandInLLM(), sentences=12, seed=number)
        assert generation.unmet <= 2
        assert sum(generation.matches) >= 22
        assert mark.detect(generation.text).verdict() == "found"
        assert mark.detect(" ".join(reversed(generation.sentences))).verdict() == "found"
    other = load(key_of(99, signs=signs), embedder=EMBEDDER)
    assert sum(other.detect(text).verdict() == "found" for text in human()[:20]) <= 2


def test_signs_of_the_key_are_fixed_and_those_of_texts_differ() -> None:
    settings = GenerationSettings()
    of_key = {tuple(AnchorRule(key_of(3, channels=4), str(n)).signs) for n in range(8)}
    of_texts = {tuple(AnchorRule(key_of(3, channels=4, signs="text"), str(n)).signs) for n in range(8)}
    assert len(of_key) == 1
    assert len(of_texts) > 3
    assert isinstance(rule_for(key_of(3), settings, TextOrigin("a", "", (), splitter())), AnchorRule)


def rule_with(units: Sequence[str], **parameters: Any) -> AnchorRule:
    """A rule after some sentences."""
    rule = AnchorRule(key_of(5, **parameters), "text")
    for unit in units:
        rule.chose_text(rule.see(EMBEDDER.embed([unit]))[0], unit)
    return rule


def best(rule: AnchorRule, units: Sequence[str]) -> str:
    weights = rule.weigh_texts(rule.see(EMBEDDER.embed(list(units))), units)
    return max(zip(units, weights, strict=True), key=lambda pair: pair[1].worth)[0]


SAID = "The old captain counted all of his ships in the harbour."
AGAIN = "The old captain counted all of his ships in the harbour again."
FRESH = "Nobody knew where the painter had hidden her letter."


def test_the_hard_filter_refuses_repeated_words_and_repeated_meaning() -> None:
    for limits in ({"overlap": 0.5, "similarity": 2.0}, {"overlap": 2.0, "similarity": 0.85}):
        rule = rule_with([SAID], **limits)
        again, fresh = rule.weigh_texts(rule.see(EMBEDDER.embed([AGAIN, FRESH])), [AGAIN, FRESH])
        assert fresh.worth > again.worth + 1000
        assert not again.met
        # Where no candidate passes, the filter is left out.
        [alone] = rule.weigh_texts(rule.see(EMBEDDER.embed([AGAIN])), [AGAIN])
        assert alone.worth > -1000
    free = rule_with([SAID], overlap=2.0, similarity=2.0)
    assert all(w.worth > -1000 for w in free.weigh_texts(free.see(EMBEDDER.embed([AGAIN, FRESH])), [AGAIN, FRESH]))


def test_the_soft_penalty_prefers_new_meaning_and_new_words() -> None:
    for weights in ({"diversity": 50.0, "novelty": 0.0}, {"diversity": 0.0, "novelty": 50.0}):
        rule = rule_with([SAID], overlap=2.0, similarity=2.0, sharpness=1e6, **weights)
        plain = rule_with([SAID], overlap=2.0, similarity=2.0, sharpness=1e6, diversity=0.0, novelty=0.0)
        units = [AGAIN, FRESH]
        seen = rule.see(EMBEDDER.embed(units))
        gains = [
            after.worth - before.worth
            for after, before in zip(rule.weigh_texts(seen, units), plain.weigh_texts(seen, units), strict=True)
        ]
        assert gains[1] > gains[0] + 5


def test_channels_come_before_scores_and_the_highest_score_is_nearly_always_drawn() -> None:
    rule = AnchorRule(key_of(6), "t")
    rows = random_rows(64, 8).astype(np.float32)
    seen = rule.see(rows)
    weights = rule.weigh(seen)
    signed = seen[:, :2] * rule.signs
    chosen = max(range(64), key=lambda i: weights[i].worth)
    assert weights[chosen].matches == max((signed > 0).sum(axis=1))
    scores = np.tanh(30 * signed).sum(axis=1)
    assert scores[chosen] > scores.max() - 0.1


def test_the_preset_of_the_released_code_and_too_few_dimensions() -> None:
    assert key_of(7, preset="released").parameters["signs"] == "text"
    with pytest.raises(KeyMismatch, match="at least as many dimensions"):
        AnchorRule(key_of(channels=16)).directions(8)


def test_a_single_sentence_cannot_be_told() -> None:
    detection = load(key_of(), embedder=EMBEDDER).detect("One sentence stands alone.")
    assert "too short" in str(detection.verdict())


def test_a_sentence_that_was_drawn_twice_has_two_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw has noise of its own; a sentence gets the better of its two, whichever came first."""
    session = Session("A day.", key_of(), GenerationSettings(sentences=1, candidates=3), seed=1, rule=rule_for)
    draws = [Draw(text, 1, "sentence") for text in (" One came.", " Two went.", " One came.")]
    units = session.parse(draws)
    for worths in ((3.0, 2.0, 1.0), (1.0, 2.0, 3.0)):
        weights = [Weight(0, worth, True) for worth in worths]
        monkeypatch.setattr(session.rule, "weigh_texts", lambda seen, units, weights=weights: weights)
        session._seen = dict(zip(units, session.rule.see(EMBEDDER.embed(units)), strict=True))
        session._weigh()
        assert session._weights["One came."].worth == 3.0
