"""Repair of spacing: spaced letters, missing blanks after stops, hyphens and blank lines inside sentences, emoji as stops.

Every function takes a text and a counter, returns the changed text and adds the number of changes under the name of their
kind (`alimark.core.frozen.text.normalising.KINDS`). All of them take time linear in the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from unicodedata import category

_TRAILING = re.compile(r"(?<![ \t])[ \t]+(?=\n|\Z)")
_BLANK_LINES = re.compile(r"\n{3,}")
_MANY_BLANKS = re.compile(r"[ \t]{5,}")
_BLANKS_INSIDE = re.compile(r"(?<=\S)[ \t]{2,}(?=\S)")

_JOINTS = {"_": 4, "+": 5, "~": 5, "=": 5, "|": 5, "•": 5, "·": 5, "-": 6, ".": 6}
"""Signs that may stand for the blanks of a sentence, and how many of them a word must have."""

_STOP_THEN_CAPITAL = re.compile(
    r"(?<=[a-z0-9)\"'”’%])([.!?…]+[\"'”’)\]]{0,2})(?=[\"'“‘(]?(?:[A-Z][a-z]|[AI][ '’]|[A-Z]{2}))"
)
_STOP_THEN_LETTER = re.compile(r"(?<=[a-z0-9][a-z0-9)\"'”’%])([.!?]+[\"'”’)\]]{0,2})(?=[\"'“‘(]?[a-z])")
_SIGN_THEN_LETTER = re.compile(r"[.!?…,;][^ \t\n]")
"""What all patterns for missing blanks have in common; a text without it has none of them."""
_ADDRESS = re.compile(r"://|www\.|@|\.(?:com|org|net|edu|gov|io|html?|py|js|txt|pdf)\b", re.IGNORECASE)
_COMMA = re.compile(r"(?<=[a-z])([,;])(?=[A-Za-z])")
_BLANK_BEFORE_STOP = re.compile(r"(?<=[\w\"'”’)])[ \t]+(?=[.,](?:\s|\Z))")
_HYPHEN = re.compile(r"(?<=[a-z])[-\u2010\u2011]\n[ \t]*(?=[a-z])")
_BROKEN = re.compile(r"(?<=[a-z,;])\n[ \t]*\n[ \t]*(?=[a-z])")
_BROKEN_BEFORE_CAPITAL = re.compile(r"(?<=[\w,;])\n[ \t]*\n[ \t]*(?=[\w\"'“‘(])")
"""The same where blank lines stand inside sentences throughout: then a capital letter begins no sentence."""
_PILCROW = re.compile(r"[ \t]?[¶⏎↵␤⁋][ \t]?")
_EMOJI = "\u203c\u2049\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001f1e5\U0001f200-\U0001faff"
_EMOJI_STOP = re.compile(
    f"(?<=[a-z0-9'’\"”)%])([ \t]?)[{_EMOJI}][{_EMOJI}\ufe0f\u200d\u20e3]*(?=[ \t]*(?:\n|\\Z)|[ \t]?[\"'“‘(]?[A-Z])[ \t]?"
)
_EMOJI_BETWEEN = re.compile(f"(?<=\\S) [{_EMOJI}]\ufe0f? (?=\\S)")
_TELEGRAM_STOP = re.compile(r"\s+STOP\b")
_PIPE_STOP = re.compile(
    r"(?<=[a-z0-9'’\"”)])[ \t]*(?:[|/\\•·¦‖※†‡◦●■]|//|\|\||--|—)[ \t]+(?=[\"'“‘]?[A-Z][a-z]* [a-z])"
)


def tidy_lines(text: str) -> str:
    """Removes blanks at line ends and repeated blank lines. White space is not counted as a change."""
    if "\n" in text or text.endswith((" ", "\t")):
        text = _BLANK_LINES.sub("\n\n", _TRAILING.sub("", text))
    return _MANY_BLANKS.sub("    ", text) if "     " in text or "\t" in text else text


def collapse_blanks(text: str) -> str:
    """Writes every run of blanks inside a line as one."""
    return _BLANKS_INSIDE.sub(" ", text)


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
    return not character.isalnum() and not category(character).startswith("M")


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


def read_stops(text: str, counts: Counter[str]) -> str:
    """Reads emoji and signs that stand in the place of full stops as full stops."""
    pilcrows = emoji = 0
    if not text.isascii():
        text, pilcrows = _PILCROW.subn("\n", text)
        if len(between := _EMOJI_BETWEEN.findall(text)) > max(5, text.count(" ") // 4):
            text = _EMOJI_BETWEEN.sub(" ", text)
            counts["spaced letters"] += len(between)
    if text.count(" STOP") >= 3 and text.isupper():
        text, telegraphed = _TELEGRAM_STOP.subn(".", text)
        counts["stop"] += telegraphed
    if not text.isascii():
        text, emoji = _EMOJI_STOP.subn(". ", text)
    text, signs = _PIPE_STOP.subn(". ", text) if _lacks_stops(text) else (text, 0)
    counts["stop"] += pilcrows + emoji + signs
    return text


def _lacks_stops(text: str) -> bool:
    """Whether a text has fewer full stops, question and exclamation marks than one in fifty words."""
    return 50 * sum(text.count(mark) for mark in ".!?") < text.count(" ")


def add_blanks(text: str, counts: Counter[str]) -> str:
    """Adds the blanks that are missing after stops and commas, and removes those before them."""
    if _SIGN_THEN_LETTER.search(text):
        text = _parted_at_stops(text, counts)
    if " ." in text or " ," in text or "\t" in text:
        text, blanks = _BLANK_BEFORE_STOP.subn("", text)
        counts["missing blank"] += blanks
    return text


def _parted_at_stops(text: str, counts: Counter[str]) -> str:
    """Adds the blanks after stops and commas that are missing."""
    inside = _Inside(_addresses(text))

    def parted(match: re.Match[str]) -> str:
        if inside(match.start()):
            return match[0]
        counts["missing blank"] += 1
        return match[1] + " "

    text = _STOP_THEN_CAPITAL.sub(_WithQuotes(text, parted), text)
    if len(_STOP_THEN_LETTER.findall(text)) > 3 + 2 * len(re.findall(r"[.!?][ \t]", text)):
        inside = _Inside(_addresses(text))
        text = _STOP_THEN_LETTER.sub(_WithQuotes(text, parted), text)
    inside = _Inside(_addresses(text))
    return _COMMA.sub(parted, text)


class _WithQuotes:
    """Puts a blank after a stop, and before a quotation mark that opens: every second straight one, from the first on."""

    def __init__(self, text: str, parted: Callable[[re.Match[str]], str]) -> None:
        self._text, self._parted = text, parted
        self._at, self._quotes = 0, 0

    def __call__(self, match: re.Match[str]) -> str:
        self._quotes += self._text.count('"', self._at, match.start(1))
        self._at = match.start(1)
        after = self._parted(match)
        closing = self._quotes % 2
        if after == match[0] or match[1].count('"') <= closing:
            return after
        stop = match[1].index('"') + closing
        return f"{match[1][:stop]} {match[1][stop:]}"


def _addresses(text: str) -> list[tuple[int, int]]:
    """The spans of web and e-mail addresses and of file names, in which a stop is no stop."""
    if not _ADDRESS.search(text):
        return []
    return [match.span() for match in re.finditer(r"\S+", text) if _ADDRESS.search(match[0])]


class _Inside:
    """Tells whether positions, which must come in rising order, lie inside of spans."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._spans, self._next = spans, 0

    def __call__(self, position: int) -> bool:
        while self._next < len(self._spans) and self._spans[self._next][1] <= position:
            self._next += 1
        return self._next < len(self._spans) and self._spans[self._next][0] <= position


def join_lines(text: str, counts: Counter[str]) -> str:
    """Joins words that a hyphen divides at a line end, and lines that a blank line divides inside a sentence."""
    if "\n" not in text:
        return text
    text, hyphens = _HYPHEN.subn("", text)
    often = 3 * len(_BROKEN.findall(text)) > max(6, text.count("\n\n"))
    text, broken = (_BROKEN_BEFORE_CAPITAL if often else _BROKEN).subn(" ", text)
    counts["hyphen"] += hyphens
    counts["broken line"] += broken
    return text
