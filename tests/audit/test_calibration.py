"""Rates on human text: p-values of many texts against the same random keys, and their binomial bounds."""

import re

import numpy as np
import pytest
from scipy import stats

from alimark import AliMark, DetectionSettings, Key
from alimark.audit.calibration import LEVELS, Embedded, binomial_interval, conclusion
from fixed_texts import EMBEDDER

TEXTS = ["The lamp went out. Nobody saw it. A letter came.", "It rained. The lamp went out.", "A ship left. It rained."]


@pytest.mark.parametrize("decision", ["hard", "soft"])
def test_many_texts_score_as_they_do_alone(decision: str) -> None:
    key = Key.generate(embedder=EMBEDDER, decision=decision, block_size=16, secret=bytes(32))
    settings = DetectionSettings(draws=50)
    values = Embedded.of(TEXTS, key, EMBEDDER, settings).values(key, settings)
    alone = AliMark(key, embedder=EMBEDDER).detect(TEXTS, draws=50)
    assert values.raw == pytest.approx([detection.raw for detection in alone], abs=1e-12)
    assert np.all((values.p_randomised <= values.p) & (values.p > 0))


def test_a_part_holds_the_vectors_of_its_texts() -> None:
    key, settings = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32)), DetectionSettings()
    embedded = Embedded.of(TEXTS, key, EMBEDDER, settings)
    part, alone = embedded.part([2]), Embedded.of(TEXTS[2:], key, EMBEDDER, settings)
    assert np.array_equal(part.embeddings, alone.embeddings)
    assert part.units[0].texts == alone.units[0].texts
    assert np.array_equal(embedded.part([0, 1, 2]).mean(), embedded.mean())


@pytest.mark.parametrize(("n", "p"), [(500, 0.01), (120, 0.5), (1000, 0.05)])
def test_binomial_interval_is_scipys(n: int, p: float) -> None:
    low, high = binomial_interval(n, p)
    expected = stats.binom.ppf([0.005, 0.995], n, p) / n
    assert (low, high) == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("texts", "shares", "told"),
    [
        (55, (0.0, 0.0364, 0.6909), "do not rely on this key .* 69.09% with p <= 0.5, where at most 67.27% .* keygen"),
        (55, (0.0, 0.0364, 0.5), "do not rely on it yet. 55 texts are too few to judge p <= 0.01 .about 1,900 are needed"),
        (500, (0.01, 0.05, 0.5), "can be relied on for texts like these at p <= 0.05.*too few to judge p <= 0.01"),
        (3000, (0.01, 0.05, 0.5), "can be relied on .* at p <= 0.01: of 3,000 human texts .* as it should.$"),
        (3000, (0.001, 0.05, 0.5), "It finds fewer than expected .0.10% with p <= 0.01"),
    ],
)  # fmt: skip
def test_the_conclusion_is_what_the_table_says(texts: int, shares: tuple[float, ...], told: str) -> None:
    rates = {"p": list(shares), "p_randomised": list(shares)}
    intervals = [binomial_interval(texts, level) for level in LEVELS]
    report = {"levels": list(LEVELS), "texts": texts, "this_key": rates, "interval_99": intervals}
    assert re.search(told, conclusion(report))
