"""Soft keys of version 3 sample more candidates where more promise a stronger mark; the mean is what was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from alimark import AliMark, Key
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.generation.selection import TextOrigin
from alimark.core.generation.settings import GenerationSettings, Prompt
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition
from alimark.core.schemes._block_rules import AdaptiveBlockRule, expected_gain
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, secret=bytes(range(32)))


def rule(candidates: int) -> AdaptiveBlockRule:
    origin = TextOrigin("text", "", (), splitter(DEFAULT_SPLITTER))
    return AdaptiveBlockRule(KEY, GenerationSettings(candidates=candidates), origin)


@pytest.mark.parametrize(("above", "spread"), [(0.0, 1.0), (1.3, 0.7), (2.5, 1.0), (-0.4, 2.0)])
def test_expected_gain_is_the_integral_over_better_draws(above: float, spread: float) -> None:
    density = stats.norm(scale=spread).pdf
    gain, _ = integrate.quad(lambda x: (x - above) * density(x), above, above + 12 * spread)
    assert expected_gain(above, spread) == pytest.approx(gain, rel=1e-6)


def counts(candidates: int, law: Callable[..., Any], spread: Callable[[], float] = lambda: 1.0) -> list[int]:
    """The numbers of candidates of a text's twelve sentences, whose worths have a law and a spread for each sentence."""
    text_rule, settings = rule(candidates), GenerationSettings(candidates=candidates)
    numbers: list[int] = []
    for _ in range(12):
        size, worths = spread(), list[float]()
        while len(worths) < text_rule.most(settings, sum(numbers)):
            count = min(text_rule.wave(settings), text_rule.most(settings, sum(numbers)) - len(worths))
            worths += (5 + size * law(size=count)).tolist()
            if text_rule.enough(worths):
                break
        text_rule.chose(np.zeros(1))
        numbers.append(len(worths))
    return numbers


@pytest.mark.parametrize("candidates", [32, 64, 256])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_mean_number_of_candidates_is_what_was_asked_for(candidates: int, scale: float) -> None:
    draws = np.random.default_rng(candidates)

    def spread() -> float:
        return scale * float(np.exp(0.25 * draws.standard_normal()))

    numbers = [number for _ in range(40) for number in counts(candidates, draws.standard_normal, spread)]
    assert np.mean(numbers) == pytest.approx(candidates, rel=0.1)
    assert min(numbers) == candidates * 3 // 4
    assert max(numbers) >= 1.5 * candidates


@pytest.mark.parametrize("candidates", [64, 256])
def test_a_text_costs_little_more_than_asked_for_where_worths_have_short_tails(candidates: int) -> None:
    draws = np.random.default_rng(candidates)
    for _ in range(10):
        assert sum(counts(candidates, draws.uniform)) <= 13 * candidates


def test_a_model_that_always_writes_the_same_is_asked_once() -> None:
    assert rule(64).enough([0.3] * 32)


def test_texts_cost_what_was_asked_for_and_are_found() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    generations = mark.generate([f"Day {number}." for number in range(4)], StandInLLM(), candidates=64, seed=3)
    for generation in generations:
        assert mark.detect(generation.text).p_value <= 0.01
    sentences = sum(len(generation.sentences) for generation in generations)
    assert sum(generation.candidates for generation in generations) / sentences == pytest.approx(64, rel=0.3)


def test_few_candidates_are_sampled_all_at_once() -> None:
    generation = AliMark(KEY, embedder=EMBEDDER).generate("A day.", StandInLLM(), candidates=16, seed=3)
    assert generation.candidates == 16 * len(generation.sentences)
    assert generation.waves == len(generation.sentences)


class EndsEachSentence(StandInLLM):
    """Ends its text behind every sentence, and goes on where it is asked again."""

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        drawn = super().draw(requests, sampling, stop)
        return [[replace(draw, text=draw.text.rstrip(), ended="model") for draw in draws] for draws in drawn]


def test_a_single_draw_is_not_enough_where_the_model_might_have_ended_its_text() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    generation = mark.generate("Why?", EndsEachSentence(), sentences=6, candidates=64, seed=1, prompt_style="chat")
    assert len(generation.sentences) == 6
    assert generation.candidates >= 6 * 32


def test_small_waves_do_not_end_the_sampling_early() -> None:
    settings = GenerationSettings(12, 64, wave=1)
    [(_, generation)] = AliMark(KEY, embedder=EMBEDDER).generate_many([Prompt("A day.", 3)], StandInLLM(), settings)
    assert not isinstance(generation, Exception)
    assert generation.candidates >= 12 * 16
