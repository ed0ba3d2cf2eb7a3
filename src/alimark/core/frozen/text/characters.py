"""Normalisation of characters: invisible ones, compatibility forms, look-alikes of Latin letters, and piled-up accents.

Every function takes a text and a counter, returns the changed text and adds the number of changes under the name of their
kind (`alimark.core.frozen.text.normalising.KINDS`). All of them take time linear in the text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources

_BLANKS = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_FILLERS = "\u2800\u3164\uffa0"
"""Characters that are shown as a blank and are not white space: the Braille blank and the Hangul fillers."""
_BLANK = re.compile(f"[{_BLANKS}]")
_FILLER = re.compile(f"[{_FILLERS}]")
_WIDTHLESS = re.compile("[\u200b\u2060\ufeff]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners and variation selectors belong to emoji and to some scripts; after Latin letters, blanks and ASCII they do nothing.
_JOINERS = re.compile("(?<=[\\s!-~\u00a1-\u024f])[\u200c\u200d\ufe00-\ufe0f]+(?!\u20e3)")
_REVERSED = re.compile("\u202e([^\u202c\u202e\n]*)\u202c?")
_WINDOWS = {
    code: bytes([code]).decode("cp1252")
    for code in range(0x80, 0xA0)
    if code not in (0x81, 0x85, 0x8D, 0x8F, 0x90, 0x9D)
}
"""Quotation marks and dashes of Windows that were decoded as Latin-1."""
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028]|\u2029")

_WORD = re.compile(r"(?:(?![0-9_])\w)+")
_MARKED_WORD = re.compile("[^\\W\\d_](?:[^\\W\\d_]|[\u0300-\u036f])*")
_OVERLAY = re.compile("[\u0305\u0332-\u0338\u033f\u0489\u20d0-\u20f0]")
_MANY_MARKS = 3
_WIDE_MARKS = re.compile(
    "(?<=[\\x20-\\x7e\u2018-\u201d])[\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff5e]+(?![\u3040-\u9fff])"
)
_FOREIGN_STOP = re.compile(
    "(?<=[A-Za-z0-9\"')\u2019\u201d])[ ]?([。｡․؟۔।、։።՜՞،؛])(?![\u3040-\u9fff\u0600-\u06ff\u0900-\u097f])[ ]?"
)
_STOPS = {"؟": "? ", "、": ", ", "՜": "! ", "՞": "? ", "،": ", ", "؛": "; "}
_LETTER_SYMBOL = re.compile(
    r"(?:NEGATIVE (?:CIRCLED|SQUARED)|PARENTHESIZED|CROSSED NEGATIVE SQUARED|TORTOISE SHELL BRACKETED)"
    r" LATIN (CAPITAL|SMALL) LETTER ([A-Z])"
)
_FLAGS = re.compile("[\U0001f1e6-\U0001f1ff](?:[\u200b-\u200d ]?[\U0001f1e6-\U0001f1ff]){2,}")
_READ_AS_LETTERS = ("<font>", "<wide>", "<narrow>", "<small>", "<circle>", "<square>", "<super>", "<sub>", "<compat>",
                    "<initial>", "<medial>", "<final>", "<isolated>")  # fmt: skip
_KEPT = "ªº"


def read_line_ends(text: str) -> str:
    """Writes every kind of line end as a line feed; the end of a paragraph becomes a blank line."""
    return _LINE_END.sub(lambda match: "\n\n" if match[0] == "\u2029" else "\n", text)


def read_blanks(text: str, counts: Counter[str]) -> str:
    """Replaces blanks of other widths, and invisible characters that stand where the blanks should be."""
    if text.isascii():
        return text
    text = text.translate(_WINDOWS)
    text, fillers = _FILLER.subn(" ", _BLANK.sub(" ", text))
    counts["blank"] += fillers
    if (widthless := len(_WIDTHLESS.findall(text))) and 50 * sum(map(str.isspace, text)) < len(text):
        counts["blank"] += widthless
        text = _WIDTHLESS.sub(" ", text)
    return text


def drop_invisible(text: str, counts: Counter[str]) -> str:
    """Removes characters that are not shown, and turns text round that is written backwards behind an override."""
    if "\u202e" in text:
        text, turned = _REVERSED.subn(lambda match: match[1][::-1], text)
        counts["reversed"] += turned
    if text.isascii() and text.isprintable():
        return text
    for pattern in (_INVISIBLE, _JOINERS) if not text.isascii() else (_INVISIBLE,):
        text, dropped = pattern.subn("", text)
        counts["invisible"] += dropped
    return text


@lru_cache(maxsize=65536)
def _plain(char: str) -> str | None:
    """The letters or digits that a compatibility character stands for; None where it is none, or not a letter."""
    if char.isascii() or char in _KEPT:
        return None
    tag = unicodedata.decomposition(char).partition(" ")[0]
    if tag in _READ_AS_LETTERS:
        plain = unicodedata.normalize("NFKC", char)
        raised = tag in ("<super>", "<sub>", "<circle>") and not plain.isalpha()
        return plain if plain.isalnum() and not raised else None
    if named := _LETTER_SYMBOL.fullmatch(unicodedata.name(char, "")):
        return named[2] if named[1] == "CAPITAL" else named[2].lower()
    return None


def read_compatibility(text: str, counts: Counter[str]) -> str:
    """Reads fullwidth, mathematical, circled and similar letters as plain ones (NFKC, for letters and digits alone).

    Signs such as the ellipsis, fractions and superscript numbers stay, since ordinary prose has them.
    """
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    plain = {char: letters for char in set(text) if (letters := _plain(char)) is not None}
    if plain:
        counts["compatibility"] += sum(char in plain for char in text)
        text = text.translate({ord(char): letters for char, letters in plain.items()})
    text, flags = _FLAGS.subn(_flag_letters, text)
    counts["compatibility"] += flags
    text, wide = _WIDE_MARKS.subn(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    counts["compatibility"] += wide
    text, stops = _FOREIGN_STOP.subn(lambda match: _STOPS.get(match[1], ". "), text)
    counts["stop"] += stops
    return unicodedata.normalize("NFC", text)


def _flag_letters(match: re.Match[str]) -> str:
    return "".join(chr(ord(c) - 0x1F1E6 + 65) if ord(c) >= 0x1F1E6 else " " * (c == " ") for c in match[0])


@cache
def _confusables() -> dict[str, str]:
    content = json.loads(resources.files("alimark.core.frozen.text").joinpath("confusables.json").read_text("utf-8"))
    return {char: letter for letter, chars in content["letters"].items() for char in chars}


def read_confusables(text: str, counts: Counter[str]) -> str:
    """Reads letters that look like Latin ones as Latin, inside words of mixed script.

    A word that consists of look-alikes alone is read so, too, unless the text has many words that really are of another
    script: "сор" in an English text is a look-alike, and in a Russian one it is a word.
    """
    table = _confusables()
    if text.isascii() or table.keys().isdisjoint(text):
        return text
    kinds = Counter(_kind_of_word(match[0], table) for match in _WORD.finditer(text))
    whole = 10 * kinds["foreign"] <= kinds["mixed"] + kinds["look-alike"]
    least = 1 if kinds["mixed"] else 2  # a single Greek letter is a symbol

    def read(match: re.Match[str]) -> str:
        word = match[0]
        kind = _kind_of_word(word, table)
        if kind != "mixed" and not (whole and kind == "look-alike" and len(word) >= least):
            return word
        counts["confusable"] += sum(char in table for char in word)
        return _in_case("".join(table.get(char, char) for char in word), word)

    return _WORD.sub(read, text)


def _kind_of_word(word: str, table: dict[str, str]) -> str:
    if word.isascii() or (word[0] == "μ" and len(word) <= 3):  # μm and the like
        return "plain"
    similar = sum(char in table for char in word)
    latin = sum(char <= "\u024f" for char in word)
    if similar and latin:
        return "mixed"
    if similar == len(word):
        return "look-alike"
    return "foreign" if not latin else "plain"


def _in_case(word: str, original: str) -> str:
    """A capital inside a word of small letters comes from a look-alike of the other case."""
    small = word[1:] if original[:1].isupper() else word
    capitals = sum(char.isupper() for char in small)
    if not 0 < capitals < len(small):
        return word
    return word[: len(word) - len(small)] + small.lower()


def drop_marks(text: str, counts: Counter[str]) -> str:
    """Removes strokes through letters, three or more accents on one letter, and accents on most letters of a word."""
    if text.isascii():
        return text
    text, strokes = _OVERLAY.subn("", text)
    counts["mark"] += strokes
    words = [match[0] for match in _MARKED_WORD.finditer(text) if len(match[0]) >= 4]
    flooded = sum(1 for word in words if not word.isascii() and _is_flooded(_letters(word)))
    everywhere = 2 * flooded > len(words)
    text = _MARKED_WORD.sub(lambda match: _without_flood(match[0], everywhere, counts), text)
    return unicodedata.normalize("NFC", text)


def _letters(word: str) -> list[str]:
    """The letters of a word, each with its marks apart."""
    return re.findall("[^\u0300-\u036f][\u0300-\u036f]*", unicodedata.normalize("NFD", word))


def _is_flooded(letters: Sequence[str]) -> bool:
    """Whether most letters of a word of at least four Latin letters carry marks."""
    marked = sum(len(letter) > 1 for letter in letters)
    return len(letters) >= 4 and 2 * marked > len(letters) and all(letter[0] < "\u0370" for letter in letters)


def _without_flood(word: str, everywhere: bool, counts: Counter[str]) -> str:
    """The word without its marks where most letters have one, and else without the marks of letters with many.

    `everywhere` says that most words of the text are flooded; then short words lose their marks, too.
    """
    if word.isascii():
        return word
    letters = _letters(word)
    flooded = everywhere or _is_flooded(letters)
    plain = [letter[0] if flooded or len(letter) > _MANY_MARKS else letter for letter in letters]
    if plain == letters:
        return word
    counts["mark"] += sum(map(len, letters)) - sum(map(len, plain))
    return "".join(plain)
