"""Reading of texts whose words stand in another order or frame: columns, page furniture, JSON, program strings, chats.

Every function takes a text and a counter, returns the changed text and adds the number of changes under the name of their
kind (`alimark.core.frozen.text.normalising.KINDS`). Each of them acts only where the frame holds most of the text, so that
ordinary prose is left alone, and takes time linear in the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from statistics import mean

from alimark.core.frozen.text.units import CLOSERS, MARKS

_LEAST_LINES = 5
"""A frame has at least so many lines."""

_TURNED = dict(zip("ɐqɔpǝɟƃɥᴉɾʞꞁɯuodbɹsʇnʌʍxʎz˙'¿¡", "abcdefghijklmnopqrstuvwxyz.,?!", strict=True))
_SURELY_TURNED = "ɐǝʇ"  # not among the letters of phonetic transcription, except for the first

_STRING_LINE = re.compile(
    r"^[ \t]*[A-Za-z_][\w.: ]{0,40}(?:\(|\+?=|<<)[ \t]*\"((?:[^\"\\\n]|\\.)*)\"[^\"\n]*$", re.MULTILINE
)
_ESCAPED = re.compile(r"\\(.)")

_GAP = re.compile(r"(?<=\S)[ ]{2,}(?=\S)")
_PAGE_NUMBER = re.compile(r"[ \t]*(?:[-–—][ \t]*)?(\d{1,4})(?:[ \t]*[-–—])?[ \t]*")

_NOTE = re.compile(r"^\[\^([\w-]{1,20})\]:[ \t]*(?:…|\.\.\.)[ \t]*(\S[^\n]*)(?:\n|\Z)", re.MULTILINE)
_REFERENCE = re.compile(r"[ \t]?(?:…|\.\.\.)[ \t]?\[\^([\w-]{1,20})\]")

_CHAT_LINE = re.compile(
    r"^[ \t]*(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?[ \t]+)?<([\w.-]{1,30})>[ \t]+(\S[^\n]*)$", re.MULTILINE
)
_ANSWER_WORDS = 3
"""A message of at most so many words, of somebody who says little else, is an answer to the one who tells the text."""

_FILLER = re.compile(r"(?<!\S)(?:um|uh|er|like|you know|i mean|sort of),[ \t\n]", re.IGNORECASE)
_STAMMER = re.compile(r"(?<!\S)([\"'“‘(]?)([A-Za-z])-(?=\2[A-Za-z]*)", re.IGNORECASE)
_SPECK = re.compile(r"(?<=\w) ' (?=\w)")
_MIXED_WORD = re.compile(r"\b(?=[A-Za-z013457]{2,}\b)(?=\w{0,30}[a-z])(?=\w{0,30}[013457])\w{2,30}\b")
_SHORT_NUMBER = re.compile(r"(?<![\w.,$])[013457]{1,3}(?![\w%]|[.,]\d)")
_LOOKS_LIKE = {"0": "o", "1": "l", "3": "e", "4": "a", "5": "s", "7": "t"}


def read_turned(text: str, counts: Counter[str]) -> str:
    """Turns a text round that is written upside down: with turned letters, from its last line to the first."""
    surely = sum(text.count(letter) for letter in _SURELY_TURNED)
    if surely < 10 or 10 * surely < sum(map(str.isalpha, text)):
        return text
    counts["reversed"] += 1
    table = str.maketrans(_TURNED)
    return "\n".join(line[::-1].translate(table) for line in reversed(text.split("\n")))


def read_strings(text: str, counts: Counter[str]) -> str:
    """Reads the strings of JSON, and those of a program that prints a text."""
    body = text.strip()
    if body[:1] + body[-1:] in ("[]", "{}") and '"' in body:
        return _json_text(text, counts)
    literals = [match[1] for match in _STRING_LINE.finditer(text)] if '"' in text else []
    lines = sum(1 for line in text.split("\n") if line.strip()) if len(literals) >= _LEAST_LINES else 0
    if (
        len(literals) < _LEAST_LINES
        or 2 * len(literals) < lines
        or mean(len(literal.split()) for literal in literals) < 2
    ):
        return text
    counts["string"] += len(literals)
    return "".join(_ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], literal) for literal in literals)


def _json_text(text: str, counts: Counter[str]) -> str:
    try:
        strings = [string for string in _strings(json.loads(text)) if string.strip()]
    except (ValueError, RecursionError):
        return text
    words = sum(len(string.split()) for string in strings)
    if words < 10:
        return text
    counts["string"] += len(strings)
    return (" " if words < 3 * len(strings) else "\n").join(strings)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def read_columns(text: str, counts: Counter[str]) -> str:
    """Reads two columns that stand side by side one after the other, where they begin at the same place in most lines."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < _LEAST_LINES or 2 * text.count("  ") < len(lines):
        return text
    gaps = [[match.end() for match in _GAP.finditer(line)] for line in lines]
    places = Counter(place[0] for place in gaps if len(place) == 1)
    if not places:
        return text
    place, times = places.most_common(1)[0]
    left, right = [line[:place].rstrip() for line in lines], [line[place:] for line in lines]
    fits = sum(ends in ([], [place]) for ends in gaps)
    words = [sum(len(side.split()) for side in column) for column in (left, right)]
    if 2 * times < len(lines) or 10 * fits < 9 * len(lines) or min(words) < 3 * times:
        return text
    counts["column"] += 1
    return "\n".join([*left, *(line for line in right if line)])


