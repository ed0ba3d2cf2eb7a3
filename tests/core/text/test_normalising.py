"""Normalisation takes the layout of prose away, and leaves prose alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alimark.core.frozen.text import normalising
from alimark.core.frozen.text.normalising import normalise

PLAIN = "The lamp went out at nine. Nobody saw the keeper, and the boats stayed in the harbour."


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\u200b".join(PLAIN), "invisible"),
        ("".join(c + "\U000e0041\u2060" for c in PLAIN), "invisible"),
        (PLAIN.replace(". ", ".&nbsp;").replace("lamp", "l&#97;mp"), "entity"),
        (f"<p class='a'>{PLAIN.replace('lamp', '<b>lamp</b>')}</p><script>let x = 1;</script>", "tag"),
        (f"```text\n{PLAIN}\n```", "fence"),
        (f"```\n{PLAIN}", "fence"),
        (f"$$\n{PLAIN}\n$$", "fence"),
        (f"\\begin{{quote}}{PLAIN}\\end{{quote}}", "fence"),
        (PLAIN.replace("lamp", "**lamp**").replace("keeper", "[keeper](http://x.org)"), "markdown"),
        ("> " + PLAIN.replace("Nobody", "\n> Nobody"), "quotation mark"),
        (f"| 1 | {PLAIN} |", "table"),
    ],
)
def test_layout_is_taken_away_and_counted(text: str, kind: str) -> None:
    normalised = normalise(text)
    assert " ".join(normalised.text.split()) == PLAIN
    assert normalised.changes[kind] > 0
    assert normalise(normalised.text).changes == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("➤ One lamp burned.\n✓ Two went out.", ["- One lamp burned.", "- Two went out."]),
        ("(1) One lamp burned.\n(2) Two went out.", ["- One lamp burned.", "- Two went out."]),
        ("Step 1: One lamp burned.\nb) Two went out.", ["- One lamp burned.", "- Two went out."]),
        ("| 1 | One lamp burned. |\n| 2 | Two went out. |", ["One lamp burned.", "Two went out."]),
        ("Here it is.\n\n```py\nfor x in y:\n    f(x)  # <b>\n```\n\nThat was it.", ["Here it is.", "That was it."]),
    ],
)
def test_lines_are_read(text: str, lines: list[str]) -> None:
    assert [line.strip() for line in normalise(text).text.split("\n") if line.strip()] == lines


_PIECES = st.sampled_from(
    [*"<>[]()*_`#&;|>-=~$\\.!?,:/'\" \n\tab1AZé", "<b>", "</p>", "```", "\n\n", "&amp;", "&#65;", "&lt;", "**", "$$",
     "> ", "| ", "- ", "1. ", "[1]", "\u200b", "\u0301", "The lamp went out. ", "word", "\\begin{", "def f(x):", "\r\n"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=24).map("".join)))
def test_plain_sentences_skip_the_rules_and_would_not_be_changed_by_them(text: str) -> None:
    normalised = normalise(text)
    if normalised.text is text:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(normalising, "_SPECIAL", re.compile(""))
            assert normalise(text).text.strip() == text.strip()
            assert normalise(text).changes == {}
