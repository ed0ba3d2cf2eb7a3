"""The readings of a text, normalised and without disguises: what is changed, and what is left alone."""

import json
import re
from codecs import encode
from collections import Counter
from collections.abc import Callable
from textwrap import wrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alimark.core.frozen.text import normalising
from alimark.core.frozen.text.normalising import normalise
from alimark.core.text.disguises import KINDS, statements, undisguise

PLAIN = "The lamp went out at nine. Nobody saw the keeper, and the boats stayed in the harbour."


def wrapped_on_pages() -> str:
    """The text in short lines, with a page number and a running head after each."""
    pages = (f"{line}\n\n- {number} -\nOF SUNDRY MATTERS\n" for number, line in enumerate(wrap(PLAIN, 25), 41))
    return "\n".join(pages)


def chat() -> str:
    """The text as messages of one person, with answers of another."""
    return "\n".join(f"[19:0{n}] <ann> {line}\n[19:0{n}] <bob> ok" for n, line in enumerate(wrap(PLAIN, 25)))


HUMAN = (
    PLAIN,
    "Dr. J. R. Miller of the U.S. team said, “We don’t know… yet.” It cost $3.50 (about £3) at 5 p.m. on Jan. 5, 2020.",
    "See https://example.org/a_b?c=d&e=f or write to first.last@example.com. The file main.py holds 3 * 4 * 5 lines.",
    "She paused — for a moment – then left. “Well,” he said, ‘it’s over.’ Was it? No! He’d said so…",
    "Élodie ate crème brûlée in Kraków; naïve façades of São Tomé, Ångström and Øresund. Đặng Văn Hùng và Nguyễn Thị Ánh.",
    "Water is H₂O, x² + y² = z², ½ of it at 20 °C. The angle α is 3 μm wide, 5′ 10″ tall. Fish & chips; A < B and C > D.",
    "Мама мыла раму. Он сказал, что это хорошо, и ушёл домой. Она осталась и долго смотрела в окно.",
    "今日は天気がいいです。明日は雨が降るでしょう。それでも出かけますか？",
    "First paragraph here.\n\nSecond one, with two blanks.  Like that.\n\n- A first item that is long enough to be prose.\n"
    "- A second item that is long enough, too.\n\n1. Then a numbered one.\n2. And the last one.",
    '{"name": "lamp", "text": "Nobody saw it."}',
    "Item      Price of one\nlamp      3\nkettle    12\nrope      7\nboat      1,200\ncups      4",
    "Say it again\nand again,\nSay it again\nuntil they come.\n\nThe R2D2 droid and 3 B52 bombers, um, flew at 0400 over.",
    "He said (like, really) that the lamp - Old Betty - was out… He was wrong about it.",
    "Great job! 🎉 We all love it 😂. The family 👨‍👩‍👧 went to 🇬🇧 and came home ❤️.",
)


