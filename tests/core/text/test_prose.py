"""The function that decides what is prose."""

import pytest

from alimark.core.frozen.text.prose import aside_end, aside_opens, before_aside, prose_parts
from alimark.core.frozen.text.splitting import LONG_SENTENCE, LONGEST_SENTENCE, splitter

PROSE = "The lamp went out at nine. Nobody saw the keeper on the stairs."
LAST = "Then the wind rose over the dark water of the bay."


def parts(text: str) -> list[str]:
    return [text[part.start : part.end].strip() for part in prose_parts(text)]


@pytest.mark.parametrize(
    "aside",
    [
        "```python\nprint('The lamp went out.')\nx = f(y)\n```",
        "~~~~\n```\nx = 1;\n~~~~",
        "```\n# This comment says what the next line does.\nx = f(y)\ny = g(x)\n```",
        "| Name | Age |\n| --- | --- |\n| Ann | 12 |",
        "a\tb\tc\n1\t2\t3",
        "$$\n\\sum_{i=1}^n x_i\n$$",
        "\\[ x^2 + y^2 = z^2 \\]",
        "\\begin{align}\nx &= y \\\\\n\\end{align}",
    ],
)
def test_code_tables_and_formulas_hold_no_sentence(aside: str) -> None:
    text = f"{PROSE}\n\n{aside}\n\n{LAST}"
    assert parts(text) == [PROSE, LAST]
    assert splitter().units(text) == ["The lamp went out at nine.", "Nobody saw the keeper on the stairs.", LAST]


@pytest.mark.parametrize(
    ("layout", "units"),
    [
        (
            "> Call me Ishmael.\n> Some years\n> ago I went to sea.",
            ["Call me Ishmael.", "Some years ago I went to sea."],
        ),
        ("- Milk\n- Six eggs\n1. A loaf of bread", ["Milk.", "Six eggs.", "A loaf of bread."]),
        ("```\nThe keeper slept in his chair. So it was.\n```", ["The keeper slept in his chair.", "So it was."]),
        ("```\nx = f(y)\n\nThe keeper slept in his chair.\n\ny = x;\n```", ["The keeper slept in his chair."]),
        ("$$\nThe keeper slept in his chair.\n$$", ["The keeper slept in his chair."]),
        ("| 1 | The keeper slept. | 12 |\n| 2 | He woke at noon. | 13 |", ["The keeper slept.", "He woke at noon."]),
    ],
)
def test_words_behind_layout_are_prose(layout: str, units: list[str]) -> None:
    text = f"{PROSE}\n\n{layout}\n\n{LAST}"
    assert splitter().units(text) == [*splitter().units(PROSE), *units, LAST]


@pytest.mark.parametrize("text", ["", PROSE, "```\nx = 1\n```", f"```\n{PROSE}", "| a | b |\n| 1 | 2 |", "$$"])
def test_a_text_never_hides_as_a_whole(text: str) -> None:
    assert "".join(parts(text)).strip("`\n") == text.strip("`\n")


def test_what_follows_does_not_change_what_an_earlier_part_is() -> None:
    """Generation decides before the rest of a text is written."""
    text = f"{PROSE}\n\n- Milk\n- Eggs\n```\nx = 1\ny = f(x)\n\n{PROSE}\n```\n> Quoted.\n$$\nx\n\n{LAST}\n"
    for end, part in ((part.end, part) for part in prose_parts(text)):
        for longer in range(end, len(text)):
            assert part.start in [other.start for other in prose_parts(text[:longer])]


@pytest.mark.parametrize(
    ("text", "opens", "end"),
    [
        ("The lamp went out.\n", False, None),
        ("- Milk\n- Eggs", False, None),
        ("\n> Quoted.\nNext", False, None),
        ("| a | b |\n", True, 10),
        ("$$\nx\n", True, None),
        ("$$\nx\n$$\nThen", True, 8),
        ("$$\nx\n\nThen", True, 6),
        ("```\nx\n```\nThen", True, 10),
        ("```\nx\n```", True, None),  # the fence may become longer
    ],
)
def test_continuations_are_judged_by_what_is_known(text: str, opens: bool, end: int | None) -> None:
    assert aside_opens(text) is opens
    if opens:
        assert aside_end(text) == end


def test_what_comes_before_a_block() -> None:
    assert before_aside("The table:\n| Milk | 2 |\n") == "The table:\n"
    assert before_aside(PROSE) == PROSE


def test_an_endless_sentence_is_cut_after_a_clause() -> None:
    clause = " ".join(["word"] * 20) + ", "
    sentences = splitter().sentences(clause * 10)
    assert [len(sentence.split()) for sentence in sentences] == [80, 80, 40]
    assert all(sentence.endswith(",") for sentence in sentences)
    assert [len(cut.split()) for cut in splitter().sentences("word " * 200)] == [LONGEST_SENTENCE, LONGEST_SENTENCE, 8]
    usual = " ".join(["word"] * LONG_SENTENCE)
    assert splitter().sentences(usual) == [usual]
