"""The block that a rewritten text begins with: the one that gives the strongest mark, checked against plain loops."""

from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key
from alimark.core._util.arrays import Floats
from alimark.core.keys.projection import carried, targets, worths
from alimark.core.rewriting import session
from alimark.core.rewriting.session import best_start
from alimark.core.rewriting.settings import RewriteSettings
from fixed_texts import rewrite
from rewriters import EMBEDDER, STORY, Rewriter

SECRET = bytes(range(7, 39))
KINDS: list[dict[str, Any]] = [
    {"decision": "hard", "offsets": 12},
    {"run": 1, "offsets": 5},
    {"offsets": 12},
    {"offsets": 9, "run": [2, 3]},
    {"starts": "conversation"},
    {"offsets": 12, "payload_bits": 16},
    {"starts": "conversation", "payload_bits": 8},
]


def key_of(kind: dict[str, Any]) -> Key:
    key = Key.generate(embedder=EMBEDDER, secret=SECRET, **kind)
    return key.carrying(77) if key.payload_bits else key


def options(key: Key, sentences: int = 9) -> tuple[list[Floats], list[Floats]]:
    """Random options: a different number of each sentence's, the first of them the original."""
    random = np.random.default_rng(3)
    counts = random.integers(1, 7, sentences)
    projections = [random.normal(size=(count, key.block_size)) for count in counts]
    return projections, [np.concatenate([[1.0], random.uniform(0.62, 0.95, count - 1)]) for count in counts]


def total(projections: list[Floats], cosines: list[Floats], key: Key, start: int, bound: float) -> float:
    """The sum of the worths of the best options from a start, found for a single start at a time."""
    blocks = targets(key, len(projections), start)
    rated = [
        [(carry.worth, cosine) for carry, cosine in zip(carried(rows, block, key), values.tolist(), strict=True)]
        for rows, values, block in zip(projections, cosines, blocks, strict=True)
    ]
    for weight in np.concatenate([[0.0], 2.0 ** np.arange(-10, 20, 0.02)]):
        chosen = [max(row, key=lambda pair: (pair[0] + weight * pair[1], pair[1])) for row in rated]
        if np.mean([cosine for _, cosine in chosen]) >= bound:
            return sum(worth for worth, _ in chosen)
    raise AssertionError("the originals always keep the bound")


@pytest.mark.parametrize("bound", [-1.0, 0.85, 1.0])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_start_with_the_strongest_mark(kind: dict[str, Any], bound: float) -> None:
    key = key_of(kind)
    projections, cosines = options(key)
    totals = {int(start): total(projections, cosines, key, int(start), bound) for start in key.starts}
    best = best_start(projections, cosines, key, bound)
    assert totals[best] == pytest.approx(max(totals.values()), abs=1e-9)
    assert len(set(totals.values())) > 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_worths_for_many_blocks_are_those_for_each(kind: dict[str, Any]) -> None:
    key = key_of(kind)
    [rows, *_], _ = options(key)
    blocks = targets(key, 20)
    each = [[carry.worth for carry in carried(rows, block, key)] for block in blocks]
    assert worths(rows, blocks, key) == pytest.approx(np.array(each).T)


def test_many_starts_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of({"offsets": 40})
    whole = best_start(*options(key), key, 0.85)
    monkeypatch.setattr(session, "_NUMBERS_AT_A_TIME", 100)
    assert best_start(*options(key), key, 0.85) == whole


@pytest.mark.parametrize("decision", ["hard", "soft"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_key_with_several_starts_gets_at_least_the_mark_of_one_start(decision: str, seed: int) -> None:
    settings = RewriteSettings(waves=1, mean_closeness=-1.0)
    one = Key.generate(embedder=EMBEDDER, secret=SECRET, decision=decision)
    several = one.like(SECRET, offsets=32)
    assert (several.blocks(40) == one.blocks(40)).all()
    rewritings = [rewrite(STORY, key, EMBEDDER, Rewriter(), settings, seed=seed) for key in (one, several)]
    if decision == "hard":
        assert sum(rewritings[1].matches) >= sum(rewritings[0].matches)
    p_values = [AliMark(several, embedder=EMBEDDER).detect(rewriting.text).p_value for rewriting in rewritings]
    assert p_values[1] <= p_values[0]
    again = rewrite(STORY, several, EMBEDDER, Rewriter(), settings, seed=seed)
    assert again.text == rewritings[1].text
