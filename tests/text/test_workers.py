"""Splitting in other processes gives the same sentences as in this one, also when those processes die."""

from __future__ import annotations

import pytest

from alimark.generation.candidates import FirstSentence
from alimark.llm.base import Request, Sampling
from alimark.testing import StandInLLM
from alimark.text.splitting import splitter
from alimark.text.workers import Workers, first_sentence

TEXTS = [draw.text for draw in StandInLLM().draw([Request("", 300, 1)], Sampling(), FirstSentence(splitter()))[0]]
TEXTS += ["", " \n\n", "No end", "Dr. Smith", "It is late. ", "A Heading\n\nText", "“Wide。” 文。"]
EXPECTED = [first_sentence(splitter(), text) for text in TEXTS]


def test_the_answers_are_the_same() -> None:
    workers = Workers("nupunkt", 2)
    assert workers.first_sentences(TEXTS) == EXPECTED
    assert workers.first_sentences(TEXTS[:5]) == EXPECTED[:5]
    assert all(worker.alive for worker in workers._workers)


def test_a_process_that_dies_is_done_without() -> None:
    workers = Workers("nupunkt", 3)
    assert workers.first_sentences(TEXTS) == EXPECTED
    process = workers._workers[1]._process
    assert process is not None
    process.kill()
    process.wait()
    assert workers.first_sentences(TEXTS) == EXPECTED
    assert [worker.alive for worker in workers._workers] == [True, False, True]
    assert workers.first_sentences(TEXTS) == EXPECTED


def test_after_an_interruption_no_stale_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("nupunkt", 2)
    worker = workers._workers[0]

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workers.first_sentences(TEXTS)
    assert workers.first_sentences(TEXTS[::-1]) == EXPECTED[::-1]


def test_ends_say_where_a_sentence_or_a_code_block_is_over() -> None:
    over = FirstSentence(splitter())
    texts = ["It was late. Then it", "It was la", "```py\nx = 1\n```\nNow", "```py\nx = 1.\n\n"]
    assert over.ends(texts) == [12, 0, 16, 0]
    assert [bool(end) for end in over.ends(TEXTS)] == [over(text) for text in TEXTS]
