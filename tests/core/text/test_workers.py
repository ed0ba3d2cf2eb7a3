"""Reading in other processes gives the same as in this one, also when those processes die."""

from typing import Any

import pytest

from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.candidates import FirstSentence, Text
from alimark.core.llm.base import Draw, Request, Sampling
from alimark.core.text.continuations import Continuation, Reading, reading_of
from alimark.core.text.workers import Workers
from alimark.testing import StandInLLM

TEXTS = [draw.text for draw in StandInLLM().draw([Request("", 100, 1)], Sampling(), FirstSentence(splitter()))[0]]
TEXTS += [
    "", " \n\n", "No end", "Dr. Smith", "It is late. ", "It is late. Then it", "A Heading\n\nText", "“Wide。” 文。",
    "```py\nx = 1\n```\nNow", "```py\nx = 1.\n\n", "> Quoted. Then it", "| a | b |\n| 1 | 2 |\n", "- Milk\n- Eggs\n",
    "The list:\n- Milk\n- Eggs\n", "The l\u0430mp went <b>out</b>. Then it", "It is **bold. Then it",
    "No no no no no no. It was",
    "Half a pair \ud800 is here. Then it",
]  # fmt: skip
CONTINUATIONS: list[Continuation] = [(text, ended) for text in TEXTS for ended in (None, "sentence", "model", "length")]


def expected() -> list[Reading | None]:
    return [reading_of(splitter(), *continuation) for continuation in CONTINUATIONS]


def test_the_answers_are_the_same() -> None:
    workers = Workers("nupunkt", 2)
    readings = expected()
    assert workers.readings(CONTINUATIONS) == readings
    assert workers.readings(CONTINUATIONS[:5]) == readings[:5]
    cutter = splitter()
    assert [workers.units(text) for text in TEXTS[-20:]] == [cutter.units(text) for text in TEXTS[-20:]]
    assert all(worker.alive for worker in workers._workers)
    flaws = {reading.flaw for reading in readings if reading}
    assert {"", "blank", "unfinished", "degenerate", "markup", "code"} <= flaws


def test_a_process_that_dies_is_done_without() -> None:
    workers = Workers("nupunkt", 3)
    readings = expected()
    assert workers.readings(CONTINUATIONS) == readings
    process: Any = workers._workers[1]._process
    process.kill()
    process.wait()
    assert workers.readings(CONTINUATIONS) == readings
    assert [worker.alive for worker in workers._workers] == [True, False, True]
    assert workers.readings(CONTINUATIONS) == readings


def test_without_processes_all_is_read_here() -> None:
    workers = Workers("nupunkt", 2)
    for worker in workers._workers:
        worker._stop()
    assert workers.readings(CONTINUATIONS) == expected()


def test_after_an_interruption_no_stale_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("nupunkt", 2)
    worker = workers._workers[0]

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.readings(CONTINUATIONS)
    assert workers.readings(CONTINUATIONS[::-1]) == expected()[::-1]


def test_a_reading_reaches_a_little_beyond_a_sentence_or_a_code_block() -> None:
    over = FirstSentence(splitter())
    texts = ["It was late. Then it", "It was la", "```py\nx = 1\n```\nNow", "```py\nx = 1.\n\n"]
    assert [reading and reading.length for reading in over.readings(texts)] == [13, None, 16, None]
    assert [reading is not None for reading in over.readings(TEXTS)] == [over(text) for text in TEXTS]


def test_candidates_are_the_same_with_and_without_a_reading() -> None:
    cutter = splitter()
    draws = [Draw(text, 1, ended) for text, ended in CONTINUATIONS if ended]
    text = Text(cutter)
    for _ in range(2):  # an empty text, and one that some of the draws repeat
        for draw, read in zip(draws, FirstSentence(cutter).read(draws), strict=True):
            assert read.reading is not None
            assert text.candidate(read, may_end=True) == text.candidate(draw, may_end=True)
        text.add(text.candidate(draws[0]))
