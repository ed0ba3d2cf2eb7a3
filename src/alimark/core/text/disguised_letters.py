"""Reads letters, stops and blanks that are replaced by others, as a person reads them.

Every function takes a text and a counter, returns the changed text and adds the number of changes under the name of their
kind (`alimark.core.text.disguises.KINDS`). All of them take time linear in the text.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources

_FILLER = re.compile("[\u2800\u3164\uffa0]")
"""Characters that are shown as a blank and are not white space: the Braille blank and the Hangul fillers."""
_WIDTHLESS = re.compile("[\u200b\u2060\ufeff]")
_REVERSED = re.compile("\u202e([^\u202c\u202e\n]*)\u202c?")
_TURNED = dict(zip("ɐqɔpǝɟƃɥᴉɾʞꞁɯuodbɹsʇnʌʍxʎz˙'¿¡", "abcdefghijklmnopqrstuvwxyz.,?!", strict=True))
_SURELY_TURNED = "ɐǝʇ"  # not among the letters of phonetic transcription, except for the first

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
_READ_AS_LETTERS = ("<font>", "<wide>", "<narrow>", "<small>", "<circle>", "<square>", "<super>", "<sub>", "<compat>",
                    "<initial>", "<medial>", "<final>", "<isolated>")  # fmt: skip

_MIXED_WORD = re.compile(r"\b(?=[A-Za-z013457]{2,}\b)(?=\w{0,30}[a-z])(?=\w{0,30}[013457])\w{2,30}\b")
_SHORT_NUMBER = re.compile(r"(?<![\w.,$])[013457]{1,3}(?![\w%]|[.,]\d)")
_LOOKS_LIKE = {"0": "o", "1": "l", "3": "e", "4": "a", "5": "s", "7": "t"}
_JOINTS = {"_": 4, "+": 5, "~": 5, "=": 5, "|": 5, "•": 5, "·": 5, "-": 6, ".": 6}
"""Signs that may stand for the blanks of a sentence, and how many of them a word must have."""


def read_turned(text: str, counts: Counter[str]) -> str:
    """Turns text round that stands backwards behind an override, or upside down from its last line to the first."""
    if "\u202e" in text:
        text, passages = _REVERSED.subn(lambda match: match[1][::-1], text)
        counts["reversed"] += passages
    surely = sum(text.count(letter) for letter in _SURELY_TURNED)
    if surely < 10 or 10 * surely < sum(map(str.isalpha, text)):
        return text
    counts["reversed"] += 1
    table = str.maketrans(_TURNED)
    return "\n".join(line[::-1].translate(table) for line in reversed(text.split("\n")))


def read_blanks(text: str, counts: Counter[str]) -> str:
    """Replaces characters that stand where the blanks should be."""
    text, fillers = _FILLER.subn(" ", text)
    counts["blank"] += fillers
    if (widthless := len(_WIDTHLESS.findall(text))) and 50 * sum(map(str.isspace, text)) < len(text):
        counts["blank"] += widthless
        text = _WIDTHLESS.sub(" ", text)
    return text


@lru_cache(maxsize=65536)
def _plain(char: str) -> str | None:
    """The letters or digits that a compatibility character stands for; None where it is none, or not a letter."""
    tag = unicodedata.decomposition(char).partition(" ")[0]
    if tag not in _READ_AS_LETTERS or char in "ªº":
        return None
    plain = unicodedata.normalize("NFKC", char)
    raised = tag in ("<super>", "<sub>", "<circle>") and not plain.isalpha()
    return plain if plain.isalnum() and not raised else None


def read_compatibility(text: str, counts: Counter[str]) -> str:
    """Reads fullwidth, mathematical, circled and similar letters as plain ones, and stops of other scripts as ours.

    Signs such as the ellipsis, fractions and superscript numbers stay, since ordinary prose has them.
    """
    plain = {char: letters for char in set(text) if not char.isascii() and (letters := _plain(char)) is not None}
    if plain:
        counts["compatibility"] += sum(char in plain for char in text)
        text = text.translate({ord(char): letters for char, letters in plain.items()})
    text, wide = _WIDE_MARKS.subn(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    counts["compatibility"] += wide
    text, stops = _FOREIGN_STOP.subn(lambda match: _STOPS.get(match[1], ". "), text)
    counts["stop"] += stops
    return unicodedata.normalize("NFC", text)


@cache
def _confusables() -> dict[str, str]:
    content = json.loads(resources.files("alimark.core.text").joinpath("confusables.json").read_text("utf-8"))
    return {char: letter for letter, chars in content["letters"].items() for char in chars}


def read_confusables(text: str, counts: Counter[str]) -> str:
    """Reads letters that look like Latin ones as Latin, inside words of mixed script.

    A word that consists of look-alikes alone is read so, too, unless the text has many words that really are of another
    script: "сор" in an English text is a look-alike, and in a Russian one it is a word.
    """
    table = _confusables()
    if table.keys().isdisjoint(text):
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
    """The word without its marks where most letters have one, and else without those of letters with many."""
    if word.isascii():
        return word
    letters = _letters(word)
    flooded = everywhere or _is_flooded(letters)
    plain = [letter[0] if flooded or len(letter) > _MANY_MARKS else letter for letter in letters]
    if plain == letters:
        return word
    counts["mark"] += sum(map(len, letters)) - sum(map(len, plain))
    return "".join(plain)


def read_digits(text: str, counts: Counter[str]) -> str:
    """Reads digits inside words as the letters that they look like, where every tenth word has some."""
    mixed = _MIXED_WORD.findall(text) if any(digit in text for digit in _LOOKS_LIKE) else []
    if len(mixed) < 5 or 10 * len(mixed) < text.count(" "):
        return text
    table = str.maketrans(_LOOKS_LIKE)
    counts["digit"] += len(mixed)
    if sum(map(text.count, "347")) > text.count("1"):  # the vowels are digits, also those of short words
        table[ord("1")] = "i"
        text = _SHORT_NUMBER.sub(lambda match: match[0].translate(table), text)
    return _MIXED_WORD.sub(lambda match: match[0].translate(table), text)


def join_letters(text: str, counts: Counter[str]) -> str:
    """Joins letters that are written apart ("T h e   l a m p", "T-h-e l-a-m-p"), and parts words that signs join."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if len(line) >= 8:
            lines[number] = _with_blanks(_joined_line(line, counts), counts)
    return "\n".join(lines)