@pytest.mark.parametrize("text", HUMAN)
def test_ordinary_prose_is_left_alone(text: str) -> None:
    plain = undisguise(text)
    assert plain.changes == {}
    assert plain.text.split() == text.split()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PLAIN.replace("a", "а").replace("e", "е").replace("o", "ο"), "confusable"),
        ("".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else "\u3000" for c in PLAIN), "compatibility"),
        ("".join(chr(0x1D41A + ord(c) - 97) if c.islower() else c for c in PLAIN), "compatibility"),
        (PLAIN.replace(" ", "\u200b"), "blank"),
        (PLAIN.replace(" ", "\u3164"), "blank"),
        ("".join(c + "\u0336" for c in PLAIN), "mark"),
        ("".join(c + "\u0300\u0316\u0322\u0340" * c.isalpha() for c in PLAIN), "mark"),
        (f"\u202e{PLAIN[::-1]}\u202c", "reversed"),
        ("".join(f"&#{ord(c)};" if c.isalpha() else c for c in PLAIN), "entity"),
        ("".join(f"&amp;amp;#x{ord(c):x};" if c.isalpha() else c for c in PLAIN), "entity"),
        (f"```text\n{PLAIN}\n```", "fence"),
        (PLAIN.replace(". ", "."), "missing blank"),
        ("   ".join(" ".join(word) for word in PLAIN.split()), "spaced letters"),
        (" ".join("-".join(word) for word in PLAIN.split()), "spaced letters"),
        (PLAIN.replace(" ", "_"), "spaced letters"),
        (PLAIN.replace("harbour", "har-\nbour"), "hyphen"),
        (PLAIN.replace("stayed ", "stayed\n\n"), "broken line"),
        (PLAIN.replace(" ", "\n\n"), "broken line"),
        (PLAIN.replace("nine.", "nine [3, 7].").replace("boats", "boats (Smith et al., 2020)"), "citation"),
        (PLAIN.replace(". N", " 🙂 N"), "stop"),
        (PLAIN.replace(". ", "։ "), "stop"),
        (PLAIN.replace(" ", " 👏 ").replace(". 👏 ", ". "), "spaced letters"),
        (
            PLAIN.replace("harbour", "har[b]bo[/b]ur").replace("boats", "**bo**ats").replace("stayed", "[[stay]]ed"),
            "markdown",
        ),
        (PLAIN.replace("boats", "~~carts~~ boats"), "markdown"),
        (PLAIN.replace("a", "=61").replace(" the", "=\n the"), "entity"),
        (PLAIN.replace("a", "\\u0061"), "entity"),
        (json.dumps([{"t": 0.5, "w": word} for word in PLAIN.split()]), "string"),
        ("int main() {\n" + "".join(f'  printf("{part} ");\n' for part in wrap(PLAIN, 12)) + "}", "string"),
        (wrapped_on_pages(), "furniture"),
        (
            "The lamp went …[^1] Nobody saw …[^2]\n\n[^1]: … out at nine.\n[^2]: … the keeper, and " + PLAIN[54:],
            "footnote",
        ),
        (chat(), "speaker"),
        (" ".join(f"{'um, ' * (n % 3 == 0)}{word}" for n, word in enumerate(PLAIN.split())), "filler"),
        (" ".join(f"{word[0]}-{word}" if n % 2 else word for n, word in enumerate(PLAIN.split())), "filler"),
        (PLAIN.replace("o", "0").replace("e", "3"), "digit"),
    ],
)
def test_each_disguise_is_taken_off_and_counted(text: str, kind: str) -> None:
    plain = undisguise(text)
    assert " ".join(plain.text.split()) == PLAIN
    assert plain.changes[kind] > 0
    assert list(plain.changes) == [name for name in KINDS if name in plain.changes]
    assert undisguise(plain.text).changes == {}


LONG = " ".join(
    """The old lamp went out at nine and nobody saw the keeper. The boats stayed in the harbour because the wind had turned.
    My sister found a letter under the door of the house. She read it twice and then she called the police. They came in the
    morning with a dog that slept on the floor. """.split()
    * 2
)


def by_word(change: Callable[[str], str]) -> str:
    return re.sub("[A-Za-z]+", lambda match: change(match[0]), LONG)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        (re.sub("[aeiou]", "", LONG), 0.65),
        (re.sub("[aeiou]", "*", LONG), 0.65),
        (re.sub("[aeiou]", "u", LONG), 0.65),
        (LONG.replace(" ", ""), 0.9),
        (re.sub(r"(\w) (\w)", r"\1\2 ", LONG), 0.9),
        (by_word(lambda word: word[0] + word[-2:0:-1] + word[-1] if word[2:] else word), 0.9),
        (by_word(lambda word: word[1:] + word[0] + "ay"), 0.9),
        (by_word(lambda word: word[:2] + "x" + word[2:] if len(word) > 5 else word), 0.9),
        (by_word(lambda word: word[::-1]), 1.0),
        (LONG[::-1], 1.0),
        (encode(LONG, "rot13"), 1.0),
        (by_word(lambda word: "".join(letter * 2 for letter in word)), 1.0),
        (re.sub("([aeiou]+)", r"op\1", LONG), 1.0),
    ],
)
def test_misspelt_words_are_mended(text: str, least: float) -> None:
    plain = undisguise(text)
    words = Counter(LONG.lower().split())
    assert (words & Counter(plain.text.lower().split())).total() >= least * words.total()
    assert plain.changes["spelling"] > 0 or text == LONG[::-1]


def test_other_languages_and_a_few_errors_are_not_mended() -> None:
    german = (
        "Der alte Leuchtturm am Rande der Bucht war seit vielen Jahren dunkel, und niemand wusste genau, warum. " * 4
    )
    assert undisguise(german).changes == undisguise(LONG.replace("harbour", "harbuor")).changes == {}


