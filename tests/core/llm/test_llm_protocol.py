"""What every language model promises, whoever runs it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from stories import never_over, sentence_over

from alimark import Generation, Key
from alimark.core.generation.api import GenerationSettings, Prompt, generate_many
from alimark.core.llm.base import LLM, Draw, Message, Request, Sampling, TakesBias
from alimark.core.schemes.registry import rule_for
from alimark.errors import ContextFull
from alimark.testing import StandInEmbedder, StandInLLM

CONTEXT = "The council met on Monday to talk about the new library."
SHORT = Sampling(max_tokens=16)


class Promises:
    """Collected through its subclasses, each of which names the fixture of its model."""

    engine = ""

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, request: pytest.FixtureRequest) -> LLM:
        llm: LLM = request.getfixturevalue(cls.engine)
        return llm

    @pytest.fixture(scope="class")
    @classmethod
    def sentences(cls, llm: LLM) -> list[Draw]:
        """Drawn once for all that is asked of them."""
        return _draw(llm, 6, Sampling(max_tokens=48))

    @pytest.fixture(scope="class")
    @classmethod
    def six(cls, llm: LLM) -> list[Draw]:
        return _draw(llm, 6, SHORT)

    def test_draws_come_in_the_shape_of_the_requests(self, llm: LLM) -> None:
        requests = [Request(CONTEXT, 3, 1), Request("It rained.", 1, 2), Request(CONTEXT, 0, 3)]
        assert [len(draws) for draws in llm.draw(requests, SHORT, sentence_over)] == [3, 1, 0]
        assert llm.draw([], SHORT, sentence_over) == []

    def test_a_draw_says_why_it_ended(self, sentences: list[Draw]) -> None:
        for draw in sentences:
            assert 1 <= draw.tokens <= 48
            assert draw.ended != "sentence" or sentence_over(draw.text)
            assert draw.ended != "length" or draw.tokens == 48
        assert any(draw.ended == "sentence" for draw in sentences)

    def test_a_sentence_is_left_soon_after_its_end(self, sentences: list[Draw]) -> None:
        ended = [draw for draw in sentences if draw.ended == "sentence"]
        for draw in ended:
            assert not sentence_over(draw.text[:-1].rstrip()[:-40])

    def test_without_an_end_the_budget_is_spent(self, llm: LLM) -> None:
        [draws] = llm.draw([Request(CONTEXT, 4, 5)], SHORT, never_over)
        assert all(draw.ended in {"length", "model"} for draw in draws)
        assert all(draw.tokens == SHORT.max_tokens for draw in draws if draw.ended == "length")
        assert any(draw.ended == "length" for draw in draws)

    def test_the_same_request_gives_the_same_draws(self, llm: LLM) -> None:
        first = _draw(llm, 4, self.again)
        llm.draw([Request("Something else came between.", 2, 9)], SHORT, sentence_over)
        same = sum(one == other for one, other in zip(_draw(llm, 4, self.again), first, strict=True))
        assert same >= self.same_again

    again = SHORT
    same_again = 4

    def test_draws_differ_by_number_and_by_seed(self, llm: LLM, six: list[Draw]) -> None:
        assert len({draw.text for draw in six}) > 3
        [others] = llm.draw([Request(CONTEXT, 6, 8)], SHORT, sentence_over)
        assert sum(one.text == other.text for one, other in zip(six, others, strict=True)) <= 2

    def test_a_context_without_room_is_an_error(self, llm: LLM) -> None:
        with pytest.raises(ContextFull):
            llm.draw([Request("word " * 20_000, 2, 1)], SHORT, sentence_over)

    def test_other_scripts_come_out_whole(self, llm: LLM) -> None:
        context = "Das Wetter ist schön 🙂, 今日は天気が"
        [draws] = llm.draw([Request(context, 6, 4)], Sampling(max_tokens=16, temperature=1.5), never_over)
        assert not any(draw.text.endswith("\ufffd") for draw in draws)

    def test_waves_give_the_draws_of_one_request(self, llm: LLM, six: list[Draw]) -> None:
        whole = six if self.again == SHORT else _draw(llm, 6, self.again)
        waves = _draw(llm, 2, self.again) + _draw(llm, 4, self.again, first=2)
        same = sum(one == other for one, other in zip(whole, waves, strict=True))
        assert same >= self.same_in_waves

    same_in_waves = 6

    def test_a_question_is_answered(self, llm: LLM) -> None:
        colour, number = (_ask(llm, question) for question in ("Name a colour.", "Count from one to ten."))
        assert any(draw.text.strip() for draw in colour)
        assert [draw.text for draw in colour] != [draw.text for draw in number]
        assert "assistant" not in colour[0].text[:12]

    def test_an_unfinished_turn_is_gone_on_with(self, llm: LLM) -> None:
        question, begun = "What is the capital of France?", "The capital of France is the city of"
        answers, others = _ask(llm, question, begun), _ask(llm, question, "Nobody has ever been to")
        assert not any(draw.text.strip().startswith(begun) for draw in answers)
        assert [draw.text for draw in answers] != [draw.text for draw in others]
        if self.knows_france:
            assert all("Paris" in draw.text for draw in answers)

    knows_france = False

    def test_a_bias_makes_a_token_frequent_where_the_engine_takes_one(self, llm: LLM) -> None:
        asked, wide = Request(CONTEXT, 6, 7), Sampling(0.7, 1.0, 1.0, max_tokens=16)
        [plain] = llm.draw([asked], wide, never_over)
        if not isinstance(llm, TakesBias) or not llm.bias_stays_here:
            return

        def tokens(draws: Sequence[Draw]) -> list[int]:  # of whole characters
            return [token for draw in draws for token in llm.encode(draw.text.replace("\ufffd", ""))]

        token = Counter(tokens(plain)).most_common(1)[0][0]
        bias = np.zeros(token + 1, np.float32)
        bias[token] = 12.0
        # Requests with and without a bias, side by side.
        biased, beside = llm.draw([replace(asked, bias=bias), asked], wide, never_over)
        assert tokens(biased).count(token) > 2 * max(tokens(draws).count(token) for draws in (plain, beside))

    def test_an_engine_says_what_it_can_do(self, llm: LLM) -> None:
        assert llm.name
        assert llm.max_concurrency >= 1
        assert llm.preferred_batch >= 1
        assert min(llm.single_draw_batching) >= 1
        assert llm.limits == self.limits

    limits: tuple[str, ...] = ()


def _draw(llm: LLM, count: int, sampling: Sampling, first: int = 0) -> list[Draw]:
    [draws] = llm.draw([Request(CONTEXT, count, 7, first)], sampling, sentence_over)
    return draws


def _ask(llm: LLM, question: str, begun: str = "") -> list[Draw]:
    sampling = Sampling(max_tokens=8, temperature=0.3, repetition_penalty=1.0, may_end=True)
    [draws] = llm.draw([Request(begun, 2, 1, messages=(Message("user", question),))], sampling, never_over)
    return draws


@pytest.fixture(scope="module")
def stand_in() -> LLM:
    return StandInLLM(context_characters=50_000)


class TestStandIn(Promises):
    engine = "stand_in"


class TestTinyTransformers(Promises):
    engine = "tiny"


@pytest.mark.weights
class TestTransformers(Promises):
    engine = "real_transformers"
    knows_france = True


class LlamaPromises(Promises):
    """What the local engine and its server promise, which run the same code of llama.cpp."""

    knows_france = True
    same_in_waves = 2  # the batch's shape moves llama.cpp's logits, and with them a draw now and then

    def test_the_penalty_spans_the_prompt_in_every_draw(self, llm: LLM) -> None:
        context = "one two three four five one two three four five one two three four five one two"
        free, held = (
            llm.draw([Request(context, 4, 1)], Sampling(0.01, 0.01, penalty, max_tokens=6), never_over)[0]
            for penalty in (1.0, 10.0)
        )
        assert {draw.text for draw in free} == {" three four five one two three"}
        words = {word for draw in held for word in draw.text.split()}
        assert words.isdisjoint({"one", "two", "three", "four", "five"})

    def test_a_model_that_would_end_goes_on_unless_it_may(self, llm: LLM) -> None:
        turns = (Message("user", "Say hello."),)
        for may_end, ended in ((True, "model"), (False, "length")):
            sampling = Sampling(0.01, 0.01, 1.0, max_tokens=12, may_end=may_end)
            begun = Request("Hello! How can I help you today?", 2, 1, messages=turns)
            [draws] = llm.draw([begun], sampling, never_over)
            assert {draw.ended for draw in draws} == {ended}


@pytest.mark.weights
class TestLlamaCpp(LlamaPromises):
    engine = "llama_cpp"


@pytest.mark.weights
class TestLlamaCppServer(LlamaPromises):
    engine = "served"
    # It remembers what it has read, and who is served together is a matter of time: both move its logits a little.
    again = Sampling(max_tokens=4)
    same_again = 2


@pytest.mark.weights
class TestUnknownServer(Promises):
    engine = "served_plainly"
    again = Sampling(max_tokens=4)
    same_again = 2
    same_in_waves = 1  # a busy machine batches the requests of this server in other ways
    limits = (
        "no repetition penalty, top-k or min-p",
        "the model may end its text at any time",
        "an unfinished turn is continued on request, in words",
        "seeds count only as far as the server heeds them",
        "the server does not tell how many tokens it sampled; they are estimated from the text",
    )


# The batch changes no text on real engines either, where they are deterministic


def texts(llm: LLM, batch: int) -> list[str]:
    embedder = StandInEmbedder()
    key = Key.generate(embedder=embedder, decision="hard", secret=bytes(range(32)))
    prompts = [Prompt("The council met on Monday.", 1), Prompt("A storm came over the sea in the night.", 2)]
    settings = GenerationSettings(2, 2, Sampling(max_tokens=12))
    made = dict(generate_many(prompts, key, embedder, llm, settings, rule=rule_for, batch=batch))
    return [one.text for _, one in sorted(made.items()) if isinstance(one, Generation)]


@pytest.mark.weights
@pytest.mark.parametrize("engine", ["real_transformers", "llama_cpp"])
def test_on_real_weights(engine: str, request: pytest.FixtureRequest) -> None:
    """Two texts of two short sentences: every step costs as much as reading all weights."""
    llm: LLM = request.getfixturevalue(engine)
    alone = texts(llm, 1)
    assert len(alone) == 2
    assert texts(llm, 2) == alone
