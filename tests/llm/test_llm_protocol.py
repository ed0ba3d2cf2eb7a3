"""What every language model promises, whoever runs it."""

from __future__ import annotations

import pytest
from overs import never_over, sentence_over

from alimark.errors import ContextFull
from alimark.llm.base import LLM, Draw, Request, Sampling
from alimark.testing import StandInLLM

CONTEXT = "The council met on Monday to talk about the new library."
SHORT = Sampling(max_tokens=24)


class Promises:
    """Collected through its subclasses, each of which says what `llm` is."""

    def test_draws_come_in_the_shape_of_the_requests(self, llm: LLM) -> None:
        requests = [Request(CONTEXT, 3, 1), Request("It rained.", 1, 2), Request(CONTEXT, 0, 3)]
        assert [len(draws) for draws in llm.draw(requests, SHORT, sentence_over)] == [3, 1, 0]
        assert llm.draw([], SHORT, sentence_over) == []

    def test_a_draw_says_why_it_ended(self, llm: LLM) -> None:
        draws = _draw(llm, 6, Sampling(max_tokens=64))
        for draw in draws:
            assert 1 <= draw.tokens <= 64
            assert draw.ended != "sentence" or sentence_over(draw.text)
            assert draw.ended != "length" or draw.tokens == 64
        assert any(draw.ended == "sentence" for draw in draws)

    def test_a_sentence_is_left_soon_after_its_end(self, llm: LLM) -> None:
        ended = [draw for draw in _draw(llm, 6, Sampling(max_tokens=64)) if draw.ended == "sentence"]
        for draw in ended:
            assert not sentence_over(draw.text[:-1].rstrip()[:-40])

    def test_without_an_end_the_budget_is_spent(self, llm: LLM) -> None:
        [draws] = llm.draw([Request(CONTEXT, 4, 5)], SHORT, never_over)
        assert all(draw.ended in {"length", "model"} for draw in draws)
        assert all(draw.tokens == 24 for draw in draws if draw.ended == "length")
        assert any(draw.ended == "length" for draw in draws)

    def test_the_same_request_gives_the_same_draws(self, llm: LLM) -> None:
        first = _draw(llm, 4, SHORT)
        llm.draw([Request("Something else came between.", 2, 9)], SHORT, sentence_over)
        assert _draw(llm, 4, SHORT) == first

    def test_draws_differ_by_number_and_by_seed(self, llm: LLM) -> None:
        draws = _draw(llm, 6, SHORT)
        assert len({draw.text for draw in draws}) > 3
        [others] = llm.draw([Request(CONTEXT, 6, 8)], SHORT, sentence_over)
        assert sum(one.text == other.text for one, other in zip(draws, others, strict=True)) <= 2

    def test_a_context_without_room_is_an_error(self, llm: LLM) -> None:
        with pytest.raises(ContextFull):
            llm.draw([Request("word " * 20_000, 2, 1)], SHORT, sentence_over)

    def test_other_scripts_come_out_whole(self, llm: LLM) -> None:
        context = "Das Wetter ist schön 🙂, 今日は天気が"
        [draws] = llm.draw([Request(context, 6, 4)], Sampling(max_tokens=16, temperature=1.5), never_over)
        assert not any(draw.text.endswith("\ufffd") for draw in draws)

    def test_waves_give_the_draws_of_one_request(self, llm: LLM) -> None:
        whole = _draw(llm, 6, SHORT)
        waves = _draw(llm, 2, SHORT) + _draw(llm, 4, SHORT, first=2)
        same = sum(one == other for one, other in zip(whole, waves, strict=True))
        assert same >= self.same_in_waves

    same_in_waves = 6


def _draw(llm: LLM, count: int, sampling: Sampling, first: int = 0) -> list[Draw]:
    [draws] = llm.draw([Request(CONTEXT, count, 7, first)], sampling, sentence_over)
    return draws


class TestStandIn(Promises):
    @pytest.fixture
    def llm(self) -> LLM:
        return StandInLLM(context_characters=50_000)


class TestTinyTransformers(Promises):
    @pytest.fixture
    def llm(self, tiny: LLM) -> LLM:
        return tiny


@pytest.mark.weights
class TestTransformers(Promises):
    @pytest.fixture
    def llm(self, real_transformers: LLM) -> LLM:
        return real_transformers


@pytest.mark.weights
class TestLlamaCpp(Promises):
    same_in_waves = 2  # the batch's shape moves llama.cpp's logits, and with them a draw now and then

    @pytest.fixture
    def llm(self, llama_cpp: LLM) -> LLM:
        return llama_cpp
