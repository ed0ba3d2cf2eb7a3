"""Strengths: names for numbers of candidates, in Python and in the settings of the service."""

import asyncio
from pathlib import Path

import pytest

from alimark import AliMark, Key
from alimark.core.generation.api import Generation, Prompt, generate_many
from alimark.core.generation.settings import DEFAULT_CANDIDATES, STRENGTHS, GenerationSettings, candidates_for
from alimark.core.llm.base import Draw
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError
from alimark.serve.settings import read_settings
from alimark.testing import StandInEmbedder, StandInLLM
from rewriters import KEY, STORY, Rewriter
from watched import watched

EMBEDDER = StandInEmbedder()
MARK = AliMark(Key.generate(secret=bytes(range(32)), embedder=EMBEDDER, decision="soft"), embedder=EMBEDDER)


def test_the_strengths_are_in_order_and_standard_is_the_default() -> None:
    assert list(STRENGTHS) == ["light", "standard", "strong"]
    assert STRENGTHS["light"] < STRENGTHS["standard"] == DEFAULT_CANDIDATES == AliMark.candidates < STRENGTHS["strong"]
    assert candidates_for(None, None, 24) == 24


def test_generate_takes_a_strength_and_records_the_candidates() -> None:
    text = MARK.generate("It was late.", StandInLLM(), sentences=2, strength="light", seed=1)
    assert text.settings.candidates == STRENGTHS["light"]
    assert text.candidates == 2 * STRENGTHS["light"]
    same = MARK.generate("It was late.", StandInLLM(), sentences=2, candidates=STRENGTHS["light"], seed=1)
    assert text.record("x")["settings"] == same.record("x")["settings"]
    assert text.text == same.text
    awaited = asyncio.run(MARK.agenerate("It was late.", StandInLLM(), sentences=2, strength="light", seed=1))
    assert awaited.text == text.text


def test_rewrite_takes_a_strength() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    light = mark.rewrite(STORY, Rewriter(), strength="light", seed=1)
    assert light.text == mark.rewrite(STORY, Rewriter(), candidates=STRENGTHS["light"], seed=1).text
    with pytest.raises(AlimarkError, match="either a strength or a number of candidates"):
        mark.rewrite(STORY, Rewriter(), strength="light", candidates=8)


def test_both_or_an_unknown_strength_is_an_error() -> None:
    with pytest.raises(AlimarkError, match="not both; strong means"):
        MARK.generate("It was late.", StandInLLM(), strength="strong", candidates=8)
    with pytest.raises(AlimarkError, match="strength is light, standard, strong, not 'weak'"):
        MARK.generate("It was late.", StandInLLM(), strength="weak")  # type: ignore[call-overload]


def test_the_service_takes_a_strength_in_its_settings(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('strength = "strong"')
    assert read_settings(config, {}, default_data=tmp_path).strength == "strong"
    config.write_text("candidates = 32")
    assert read_settings(config, {}, default_data=tmp_path).candidates == 32
    light = read_settings(config, {"strength": "light"}, default_data=tmp_path)
    assert (light.strength, light.candidates) == ("light", None), "the command line replaces the file"
    config.write_text('candidates = 32\nstrength = "light"')
    with pytest.raises(AlimarkError, match="either a strength or a number of candidates"):
        read_settings(config, {}, default_data=tmp_path)
    config.write_text("strength = 32")
    with pytest.raises(AlimarkError, match="the setting strength is not valid: input should be 'light', 'standard' or"):
        read_settings(config, {}, default_data=tmp_path)


def _written(settings: GenerationSettings, llm: StandInLLM, key: Key) -> tuple[Generation, list[int]]:
    """A text, and the candidates that its sentences took up to each of them."""
    asked: list[int] = []
    counting = watched(llm, lambda requests: asked.append(sum(request.count for request in requests)))
    [(_, text)] = generate_many([Prompt("It was late.", 1)], key, EMBEDDER, counting, settings, rule=rule_for)
    assert isinstance(text, Generation)
    return text, asked


@pytest.mark.parametrize("decision", ["soft", "hard"])
def test_the_first_sentence_may_take_fewer_candidates(decision: str) -> None:
    key = Key.generate(secret=bytes(range(32)), embedder=EMBEDDER, decision=decision, block_size=16)
    text, asked = _written(GenerationSettings(4, 64, first_candidates=8), StandInLLM(), key)
    assert asked[0] == 8
    assert asked[1] > 8
    assert text.record("x")["settings"]["first_candidates"] == 8
    assert "first_candidates" not in GenerationSettings(4, 64).to_dict()


def test_a_first_sentence_without_a_usable_candidate_takes_more() -> None:
    class Blank(StandInLLM):
        calls = 0

        def draw(self, requests, sampling, stop):  # type: ignore[no-untyped-def]
            self.calls += 1
            if self.calls == 1:
                return [[Draw("...", 1, "length")] * request.count for request in requests]
            return super().draw(requests, sampling, stop)

    text, asked = _written(GenerationSettings(2, 64, first_candidates=8), Blank(), MARK.key)
    assert len(text.sentences) == 2
    assert asked[0] == 8
    assert asked[1] > 8