def _joined_line(line: str, counts: Counter[str]) -> str:
    words = line.split()
    single = sum(1 for word in words if len(word) == 1 or (len(word) == 2 and _is_sign(word[1])))
    if len(words) >= 6 and single >= 0.7 * len(words) and "  " in line.strip():
        counts["spaced letters"] += single
        return " ".join(part.replace(" ", "") for part in re.split(r"[ \t]{2,}", line.strip()))
    apart = sum(map(_is_apart, words))
    if apart >= 4 and apart >= 0.4 * len(words):
        counts["spaced letters"] += apart
        return " ".join(word[::2] if _is_apart(word) else word for word in words)
    return line


def _is_apart(word: str) -> bool:
    """Whether every second character of a word is the same sign, as in "l-a-m-p"."""
    signs = word[1::2]
    return len(word) >= 3 and len(word) % 2 == 1 and _is_sign(signs[0]) and len(set(signs)) == 1


def _is_sign(character: str) -> bool:
    """Whether a character is neither a letter or digit nor a part of one, such as the vowel signs of Hindi."""
    return not character.isalnum() and not unicodedata.category(character).startswith("M")


def _with_blanks(line: str, counts: Counter[str]) -> str:
    """Replaces signs that stand for blanks, as in "the_lamp_went_out_again"."""
    if line.count("_") > max(3, 2 * line.count(" ")):
        counts["spaced letters"] += line.count("_")
        return line.replace("_", " ")
    if not any(line.count(sign) >= least for sign, least in _JOINTS.items()):
        return line
    return re.sub(r"\S{12,}", lambda match: _parted(match[0], counts), line)


def _parted(word: str, counts: Counter[str]) -> str:
    if "/" in word or "@" in word:
        return word
    for sign, least in _JOINTS.items():
        pieces = word.rstrip(".!?").split(sign)
        if len(pieces) > least and all(len(piece) <= 20 and any(map(str.isalpha, piece)) for piece in pieces):
            counts["spaced letters"] += len(pieces) - 1
            return " ".join(pieces) + word[len(word.rstrip(".!?")) :]
    return word
