"""Possible sentence ends in texts without regular full stops."""

import time
from typing import Any

import pytest

from alimark.core.text.clauses import LONGEST, LONGEST_RUN, Clauses, clauses, clauses_of

SENTENCES = [
    "The keeper of the old light slept until the storm was over.",
    "Nobody in the village had seen the lamp go out that night.",
    "They said later that the wind had risen over the bay without a warning.",
    "However, two boats came home before the morning, and both of them were empty.",
]


def stripped(joint: str) -> str:
    return joint.join(sentence[:-1] for sentence in SENTENCES)


@pytest.mark.parametrize(
    "text",
    [
        stripped(", "), stripped("; "), stripped(" "), stripped("\n"), stripped(" - "), stripped(" 🙂 "), stripped(" and "),
        stripped(" ").lower(), stripped(" ").replace(",", "").lower(),
    ],
)  # fmt: skip
def test_the_sentences_are_among_the_runs_of_a_text_without_stops(text: str) -> None:
    pieces: Any = clauses_of([text])
    units = {pieces.unit(first, last).lower().replace(",", "") for first, last, _ in pieces.runs()}
    assert {sentence.lower().replace(",", "") for sentence in SENTENCES} <= units


def test_texts_with_regular_sentences_have_no_pieces() -> None:
    assert clauses_of(SENTENCES) is None
    assert clauses_of([*SENTENCES, "Yes.", "No."]) is None
    assert clauses_of(["Too short to say anything"]) is None
    assert clauses_of([]) is None


def test_fillers_are_left_out() -> None:
    pieces: Any = clauses_of([part for sentence in SENTENCES for part in (sentence, "Oh yes.")])
    assert "yes" not in pieces.text
    units = {pieces.unit(first, last) for first, last, _ in pieces.runs()}
    assert set(SENTENCES) <= units


def test_scattered_stops_are_irregular() -> None:
    words = " ".join(SENTENCES).replace(".", "").split()
    parts = [" ".join(words[i : i + 3]) + "." for i in range(0, len(words), 3)]
    pieces: Any = clauses_of(parts)
    units = {pieces.unit(first, last) for first, last, _ in pieces.runs()}
    assert set(SENTENCES) <= units  # without the stops inside
    in_lower_case = clauses(" ".join(SENTENCES).lower())  # these stops are where they belong
    assert in_lower_case.text.count(".") == len(SENTENCES)


def test_pieces_cover_the_text_and_runs_keep_their_limits() -> None:
    pieces = clauses(stripped(" ") * 5)
    assert sum(len(pieces.text[a:b].split()) for a, b in pieces.spans) == len(pieces.text.split())
    assert pieces.ends[-1] == 1
    assert all(0 < end <= 1 for end in pieces.ends)
    for first, last, chance in pieces.runs():
        assert last - first < LONGEST_RUN
        assert 0 < chance <= 1
        assert first == last or len(pieces.unit(first, last).split()) <= LONGEST


def test_a_sentence_can_begin_with_every_piece() -> None:
    pieces = Clauses("a b c", [(0, 1), (2, 3), (4, 5)], [0.5, 0.01, 1.0])
    assert {first for first, _, _ in pieces.runs()} == {0, 1, 2}


def test_linear_time() -> None:
    start = time.perf_counter()
    clauses("word " * 100_000)
    clauses("a, " * 100_000)
    assert time.perf_counter() - start < 20