@pytest.mark.parametrize(
    "form",
    [
        "As far as anybody knows, {}",
        "This is sentence number 7: {}",
        "// {}\nint a = f(1);\n",
        "b = [7]  # {}\n",
        "/* {} */ {{}};\n",
    ],
)
def test_what_is_repeated_around_sentences_is_removed(form: str) -> None:
    sentences = re.findall(r"\S[^.]+\.", LONG)
    assert undisguise(" ".join(map(form.format, sentences))).text.split() == LONG.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("➤ One lamp burned.\n➤ Two went out.", ["- One lamp burned.", "- Two went out."]),
        ("(1) One lamp burned. (2) Two went out.", ["- One lamp burned. Two went out."]),
        ("Step 1: One lamp burned.\nStep 2: Two went out.", ["- One lamp burned.", "- Two went out."]),
        ("[00:01] One lamp burned.\n[00:02] Two went out.", ["One lamp burned.", "Two went out."]),
        ("Bob: One lamp burned.\nAnn: Two went out.\nBob: So it is.", ["One lamp burned.", "Two went out.", "So it is."]),
        ("1\n00:01 --> 00:02\nOne lamp in\n\n2\n00:02 --> 00:03\nRome burned.", ["One lamp in", "Rome burned."]),
    ],
)  # fmt: skip
def test_line_starts_are_read(text: str, expected: list[str]) -> None:
    plain = undisguise(text).text
    assert [line for line in plain.split("\n") if line] == expected
    assert "\n\n" not in plain


def test_columns_are_read_one_after_the_other() -> None:
    lines = wrap(" ".join([PLAIN, "The wind had risen over the bay before the morning.", PLAIN]), 24)
    half = len(lines) // 2
    columns = "\n".join(f"{left:<30}{right}" for left, right in zip(lines[:half], lines[half:], strict=False))
    plain = undisguise(columns)
    assert plain.text.split("\n") == lines[: 2 * half]
    assert plain.changes == {"column": 1}


def test_an_upside_down_text_is_turned_round() -> None:
    turned = str.maketrans("abcdefghijklmnopqrstuvwxyz.,", "ɐqɔpǝɟƃɥᴉɾʞꞁɯuodbɹsʇnʌʍxʎz˙'")
    lines = [line.lower().translate(turned)[::-1] for line in wrap(PLAIN, 30)]
    plain = undisguise("\n".join(reversed(lines)))
    assert " ".join(plain.text.split()) == PLAIN.lower()
    assert plain.changes == {"reversed": 1}


def test_line_breaks_after_stops_do_not_hide_that_blanks_are_missing() -> None:
    text = "the lamp went out.nobody saw it.\nthe wind rose.it was late.\nthe keeper slept.two boats came."
    assert undisguise(text).changes == {}  # few enough to be names of files
    assert undisguise(f"{text}\n{text}").text.count(". ") == 6


def test_statements_name_what_was_done() -> None:
    changes = undisguise("Тhе lаmр wеnt оut. Nоbоdу sаw it.").changes
    assert statements(changes) == ["10 confusable letters were read as Latin"]


_PIECES = st.sampled_from(
    [*"<>[]()*_`#&;|>-=~$\\.!?,:/'\" \n\tab1AZé", "<b>", "</p>", "```", "\n\n", "&amp;", "&#65;", "&lt;", "**", "$$",
     "> ", "| ", "- ", "1. ", "[1]", "Bob: ", "12:00 ", "-->", "а", "ο", "Ａ", "𝐚", "\u200b", "\u0301", "\u202e", "\u202c",
     "😀", "The lamp went out. ", "word", "w o r d", "\u3164", "。", "\\u0041", "%20", "def f(x):", "\r\n",
     "\\begin{", "um, ", "w-w", "h0use ", "[^1]: … ", "…[^1]", "<ann> ", "\n- 41 -\n", "ǝʇɐ", '{"a": "', 'f("a b");\n']
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=24).map("".join)))
def test_any_text_is_accepted(text: str) -> None:
    plain = undisguise(text)
    assert sum(map(str.isalnum, plain.text)) <= len(text) + 3 * sum(plain.changes.values())


def test_vowel_signs_are_no_signs_between_letters() -> None:
    """In Hindi every second character of many words is a vowel sign, which is not spacing."""
    text = "गीत गाया। गीत गाया।"
    assert undisguise(text).text == text
    assert undisguise("l-a-m-p w-e-n-t a-g-a-i-n d-a-r-k").text == "lamp went again dark"


# Normalisation, which takes the layout of prose away and leaves prose alone


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


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=24).map("".join)))
def test_plain_sentences_skip_the_rules_and_would_not_be_changed_by_them(text: str) -> None:
    normalised = normalise(text)
    if normalised.text is text:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(normalising, "_SPECIAL", re.compile(""))
            assert normalise(text).text.strip() == text.strip()
            assert normalise(text).changes == {}
