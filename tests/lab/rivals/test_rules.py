"""Every rival's rule and statistic against plain oracles, and its statistic on random text against theory."""

from typing import Any

import numpy as np
import oracle_rivals as oracle
import pytest
from rival_keys import ALL, EMBEDDER, LEARN, PREFIX, RIVALS, Vectors, human, key_of, learned, random_rows
from scipy import stats

from alimark import load
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings
from alimark.core.generation.selection import TextOrigin
from alimark.core.keys.key import Key
from alimark.core.schemes.registry import rule_for, scheme
from alimark.testing import StandInLLM

KEYS = {
    "semstamp": lambda n: key_of("semstamp", n),
    "semstamp, 5 planes": lambda n: key_of("semstamp", n, hyperplanes=5, ratio=0.5, margin=0.05),
    "k-semstamp": lambda n: key_of("k-semstamp", n),
    "simmark": lambda n: key_of("simmark", n),
    "simmark, given interval": lambda n: key_of("simmark", n, lower=0.3, upper=0.5, decay=20.0),
    "simmark, distance of components": lambda n: key_of(
        "simmark", n, fitted=learned("simmark", distance="euclidean", components=16)
    ),
    "pmark": lambda n: key_of("pmark", n),
    "pmark, 9 channels": lambda n: key_of("pmark", n, channels=9, decay=30.0),
    "pmark of earlier releases": lambda n: key_of(
        "pmark", n, decay=30.0, threshold=0.02, estimator="sample", decay_from="threshold"
    ),
    "pmark, wide threshold": lambda n: key_of("pmark", n, decay=30.0, threshold=0.02),
}


def expected_z(key: Key, rows: Any) -> float:
    how = {"simmark": oracle.interval_z, "pmark": oracle.channel_z}.get(key.scheme, oracle.region_z)
    return how(key, rows.tolist())


def expected_weights(key: Key, before: Any, rows: Any) -> list[tuple[int, bool]]:
    if key.scheme == "simmark":
        accepted = [oracle.interval_accepts(key, before.tolist(), row.tolist()) for row in rows]
        return [(int(one), one) for one in accepted]
    found = [oracle.region_accepts(key, before.tolist(), row.tolist()) for row in rows]
    return [(int(valid), met) for valid, met in found]


@pytest.mark.parametrize("name", [name for name in KEYS if not name.startswith("pmark")])
@pytest.mark.parametrize("number", [1, 2])
def test_rules_of_the_sentence_before_accept_what_the_oracle_accepts(name: str, number: int) -> None:
    key = KEYS[name](number)
    texts = np.asarray(EMBEDDER.embed([one for text in human()[30:36] for one in text.split(". ")][:50]), np.float64)
    rows = np.concatenate([random_rows(30, number), texts])
    for before in rows[::16]:
        rule = rule_for(key, GenerationSettings(), TextOrigin("", "", (), splitter()))
        assert all(weight.met for weight in rule.weigh(rule.see(rows.astype(np.float32))))  # the first sentence is free
        rule.chose(rule.see(before[None].astype(np.float32))[0])
        weights = rule.weigh(rule.see(rows.astype(np.float32)))
        assert [(weight.matches, weight.met) for weight in weights] == expected_weights(key, before, rows)
        # What lies in a valid place is worth more than what does not.
        worths = {good: [weight.worth for weight in weights if weight.matches == good] for good in (0, 1)}
        assert not worths[1] or not worths[0] or min(worths[1]) >= max(worths[0])


@pytest.mark.parametrize(
    ("median", "estimator"), [("prior", "sample"), ("sampled", "sample"), ("sampled", "harrell-davis")]
)
@pytest.mark.parametrize("channels", [1, 3, 9])
def test_pmark_keeps_the_candidates_that_the_oracle_keeps(median: str, estimator: str, channels: int) -> None:
    key = key_of("pmark", 3, median=median, estimator=estimator, channels=channels)
    rule = rule_for(key, GenerationSettings(), TextOrigin("", "", (), splitter()))
    for sentence in range(4):
        rows = random_rows(64, sentence)
        weights = rule.weigh(rule.see(rows.astype(np.float32)))
        kept = [n for n, weight in enumerate(weights) if weight.met]
        assert kept == oracle.kept_candidates(key, sentence, rows.tolist())
        if median == "sampled" and estimator == "sample" and channels < 7:
            assert len(kept) == 64 >> channels  # halved by every channel
        assert all(weight.matches == channels for weight in weights if weight.met)
        rule.chose(rule.see(rows[:1].astype(np.float32))[0])


@pytest.mark.parametrize("name", KEYS)
def test_the_statistic_is_the_oracles(name: str) -> None:
    for number in range(3):
        rows = random_rows(9, number)
        key = KEYS[name](number)
        found = load(key, embedder=Vectors(rows)).detect(Vectors.text(range(9)), draws=50)
        assert found.z == pytest.approx(expected_z(key, rows), abs=1e-5)  # embeddings are single numbers
        assert (found.raw, found.scheme, found.draws) == (found.z, key.scheme, 50)


def null_z(name: str, texts: int, sentences: int, **parameters: Any) -> np.ndarray[Any, Any]:
    """The z of random texts, each under a key of its own."""
    found = []
    for number in range(texts):
        rows = random_rows(sentences, 1000 + number)
        mark: Any = load(key_of(name, number, **parameters), embedder=EMBEDDER)
        found.append(mark.statistic(mark.see(rows.astype(np.float32)), "", [], None).z)
    return np.array(found)


def counts(z: np.ndarray[Any, Any], total: int, share: float) -> np.ndarray[Any, Any]:
    return np.asarray(z * np.sqrt(share * (1 - share) * total) + share * total)


