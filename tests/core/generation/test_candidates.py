"""Candidates: which continuations of a model may be added to a text, and the flaws for which others are refused."""

import pytest

from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.candidates import Candidate, Text
from alimark.core.llm.base import Draw
from alimark.core.text.continuations import broken_markup, degenerate


def text_of(*pieces: str) -> Text:
    """A text into which these continuations were taken, sentence by sentence."""
    text = Text(splitter())
    for piece in pieces:
        candidate = text.candidate(Draw(piece, 1, "sentence"))
        assert not candidate.flaw, candidate
        text.add(candidate)
    return text


def flaw(continuation: str, *before: str) -> str:
    return text_of(*before).candidate(Draw(continuation, 1, "sentence")).flaw


@pytest.mark.parametrize(
    ("continuation", "expected"),
    [
        (" The dog barked all night. ", ""),
        (" \n\n", "blank"),
        (" ... ?! ", "blank"),
        (" it rained. ", "repeat"),
        (" “It rained!” ", "repeat"),
        (" No no no no no no. ", "degenerate"),
        (" Very, very, very, very good it was in the end. ", "degenerate"),
        (" Go on and go on and go on and go on and go on and go on. ", "degenerate"),
        (" Ha ha ha. ", "degenerate"),
        (" Th i t n g s a l l i g h t. ", "degenerate"),
        (" I saw A, B and C on a map. ", ""),
        (" Ha ha. ", ""),
        (" He said <|im_end|> and left. ", "markup"),
        (" The <b>dog barked. ", "markup"),
        (" The <b>dog</b> barked<br> at 3 < 4 > 2. ", ""),
        (" The **dog barked. ", "markup"),
        (" The **dog** ran `home`. ", ""),
        (" The `dog ran. ", "markup"),
        ("\n```python\nx = 1", "code"),
    ],
)
def test_flaws(continuation: str, expected: str) -> None:
    assert flaw(continuation, "It rained. ") == expected


def test_a_sentence_cut_off_is_unfinished_and_one_that_ended_is_not() -> None:
    so_far = text_of()
    assert so_far.candidate(Draw(" The dog went", 128, "length")).flaw == "unfinished"
    assert so_far.candidate(Draw(" The dog went. Then it came", 128, "length")).flaw == ""
    assert so_far.candidate(Draw(" The dog went", 3, "model")).flaw == ""


def test_layout_stays_between_sentences_and_out_of_the_units() -> None:
    text = text_of(
        "## What to pack\n\nFirst",
        "Take these things:\n\n- a",
        "- a warm coat\n- a",
        "- a map of the hills. And",
        "1. Then go. ",
        "\n\nIt is\ncold there. ",
        " Mind the wind. ",
    )
    assert str(text) == (
        "## What to pack\n\nTake these things:\n\n- a warm coat\n- a map of the hills. 1. Then go.\n\n"
        "It is cold there. Mind the wind."
    )
    assert text.units == [
        "What to pack.",
        "Take these things:.",
        "a warm coat.",
        "a map of the hills.",
        "Then go.",
        "It is cold there.",
        "Mind the wind.",
    ]
    assert splitter().units(str(text)) == text.units
    assert text.surviving() == 7


def test_a_sentence_that_would_be_split_otherwise_is_seen() -> None:
    so_far = text_of("He met Dr. Brown. ")
    assert so_far.kept_by_splitter(so_far.candidate(Draw(" Then he left. ", 1, "sentence")))
    assert not so_far.kept_by_splitter(Candidate("3 of them left.", "3 of them left."))


def test_the_sentence_behind_a_code_block_is_found_again() -> None:
    so_far = text_of("Run this:\n\n```")
    so_far.add_code("```sh\nls\n```\n")
    assert not so_far.in_code
    candidate = so_far.candidate(Draw("It lists files. ", 1, "sentence"))
    assert so_far.kept_by_splitter(candidate)
    so_far.add(candidate)
    assert str(so_far) == "Run this:\n\n```sh\nls\n```\nIt lists files."


def test_long_sentences_are_judged_by_their_runs_of_words() -> None:
    assert not degenerate("The committee that had to look into the matter said on the day that it had no cause to act.")
    assert degenerate("The cat sat on the mat and the cat sat on the mat and the cat sat on the mat and the cat sat.")
    assert not broken_markup("A [link] and 2 * 3 and 5 < 6.")


def test_a_sentence_of_a_script_with_vowel_signs_is_not_degenerate() -> None:
    assert not degenerate("दुकानदार ने कहा कि वह किताब पुरानी है।")
    assert degenerate("ने ने ने ने ने ने ने।")


def test_a_text_cut_off_before_the_first_word_of_a_sentence_has_no_empty_sentence() -> None:
    text = text_of("One came.", ' "Two went," she wrote.')
    text.shorten(str(text).index("Two"))
    assert (str(text), text.units) == ('One came. "', ["One came."])
