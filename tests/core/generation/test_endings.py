"""Where a text ends: as often as the model ends it, whatever the number of candidates."""

import asyncio

import pytest

from alimark import AliMark, Generation, Key, Sampling
from alimark.core.generation.api import Ending, GenerationSettings, Scheduler, Session
from alimark.core.llm.base import LLM, Draw
from alimark.core.schemes.registry import rule_for
from alimark.testing import StandInEmbedder, StandInLLM
from fixed_texts import generate
from watched import Told, watched

EMBEDDER = StandInEmbedder()
SOFT = Key.generate(secret=bytes(range(32)), embedder=EMBEDDER)
HARD = Key.generate(secret=bytes(range(32)), embedder=EMBEDDER, decision="hard")
MAY_END = Sampling(may_end=True)


def write(llm: LLM, *, key: Key | None = SOFT, seed: int = 1, sampling: Sampling = MAY_END) -> Generation:
    settings = GenerationSettings(20, 8, sampling, prompt_style="chat")
    return generate("Why?", key, EMBEDDER, llm, settings, seed=seed)


@pytest.mark.parametrize("key", [SOFT, HARD, None], ids=["soft", "hard", "unmarked"])
def test_texts_are_as_long_as_the_model_makes_them(key: Key | None) -> None:
    """A model that ends its text before a sentence with probability 1/4 writes 3 sentences at the mean, here as well.

    The mean of 150 geometric lengths with standard deviation 3.46 lies within 0.85 of 3 in 99.7% of all experiments.
    """
    llm = StandInLLM(ends=0.25)
    generations = [write(llm, key=key, seed=seed) for seed in range(150)]
    assert {generation.ended for generation in generations} <= {"model ended", "complete"}
    mean = sum(len(generation.sentences) for generation in generations) / len(generations)
    assert abs(mean - 3) < 0.85
    empty = sum(not generation.sentences for generation in generations)
    assert abs(empty / 150 - 0.25) < 0.11


def test_a_model_that_may_not_end_writes_all_sentences() -> None:
    assert len(write(StandInLLM(ends=0.25), sampling=Sampling()).sentences) == 20


def scripted(*parts: Draw) -> LLM:
    """A model that answers every draw with the next part of a fixed answer, and then ends its text."""
    steps = [*parts, Draw("", 1, "model")]
    return Told(lambda request, _: steps[sum(part.text.strip() in request.context for part in parts)])


def test_an_ending_after_a_full_stop_costs_one_draw() -> None:
    """The draw that was chosen ended the text, so a single further draw is asked whether it does."""
    counts: list[int] = []
    llm = scripted(Draw("The sum is four. ", 5, "sentence"), Draw("That is all.", 4, "model"))
    generation = write(watched(llm, lambda requests: counts.append(requests[0].count)))
    assert (generation.text, generation.ended) == ("The sum is four. That is all.", "model ended")
    assert counts == [8, 8, 1]


@pytest.mark.parametrize(
    ("begun", "last", "end"),
    [("Here it is: ", "- Four", "- Four"), ("So. ", "```python\nprint(4)\n```", "So.\n```python\nprint(4)\n```")],
    ids=["no full stop", "code"],
)
def test_the_last_words_stay_as_they_are(begun: str, last: str, end: str) -> None:
    generation = write(scripted(Draw(begun, 5, "sentence"), Draw(last, 9, "model")))
    assert generation.text.endswith(end)
    assert generation.ended == "model ended"


def test_answers_end_by_default_and_continuations_do_not() -> None:
    mark = AliMark(SOFT, embedder=EMBEDDER)
    llm = StandInLLM(ends=0.5)
    answer = mark.generate("Why?", llm, candidates=8, seed=2, prompt_style="chat")
    awaited = asyncio.run(mark.agenerate("Why?", llm, candidates=8, seed=2, prompt_style="chat"))
    assert answer.ended == awaited.ended == "model ended"
    assert answer.text == awaited.text
    assert len(mark.generate("It was late.", llm, candidates=8, seed=2).sentences) == 12
    stubborn = mark.generate("Why?", llm, candidates=8, seed=2, prompt_style="chat", sampling=Sampling())
    assert stubborn.ended == "complete"


def words(text: str) -> int:
    return len(text.split())


def write_until(llm: LLM, ending: Ending, seed: int = 1) -> tuple[Generation, list[str]]:
    pieces: list[str] = []
    settings = GenerationSettings(20, 8, MAY_END, prompt_style="chat")
    session = Session(
        "Why?", SOFT, settings, rule=rule_for, seed=seed, ending=ending, progress=lambda s: pieces.append(s.piece)
    )
    with Scheduler(llm, EMBEDDER) as scheduler:
        return scheduler.submit(session).result(), pieces


@pytest.mark.parametrize("most", [1, 5, 20, 33])
def test_the_token_limit_is_kept_to_the_token(most: int) -> None:
    generation, pieces = write_until(StandInLLM(), Ending(max_tokens=most, count=words))
    assert words(generation.text) == most
    assert generation.ended == "token limit"
    assert "".join(pieces) == generation.text
    assert len(generation.matches) == len(generation.sentences) == generation.surviving
    whole = write_until(StandInLLM(), Ending(max_tokens=200, count=words))[0].text
    assert whole.startswith(generation.text)


@pytest.mark.parametrize(
    ("stops", "parts", "text"),
    [
        (["\nQ:"], [Draw("Paris\nQ: What is", 5, "length")], "Paris"),
        (["\n"], [Draw("It is red. ", 4, "sentence"), Draw("\nIt is blue. ", 4, "sentence")], "It is red."),
        ([".\n"], [Draw("It is red.\n", 4, "sentence"), Draw("It is blue. ", 4, "sentence")], "It is red"),
        ([" green"], [Draw("It is not green. ", 4, "sentence")], "It is not"),
        (["It"], [Draw("It is red. ", 4, "sentence")], ""),
        (["d. It"], [Draw("It is red.", 4, "sentence"), Draw(" It is blue. ", 4, "sentence")], "It is re"),
        (["END", "x = 2"], [Draw("So. ", 2, "sentence"), Draw("```\nx = 1\nx = 2\n```\n", 9, "model")],
         "So.\n```\nx = 1"),
        (["never"], [Draw("It is red. ", 4, "sentence"), Draw("All done.", 4, "model")], "It is red. All done."),
    ],
)  # fmt: skip
def test_stop_sequences(stops: list[str], parts: list[Draw], text: str) -> None:
    generation, pieces = write_until(scripted(*parts), Ending(tuple(stops)))
    assert generation.text == text
    assert generation.ended == ("model ended" if stops == ["never"] else "stop sequence")
    assert len(generation.matches) == len(generation.sentences)
    assert len(pieces) >= len(generation.sentences)
