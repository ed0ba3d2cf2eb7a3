"""The function that decides what is prose."""

from __future__ import annotations

import pytest

from alimark.core.frozen.text.prose import aside_end, aside_opens, before_aside, blocks, prose_spans
from alimark.core.frozen.text.splitting import splitter

PROSE = "The lamp went out at nine. Nobody saw the keeper on the stairs."


@pytest.mark.parametrize(
    "aside",
    [
        "```python\nprint('The lamp went out.')\nx = f(y)\n```",
        "~~~~\n```\nx = 1;\n~~~~",
        "| Name | Age |\n| --- | --- |\n| Ann | 12 |",
        "a\tb\tc\n1\t2\t3",
        "$$\n\\sum_{i=1}^n x_i\n$$",
        "\\[ x^2 + y^2 = z^2 \\]",
        "\\begin{align}\nx &= y \\\\\n\\end{align}",
        "> Call me Ishmael.\n> Some years ago.",
        "- Milk\n- Six eggs\n- A loaf of bread",
        "1. Ann\n2. Bob",
    ],
)
def test_blocks_that_are_not_prose_hold_no_sentence(aside: str) -> None:
    text = f"{PROSE}\n\n{aside}\n\nThen the wind rose over the dark water of the bay."
    assert [text[a:b].strip() for a, b in prose_spans(text)] == [PROSE, text.rpartition("\n\n")[2]]
    assert splitter(text_version=1).units(text) == [
        "The lamp went out at nine.",
        "Nobody saw the keeper on the stairs.",
        "Then the wind rose over the dark water of the bay.",
    ]


def test_long_items_are_prose() -> None:
    text = "- The lamp went out at nine in the evening.\n- Nobody saw the keeper on the stairs."
    assert prose_spans(text) == [(0, len(text))]


@pytest.mark.parametrize(
    "text",
    [
        "",
        PROSE,
        "> Nothing but a quotation.\n> And its second line.",
        "```\nx = 1\n```",
        f"```\n{PROSE}",
        f"A word.\n> {PROSE}\n> {PROSE}",
    ],
)
def test_a_text_never_hides_as_a_whole(text: str) -> None:
    assert "".join(text[a:b] for a, b in prose_spans(text)) == text


def test_blocks_cover_the_text() -> None:
    text = f"{PROSE}\n\n- Milk\n- Eggs\n```\nx = 1\n```\n> Quoted.\n$$\nx\n"
    divided = blocks(text)
    assert [block.kind for block in divided] == ["prose", "item", "code", "quotation", "prose"]
    assert "".join(text[block.start : block.end] for block in divided) == text


@pytest.mark.parametrize(
    ("text", "opens", "end"),
    [
        ("The lamp went out.\n", False, None),
        ("- Milk", False, None),  # it may go on
        ("- Milk\n- Eggs", True, 7),
        ("\n> Quoted", True, None),
        ("\n> Quoted.\nNext", True, 11),
        ("| a | b |\n", True, 10),
        ("$$\nx\n", True, None),
        ("$$\nx\n$$\nThen", True, 8),
        ("```\nx\n```\nThen", True, 10),
        ("```\nx\n```", True, None),  # the fence may become longer
    ],
)
def test_continuations_are_judged_by_what_is_known(text: str, opens: bool, end: int | None) -> None:
    assert aside_opens(text) is opens
    if opens:
        assert aside_end(text) == end


def test_what_comes_before_a_block() -> None:
    assert before_aside("The list:\n- Milk\n- Eggs\n") == "The list:\n"
    assert before_aside(PROSE) == PROSE
