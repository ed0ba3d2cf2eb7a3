"""benchmarks/attacker.py: the block sequences of each defence, and what its attacker learns from made-up runs."""

from __future__ import annotations

import numpy as np
import pytest

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.keys.key import Key
from alimark.testing import StandInEmbedder
from attacker import Defence, learn, nothing_learned, tail

RUN = 6


def test_each_defence_gives_the_detector_its_sequences() -> None:
    def sequences(defence: Defence) -> Packed:
        key = defence.key(StandInEmbedder(), bytes(32))
        return defence.sequences(key, 30)

    plain = Key.generate(embedder=StandInEmbedder(), secret=bytes(32)).blocks(30)
    assert (sequences(Defence("none")) == plain[None]).all()
    assert sequences(Defence("starts", 4)).shape == (1, 30)
    assert len(np.unique(sequences(Defence("sub-keys", 8)))) == 8 * len(set(plain))


def made_up(defence: Defence, blocks: Floats, texts: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """The sums of the runs of texts whose sentences are shifted by their blocks, and the states of the texts."""
    states = rng.integers(defence.states, size=texts)
    carried = blocks[defence.routes(3)[states]]
    return RUN * carried + np.sqrt(RUN) * rng.normal(size=carried.shape), states


@pytest.mark.parametrize("defence", [Defence("none"), Defence("starts", 4), Defence("sub-keys", 4)])
def test_blocks_are_learned_from_enough_texts(defence: Defence) -> None:
    rng = np.random.default_rng(1)
    blocks = 2.5 * rng.normal(size=(int(defence.routes(3).max()) + 1, 32)) / np.sqrt(32)
    runs, states = made_up(defence, blocks, 300, rng)
    learned = learn(runs, defence, RUN, rng)
    cosines = []
    for text, state in zip(runs[:20], states, strict=False):
        known, true = learned.of_text(text, collected=True), blocks[defence.routes(3)[state]]
        cosines.append((known * true).sum() / np.linalg.norm(known) / np.linalg.norm(true))
    assert np.median(cosines) > 0.9


def test_a_text_like_no_collected_one_counts_alone() -> None:
    rng = np.random.default_rng(2)
    runs = RUN * rng.normal(size=(1, 3, 32))
    learned = learn(runs, Defence("sub-keys", 4), RUN, rng)
    alone = nothing_learned(3, 32, RUN).of_text(-runs[0], collected=False)
    assert learned.of_text(-runs[0], collected=False) == pytest.approx(alone)


def test_the_tail_is_close_to_an_exponential_one() -> None:
    null = np.random.default_rng(3).exponential(size=4000)
    assert tail(float(-np.log(1e-5)), null) == pytest.approx(1e-5, rel=2)
    assert tail(0.0, null) == 1.0