def agree(values: np.ndarray[Any, Any], total: int, share: float) -> float:
    """The p-value of the chi-square test that counts are binomial, rare ones taken together."""
    expected = stats.binom.pmf(np.arange(total + 1), total, share) * len(values)
    seen = np.bincount(np.rint(values).astype(int), minlength=total + 1)
    common = expected >= 5
    pooled = [np.append(one[common], one[~common].sum()) for one in (seen, expected)]
    return float(stats.chisquare(*pooled).pvalue)


def test_counts_on_random_text_are_binomial() -> None:
    # So many regions that hardly any step is taken twice, and counts so hard that they are whole numbers.
    assert agree(counts(null_z("semstamp", 400, 12, hyperplanes=9), 11, 0.25), 11, 0.25) > 0.001
    assert agree(counts(null_z("pmark", 400, 6, decay=1e6, threshold=0.0), 24, 0.5), 24, 0.5) > 0.001
    fine = learned("k-semstamp", regions=64)
    centred = null_z("k-semstamp", 400, 12, fitted=fine)
    assert abs(counts(centred, 11, 0.25).mean() - 11 * 0.25) < 4 * np.sqrt(11 * 0.25 * 0.75 / 400)


def test_simmarks_null_is_that_of_human_pairs() -> None:
    key: Any = key_of("simmark", 1, decay=1e6)
    mark: Any = load(key, embedder=EMBEDDER)
    rule = mark.rule(key)
    assert rule.share == pytest.approx(0.2, abs=0.002)
    assert key.fitted.origin["texts"] == 30
    seen = rule.see(EMBEDDER.embed(human()[40].split(". ")[:13]))
    z = mark.statistic(seen, "", [], None).null(0, 4000)
    assert agree(counts(z, 12, rule.share), 12, rule.share) > 0.001


@pytest.mark.parametrize("name", RIVALS)
def test_p_values_of_texts_that_have_nothing_to_do_with_the_key_are_uniform(name: str) -> None:
    if name == "simmark":  # random pairs of human sentences, of the texts that were learned from: there are no keys
        rows = random_rows(400, 1)
        mark: Any = load(key_of(name), embedder=EMBEDDER)
        null = mark.statistic(rows[:9], "", [], None).null
        own, others = null(0, 300), null(5000, 999)
        p = np.array([(1 + (others >= one).sum()) / 1000 for one in own])
        for level in (0.05, 0.2, 0.5):
            assert (p <= level).mean() < level + 3 * np.sqrt(level * (1 - level) / 300) + 0.01
        return
    text = human()[45]
    found = [load(key_of(name, n), embedder=EMBEDDER).detect(text, draws=99) for n in range(250)]
    assert stats.kstest([one.p_randomised for one in found], "uniform").pvalue > 0.001
    assert np.mean([one.p_value <= 0.05 for one in found]) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 250)


@pytest.mark.parametrize("name", ALL)
def test_random_keys_are_the_same_in_any_portion_and_for_longer_texts(name: str) -> None:
    mark: Any = load(key_of(name, 7), embedder=EMBEDDER)
    null = mark.statistic(random_rows(8, 2)[:, : mark.see(EMBEDDER.embed(["x"])).shape[1]], "", [], None).null
    whole = null(0, 2100)
    assert np.array_equal(np.concatenate([null(0, 7), null(7, 1500), null(1507, 593)]), whole)
    assert whole.std() > 0


@pytest.mark.parametrize("name", RIVALS)
def test_a_marked_text_is_found_and_its_sentences_meet_the_rule(name: str) -> None:
    key = key_of(name, 11)
    mark = load(key, embedder=EMBEDDER)
    made = mark.generate("It was a long day in the harbour.", StandInLLM(), sentences=12, seed=2)
    assert made.ended == "complete"
    assert made.scheme == name
    rows = EMBEDDER.embed(made.sentences).astype(np.float64)
    if name == "pmark":
        kept = [oracle.kept_candidates(key, t, [row.tolist()]) for t, row in enumerate(rows)]
        assert [bool(one) for one in kept] == [n == 4 for n in made.matches]
        assert made.unmet == sum(not one for one in kept)
    else:
        assert made.matches[0] == 0
        met = [expected_weights(key, a, b[None])[0] for a, b in zip(rows, rows[1:], strict=False)]
        assert list(made.matches[1:]) == [valid for valid, _ in met]
        assert made.unmet == sum(not one for _, one in met)
    assert made.unmet <= 2  # where no candidate of 64 is right in all four channels
    found: Any = mark.detect(made.text)
    assert found.z > 4
    assert found.verdict() == "found"
    assert mark.detect(human()[50]).verdict() == "not found"
    assert load(key_of(name, 12), embedder=EMBEDDER).detect(made.text).p_value > 0.01 or name == "simmark"


@pytest.mark.parametrize("name", PREFIX)
def test_a_short_text_cannot_be_told(name: str) -> None:
    mark = load(key_of(name), embedder=EMBEDDER)
    alone = mark.detect("There is one sentence only.")
    assert (alone.z, alone.p_value, alone.verdict()) == (0.0, 1.0, "too short to tell")
    two = mark.detect("There is one sentence. Then there is another one.")
    assert two.p_least > 0.01
    assert two.verdict() == "too short to tell"


@pytest.mark.parametrize("name", LEARN)
def test_learning_refuses_too_little_and_names_what_it_saw(name: str) -> None:
    kind: Any = scheme(name)
    with pytest.raises(Exception, match="too few"):
        kind.fit(["One sentence. Two sentences."], EMBEDDER)
    again = kind.fit(human()[:30], EMBEDDER)
    assert all(np.array_equal(array, learned(name).arrays[part]) for part, array in again.arrays.items())
    assert kind.fit(human()[:29], EMBEDDER).origin["texts_sha256"] != again.origin["texts_sha256"]