def drop_furniture(text: str, counts: Counter[str]) -> str:
    """Removes page numbers and running heads, where both or one of them come at least three times."""
    if text.count("\n") < 2 * _LEAST_LINES or "-->" in text:
        return text
    lines = text.split("\n")
    numbers = [int(match[1]) for line in lines if (match := _PAGE_NUMBER.fullmatch(line))]
    numbered = len(numbers) >= 3 and numbers == sorted(set(numbers)) and 3 * len(numbers) < len(lines)
    times = Counter(line.strip() for line in lines)
    pages: list[list[str]] = [[]]
    for line in lines:
        if (numbered and _PAGE_NUMBER.fullmatch(line)) or (times[line.strip()] >= 3 and _is_head(line.strip())):
            pages.append([])
        else:
            pages[-1].append(line)
    if len(pages) == 1:
        return text
    counts["furniture"] += len(pages) - 1
    # A sentence goes on over a page break: no blank line stays there.
    return "\n".join(page for lines in pages if (page := "\n".join(lines).strip("\n")))


def _is_head(line: str) -> bool:
    ended = line.rstrip(CLOSERS).endswith(tuple(MARKS))
    return 2 <= len(line.split()) <= 8 and any(map(str.isalpha, line)) and line[0].isupper() and not ended


def read_footnotes(text: str, counts: Counter[str]) -> str:
    """Brings the ends of sentences back from footnotes: "The lamp …[^1]" and "[^1]: … went out."."""
    notes = {match[1]: match[2] for match in _NOTE.finditer(text)} if "]:" in text else {}
    if not notes:
        return text

    def completed(match: re.Match[str]) -> str:
        if match[1] not in notes:
            return match[0]
        counts["footnote"] += 1
        return f" {notes[match[1]]}"

    return _REFERENCE.sub(completed, _NOTE.sub("", text))


def drop_answers(text: str, counts: Counter[str]) -> str:
    """Removes the names before the messages of a chat, and the short answers to one who writes nearly all of it."""
    messages = [(match[1], match[2]) for match in _CHAT_LINE.finditer(text)] if "<" in text else []
    if len(messages) < _LEAST_LINES or 2 * len(messages) < text.count("\n"):
        return text
    words: Counter[str] = Counter()
    for name, message in messages:
        words[name] += len(message.split())
    teller, most = words.most_common(1)[0]
    if 4 * most >= 3 * words.total():
        messages = [(name, text) for name, text in messages if name == teller or len(text.split()) > _ANSWER_WORDS]
    counts["speaker"] += len(messages)
    return "\n".join(message for _, message in messages)


def drop_fillers(text: str, counts: Counter[str]) -> str:
    """Removes what a transcript of hesitant speech or a bad scan is strewn with: "um,", "w-went", specks between words."""
    words = text.count(" ") + 1
    least = max(4, words // 20) + 1
    for pattern, sign, kept in ((_FILLER, ",", ""), (_STAMMER, "-", r"\1"), (_SPECK, "'", " ")):
        if text.count(sign) >= least and len(pattern.findall(text)) >= least:
            text, changes = pattern.subn(kept, text)
            counts["filler"] += changes
    return text


def read_digits(text: str, counts: Counter[str]) -> str:
    """Reads digits inside words as the letters that they look like, where every tenth word has some."""
    mixed = _MIXED_WORD.findall(text) if any(digit in text for digit in _LOOKS_LIKE) else []
    if len(mixed) < 5 or 10 * len(mixed) < text.count(" "):
        return text
    table = str.maketrans(_LOOKS_LIKE)
    counts["digit"] += len(mixed)
    if sum(map(text.count, "347")) > text.count(
        "1"
    ):  # not a bad scan: the vowels are digits, also those of short words
        table[ord("1")] = "i"
        text = _SHORT_NUMBER.sub(lambda match: match[0].translate(table), text)
    return _MIXED_WORD.sub(lambda match: match[0].translate(table), text)
