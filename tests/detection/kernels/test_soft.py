"""Soft decisions: kernels against the plain oracle, and marking and detecting with the stand-ins."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import oracle
from alimark import AliMark, DetectionSettings, Key, detect
from alimark.calibration import rates as calibrate
from alimark.detection.kernels.soft import (
    search_local_soft,
    search_soft,
    trace_local_soft,
    trace_soft,
    worth_tables,
)
from alimark.detection.kernels.types import MATCH, SEVERAL, LocalCosts, SoftRule
from alimark.detection.soft_versions import SOFT_VERSIONS
from alimark.embedding import directions
from alimark.errors import AlimarkError, KeyFileError, LimitError, ModelError
from alimark.generation.api import GenerationSettings
from alimark.keys.key import SOFT_VERSION
from alimark.keys.projection import carried, project, targets
from alimark.models import store
from alimark.testing import StandInEmbedder, StandInLLM
from single_text import generate

EMBEDDER = StandInEmbedder()
RULES = SOFT_VERSIONS[SOFT_VERSION].rules


class Case:
    """A random text and random keys; half of the worths follow the first key, so that more than chance is aligned."""

    def __init__(self, seed: int, count: int, m: int, length: int, keys: int = 3) -> None:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, (keys, length, m))
        self.signs = (2.0 * bits - 1) / math.sqrt(m)
        powers = [1 << p for p in range(m)][::-1]
        self.blocks = np.array(
            [[sum(p for p, b in zip(powers, row, strict=True) if b) for row in key] for key in bits], np.uint64
        )
        self.units = rng.normal(size=(count, 2, m))
        for i in range(min(count, length)):
            self.units[i, rng.integers(0, 2)] += 2.0 * self.signs[0, i]
        self.joinable = rng.random(count) < 0.7
        self.joinable[0] = False
        shares = rng.dirichlet([4, *[1] * 8])
        self.rule = SoftRule(
            rng.uniform(0.5, 2), shares[1], shares[2], rng.uniform(0, 1), shares[3], shares[4], rng.uniform(0.1, 0.9),
            *shares[5:9],
        )  # fmt: skip

    @property
    def wandering(self) -> SoftRule:
        """A rule by which the text may leave the blocks, too."""
        rng = np.random.default_rng(len(self.units))
        usual = 1 - sum(self.rule[1:3]) - sum(self.rule[4:6]) - sum(self.rule[7:11])
        return self.rule._replace(outside=rng.uniform(), leaving=rng.uniform(0, usual), staying=rng.uniform(),
                                  resumed=rng.uniform())  # fmt: skip

    @property
    def tables(self) -> Any:
        return worth_tables(self.units)

    def worths(self, key: int) -> tuple[list[list[float]], list[list[float] | None]]:
        found = np.einsum("irm,jm->rij", self.units, self.signs[key])
        joined = [row if can else None for row, can in zip(found[1].tolist(), self.joinable, strict=True)]
        return found[0].tolist(), joined

    def search(self, *rules: SoftRule) -> Any:
        keys = np.arange(len(self.blocks))
        return search_soft(
            self.tables, self.joinable, self.blocks, np.array([self.blocks.shape[1]]), rules or (self.rule,),
            starts=np.array([0, len(self.units)]), texts=np.zeros(len(keys), np.int64), keys=keys,
        )  # fmt: skip


cases = st.builds(
    Case, seed=st.integers(0, 2**32), count=st.integers(1, 7), m=st.integers(1, 64), length=st.integers(1, 8)
)


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_the_score_is_the_oracles_likelihood(case: Case) -> None:
    plain = [math.log(oracle.soft_likelihood(*case.worths(key), case.rule._asdict())) for key in range(3)]
    np.testing.assert_allclose(case.search(), plain, rtol=1e-9, atol=1e-9)
    without = case.rule.without_restructuring()
    plain = [math.log(oracle.soft_likelihood(*case.worths(key), without._asdict())) for key in range(3)]
    np.testing.assert_allclose(case.search(without), plain, rtol=1e-9, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(case=cases)
def test_the_score_of_several_rules_is_their_mean_likelihood(case: Case) -> None:
    rules = (case.rule, case.wandering, case.rule.without_restructuring())
    plain = [
        math.log(sum(oracle.soft_likelihood(*case.worths(key), rule._asdict()) for rule in rules) / 3)
        for key in range(3)
    ]
    np.testing.assert_allclose(case.search(*rules), plain, rtol=1e-9, atol=1e-9)


def test_rules_of_several_worths_are_refused() -> None:
    case = Case(1, 3, 8, 4)
    with pytest.raises(ValueError, match="worth"):
        case.search(case.rule, case.rule._replace(worth=9.0))


@settings(max_examples=100, deadline=None)
@given(case=cases)
def test_the_alignment_shown_is_the_likeliest(case: Case) -> None:
    best, steps = trace_soft(case.tables, case.joinable, case.blocks[0], case.rule)
    plain = oracle.soft_likelihood(*case.worths(0), case.rule._asdict(), best=max)
    assert best == pytest.approx(math.log(plain), rel=1e-9, abs=1e-9)
    told = [step.last - back for step in steps for back in range(step.merged + 1) if step.kind != 2]
    assert sorted(set(told)) == list(range(len(case.units)))  # every sentence is told of


@settings(max_examples=100, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32))
def test_the_local_search_is_the_oracles(case: Case, seed: int) -> None:
    costs = LocalCosts(*np.random.default_rng(seed).uniform(0.1, 1.5, 4))
    plain = [oracle.soft_local(*case.worths(key), costs) for key in range(3)]
    np.testing.assert_allclose(search_local_soft(case.tables, case.joinable, case.blocks, costs), plain, atol=1e-9)
    best, steps = trace_local_soft(case.tables, case.joinable, case.blocks[0], costs)
    assert best == pytest.approx(plain[0], abs=1e-9)
    assert bool(steps) == (best > 0)


def test_lengths_and_texts_are_kept_apart() -> None:
    one, two = Case(1, 5, 32, 8), Case(2, 7, 32, 8)
    together = search_soft(
        np.concatenate([one.tables, two.tables]), np.concatenate([one.joinable, two.joinable]), two.blocks,
        np.array([6, 8]), RULES, starts=np.array([0, 5, 12]), texts=np.array([1, 0]), keys=np.array([2, 1]),
    )  # fmt: skip
    alone = [
        search_soft(
            case.tables, case.joinable, two.blocks[:, :length], np.array([length]), RULES,
            starts=np.array([0, len(case.units)]), texts=np.zeros(1, np.int64), keys=np.array([key]),
        )[0]
        for case, length, key in ((two, 8, 2), (one, 6, 1))
    ]  # fmt: skip
    np.testing.assert_allclose(together, alone, rtol=1e-12)


# Marking and detecting


def soft_key(number: int, m: int = 32, version: int = SOFT_VERSION) -> Key:
    secret = bytes([number, *range(1, 32)])
    return Key.generate(secret=secret, decision="soft", block_size=m, embedder=EMBEDDER, soft_version=version)


def written(key: Key | None, sentences: int = 12, seed: int = 5, candidates: int = 64) -> list[str]:
    chosen = GenerationSettings(sentences, candidates)
    return list(generate("A long story.", key, EMBEDDER, StandInLLM(), chosen, seed=seed).sentences)


@pytest.fixture(scope="module")
def mark() -> AliMark:
    return AliMark(soft_key(0), embedder=EMBEDDER)


@pytest.fixture(scope="module")
def sentences(mark: AliMark) -> list[str]:
    return written(mark.key)


def test_the_furthest_candidate_is_chosen(mark: AliMark) -> None:
    llm, seen = StandInLLM(), []
    draw = llm.draw

    def recorded(*args: Any) -> Any:
        seen.append(draw(*args))
        return seen[-1]

    llm.draw = recorded  # type: ignore[method-assign, assignment]
    made = generate("A long story.", mark.key, EMBEDDER, llm, GenerationSettings(1, 64), seed=3)
    assert (made.waves, made.candidates) == (1, 64)
    drawn = list(dict.fromkeys(one.text.strip() for one in seen[0][0]))
    worths = project(EMBEDDER.embed(drawn), mark.key) @ targets(mark.key, 1)[0]
    order = [drawn[i] for i in np.argsort(-worths)]
    assert order[0].startswith(made.sentences[0])


def test_the_mark_is_found_and_not_without_the_key(mark: AliMark, sentences: list[str]) -> None:
    found = mark.detect(" ".join(sentences))
    assert found.verdict() == "found"
    assert found.p_value <= 0.002
    assert found.z is None
    assert AliMark(soft_key(1), embedder=EMBEDDER).detect(" ".join(sentences)).p_value > 0.01
    kinds = [(step.kind, step.sentences, step.block) for step in found.alignment]
    assert sum(kind == ("match", (i,), i) for i, kind in enumerate(kinds, 1)) >= 10


@pytest.mark.parametrize("change", ["drop", "merge", "move", "insert"])
def test_the_mark_survives(mark: AliMark, sentences: list[str], change: str) -> None:
    changed = list(sentences)
    if change == "drop":
        del changed[3:6]
    elif change == "merge":
        changed[1:3] = [changed[1].rstrip(".!?") + " and " + changed[2]]
        changed[6:8] = [changed[6].rstrip(".!?") + " and " + changed[7]]
    elif change == "move":
        changed[2], changed[9] = changed[9], changed[2]
    else:
        changed[4:4] = written(None, 3, seed=77)
    assert mark.detect(" ".join(changed)).verdict() == "found"


def test_one_sentence_that_holds_two_blocks_is_told_as_a_split() -> None:
    case = Case(3, 4, 32, 5)
    case.units[:, 0] = np.random.default_rng(0).normal(size=(4, 32))
    for i, blocks in enumerate(([0], [1, 2], [3], [4])):
        case.units[i, 0] += 4 * sum(case.signs[0, block] for block in blocks)
    _, steps = trace_soft(case.tables, case.joinable, case.blocks[0], RULES[0])
    held = [step.block for step in steps if step.kind == MATCH and step.cut == SEVERAL]
    assert held == [1, 2]


def test_p_values_are_uniform_over_keys() -> None:
    texts = [" ".join(written(None, 8, seed=seed)) for seed in range(12)]
    values = [
        AliMark(soft_key(number), embedder=EMBEDDER).detect(text, draws=199).p_randomised
        for text in texts
        for number in range(10)
    ]
    # Values of one text hang together a little over keys: their vectors differ, their text does not.
    assert stats.kstest(values, "uniform").pvalue > 0.001


def test_whose_key_it_was(sentences: list[str]) -> None:
    best = detect(" ".join(sentences), [soft_key(number) for number in range(20)], embedder=EMBEDDER)
    assert best[0].key_id == soft_key(0).id
    assert best[0].keys_tried == 20
    hard = Key(bytes(32), embedder="stand-in", fingerprint=EMBEDDER.fingerprint)
    with pytest.raises(AlimarkError, match="different kinds"):
        detect("Some text. And more.", [soft_key(0), hard], embedder=EMBEDDER)


def test_a_passage_is_found_in_other_text(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join([*written(None, 10, seed=31), *sentences, *written(None, 10, seed=32)])
    found = mark.detect(text, search="excerpt")
    assert len(found.passages) == 1
    assert abs(found.passages[0].first - 11) + abs(found.passages[0].last - 22) <= 4
    assert not mark.detect(" ".join(written(None, 30, seed=33)), search="excerpt").passages
    with pytest.raises(LimitError, match="20,000"):
        mark.detect("Yes it is so. " * 20_001, search="excerpt")


def test_without_restructuring_units_are_sentences(mark: AliMark, sentences: list[str]) -> None:
    found = mark.detect(" ".join(sentences), restructure="none")
    assert found.verdict() == "found"
    assert {step.kind for step in found.alignment} <= {"match", "skip-sentence", "skip-block"}


def test_worth_is_the_projection_along_the_block(mark: AliMark) -> None:
    rows = project(EMBEDDER.embed(["One sentence.", "Another one."]), mark.key)
    target = targets(mark.key, 3)[2]
    assert np.linalg.norm(target) == pytest.approx(1)
    soft = carried(rows, target, mark.key)
    assert [one.worth for one in soft] == pytest.approx((rows @ target).tolist())
    assert [one.bits for one in soft] == ((rows >= 0) == (target > 0)).sum(axis=1).tolist()


# Keys


def test_a_soft_key_is_as_it_was_saved(tmp_path: Path) -> None:
    key = Key.generate(decision="soft")
    assert (key.block_size, key.span, key.soft_version) == (32, 32, SOFT_VERSION)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again, again.span, again.soft) == (key, 32, True)
    assert np.array_equal(again.vectors(384), key.vectors(384))
    content = json.loads((tmp_path / "key.json").read_text())
    (tmp_path / "key.json").write_text(json.dumps(content | {"soft_version": 99}))
    with pytest.raises(KeyFileError, match="upgrade"):
        Key.load(tmp_path / "key.json")


def test_vectors_lie_in_the_directions_of_their_embedder() -> None:
    fingerprint = "sha256:" + store.entry("all-MiniLM-L6-v2").weights.sha256
    key = Key.generate(secret=bytes(32), decision="soft", block_size=16, span=24)
    assert key.fingerprint == fingerprint
    vectors = key.vectors(384)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(16), atol=1e-12)
    basis = np.linalg.qr(directions.directions(fingerprint, 24).T)[0]
    np.testing.assert_allclose(np.linalg.norm(vectors @ basis, axis=1), 1, atol=1e-12)
    # The same in every release: a text marked today is found by it.
    assert vectors[0, :3] == pytest.approx(PINNED, abs=1e-12)


PINNED = [-0.05325479686007179, 0.056260087496271524, -0.014375107306856547]


@pytest.mark.parametrize(("span", "m"), [(8, 16), (65, 16), (-1, 16)])
def test_a_span_that_does_not_fit_is_refused(span: int, m: int) -> None:
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(decision="soft", block_size=m, span=span)


def test_the_whole_space_can_be_asked_for() -> None:
    assert Key.generate(decision="soft", span=0).span is None
    assert Key.generate(decision="soft", span=0).block_size == 32


def test_an_embedder_without_directions_is_used_whole() -> None:
    key = Key.generate(decision="soft", embedder=EMBEDDER)
    assert key.span is None
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(decision="soft", embedder=EMBEDDER, span=32)


def test_old_versions_stay() -> None:
    """What each version fixed when it was released; a better rule is a new version."""
    anything = SoftRule(1.3, 0.12, 0.1, 0.8, 0.05, 0.1, 0.6, 0.06, 0.02, 0.04, 0.02)
    assert SOFT_VERSIONS[1].rules == (anything,)
    assert SOFT_VERSIONS[2].rules == (
        anything,
        SoftRule(1.3, 0.03, 0.03, 0.3, 0.03, 0.4, 0.6, 0.0, 0.0, 0.0, 0.01),
        SoftRule(1.3, 0.03, 0.5, 0.95, 0.03, 0.03, 0.6, 0.0, 0.0, 0.0, 0.01),
        SoftRule(1.3, 0.03, 0.03, 0.3, 0.03, 0.03, 0.6, 0.0, 0.0, 0.0, 0.01, 0.6, 0.1, 0.85, 0.05),
    )
    assert {(version.shrink, version.blocks) for version in SOFT_VERSIONS.values()} == {(5.0, 2.0)}
    assert set(SOFT_VERSIONS) == set(range(1, SOFT_VERSION + 1))


def test_versions_mark_alike_and_are_searched_together(sentences: list[str]) -> None:
    key, old, text = soft_key(0), soft_key(0, version=1), " ".join(sentences)
    assert written(old) == sentences
    alone = [AliMark(one, embedder=EMBEDDER).detect(text) for one in (key, old)]
    assert all(found.verdict() == "found" for found in alone)
    assert alone[0].score != alone[1].score
    best = {one.key_id: one.raw for one in detect(text, [old, key, soft_key(1)], embedder=EMBEDDER, best=3)}
    assert [best[key.id], best[old.id]] == pytest.approx([found.raw for found in alone])


@pytest.mark.parametrize(("version", "score"), [(1, -0.982312594038207), (2, -0.5054674264187592)])
def test_a_text_scores_as_it_did(tmp_path: Path, version: int, score: float) -> None:
    """Under a key of every version, and under its file: what is found today is found by every later release."""
    key = soft_key(0, version=version)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again, again.soft_version) == (key, version)
    assert AliMark(again, embedder=EMBEDDER).detect(TEXT, draws=9).raw == pytest.approx(score, rel=1e-9)


TEXT = (
    "The boat left before dawn. Nobody on the quay had seen it go. By noon the wind had turned, and the harbour filled with "
    "foam. She counted the ropes twice. One was missing. It had been cut, not lost. The keeper said nothing at all."
)


def test_hard_keys_have_no_version_to_differ_by(tmp_path: Path) -> None:
    key = Key(bytes(32), embedder="stand-in", fingerprint=EMBEDDER.fingerprint)
    key.save(tmp_path / "key.json")
    assert Key.load(tmp_path / "key.json").soft_version == key.soft_version
    assert Key.generate(decision="soft", soft_version=1, embedder=EMBEDDER).soft_version == 1
    with pytest.raises(KeyFileError, match="kgw has no parameter soft_version"):
        Key.generate(scheme="kgw", soft_version=1)


def test_what_ships_is_never_changed() -> None:
    """Keys rest on these numbers; new ones are for a new version, under names of their own."""
    with np.load(directions.FILE) as content:
        shipped = {
            name[7:15] + name[71:]: hashlib.sha256(array.tobytes()).hexdigest()[:16] for name, array in content.items()
        }
    assert shipped == SHIPPED


SHIPPED = {
    "53aa5117": "de8fbc8ef0db5fd9",
    "53aa5117/mean": "96a0c7e377f1bdc9",
    "78c0197b": "d14bf1f9c4bffa62",
    "78c0197b/mean": "88d0b034cccc4405",
}


def test_vectors_without_numbers_are_refused(mark: AliMark) -> None:
    class Broken(StandInEmbedder):
        def embed(self, texts: Any) -> Any:
            return super().embed(texts) * np.float32("nan")

    with pytest.raises(ModelError, match="infinite or NaN"):
        AliMark(mark.key, embedder=Broken()).detect("One sentence. And two.")


def test_the_public_codes_rule_is_refused(mark: AliMark) -> None:
    with pytest.raises(AlimarkError, match="hard bits"):
        mark.detect("One sentence. And two.", null="reference")


def test_a_soft_key_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_bytes", random.Random(1).randbytes)  # one draw of keys, not chance's
    texts = [" ".join(written(None, 4, seed=seed)) for seed in range(30)]
    chosen = DetectionSettings(draws=99)
    key = soft_key(0)
    embedded = calibrate.Embedded.of(texts, key, EMBEDDER, chosen)
    values = calibrate.fresh_keys(embedded, key, EMBEDDER, chosen, lambda n: None)
    assert stats.kstest(values.p_randomised, "uniform").pvalue > 0.001
    alone = AliMark(key, embedder=EMBEDDER).detect(texts[0], settings=chosen)
    assert calibrate.p_values(embedded, key, chosen).p[0] == pytest.approx(alone.p_value)


def test_many_keys_of_a_long_text_are_scored_in_parts(sentences: list[str]) -> None:
    text = " ".join(sentences * 8)
    keys = [soft_key(number) for number in range(30)]
    best = detect(text, keys, embedder=EMBEDDER, best=30, search="excerpt", draws=99)
    alone = {key.id: AliMark(key, embedder=EMBEDDER).detect(text, search="excerpt", draws=99).raw for key in keys[:3]}
    assert {one.key_id: one.raw for one in best if one.key_id in alone} == pytest.approx(alone)
