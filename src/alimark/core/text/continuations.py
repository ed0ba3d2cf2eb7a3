"""Reads a model's continuation by itself: its first sentence, the unit of that sentence, and its flaws.

All of it follows from the continuation alone and not from the text before it, so that worker processes can do it
(`alimark.core.text.workers`).
"""

import re
from collections import Counter
from typing import Literal, NamedTuple
from unicodedata import category

from alimark.core.frozen.text.prose import aside_end, aside_opens, before_aside, prose_start
from alimark.core.frozen.text.splitting import LONG_SENTENCE, STOP, Splitter
from alimark.core.frozen.text.units import keep_on_one_line, with_full_stop, without_marker

DrawEnded = Literal["sentence", "model", "length"]
"""Why sampling stopped: the sentence was over, the model ended the text, or `max_tokens` were sampled."""

Continuation = tuple[str, DrawEnded | None]
"""The text of a continuation, and why its sampling stopped; None while it is being sampled."""

OwnFlaw = Literal["", "blank", "unfinished", "degenerate", "markup", "code"]
"""The flaws that a continuation has by itself; `alimark.core.generation.candidates.Flaw` explains them."""

_WORD = re.compile(r"\w+")
_CONTROL = re.compile(
    r"<\|[^|<>]{0,40}\|?>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>", re.IGNORECASE
)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)(?:\s[^<>]*)?(/?)>")
_MARKUP = frozenset("<[`*")
_VOID = frozenset("br hr img input meta link".split())
_INNER_QUOTE_MARK = re.compile(r"\n(?:[ \t]{0,3}>)+[ \t]?")
_LINE_END = re.compile(r"[ \t\r]*\n[ \t\r]*(\n)?")


class Reading(NamedTuple):
    """The first sentence of a continuation."""

    length: int  # how many characters of the continuation were read
    flaw: OwnFlaw = ""
    unit: str = ""  # the cleaned text of the sentence, which is embedded
    words: str = ""  # its words without case and punctuation, by which repeats are recognised
    line: str = ""  # the sentence on one line
    closing: str = ""
    """What is added to a line without a final punctuation mark: a full stop or, for headings and list items, a line break."""
    breaks: int = 0  # the number of line breaks before the sentence
    last: bool = False  # whether nothing but white space follows the sentence


def reading_of(cutter: Splitter, text: str, ended: DrawEnded | None) -> Reading | None:
    """Reads a continuation; None where it is being sampled and its first sentence goes on."""
    return read_if_over(cutter, text) if ended is None else read(cutter, text, ended)


def read(cutter: Splitter, text: str, ended: DrawEnded) -> Reading:
    """Reads a continuation whose sampling has stopped."""
    length = len(text)
    # A line of which the model's end is the end is complete.
    if aside_opens(text + "\n" * (ended == "model")):
        return Reading(length, "code")
    text = before_aside(text)
    spans = cutter.spans(text)
    if not spans:
        return Reading(length, "blank")
    start, end = spans[0]
    sentence, rest = text[start:end], text[end:]
    unit = cutter.unit(sentence)
    if not any(c.isalnum() for c in unit):
        return Reading(length, "blank", unit)
    line = keep_on_one_line(_INNER_QUOTE_MARK.sub(" ", sentence))
    flaw: OwnFlaw = ""
    if ended == "length" and not cutter.first_sentence_over(text, spans):
        flaw = "unfinished"
    elif broken_markup(sentence):
        flaw = "markup"
    elif degenerate(unit):
        flaw = "degenerate"
    breaks = text.count("\n", 0, start)
    return Reading(length, flaw, unit, word_sequence(unit), line, _closing(line, rest), breaks, not rest.strip())


def read_if_over(cutter: Splitter, text: str) -> Reading | None:
    """Reads a continuation that is being sampled, up to a little beyond its first sentence; None while that goes on.

    A code block or another block that carries no mark counts as a sentence here.

    Example:
        >>> from alimark.core.frozen.text.splitting import splitter
        >>> read_if_over(splitter(), " It was Dr. Smith") is None
        True
        >>> read_if_over(splitter(), " It was late. Then it began").length
        14
    """
    end = first_end(cutter, text)
    if not end:
        return None
    return read(cutter, text[: length_with_stop(stops_of(text), end)], "sentence")


def has_stop(text: str) -> bool:
    """Whether a continuation has a stop; only an endless sentence is over without one (`LONG_SENTENCE`)."""
    return STOP.search(text, len(text) - len(text.lstrip())) is not None


def stops_of(text: str) -> list[int]:
    """Where the stops of a continuation end."""
    return [stop.end() for stop in STOP.finditer(text, len(text) - len(text.lstrip()))]


def length_with_stop(stops: list[int], end: int) -> int:
    """How much of a continuation is kept whose first sentence ends at `end`: the blank behind its mark, too.

    The blank tells a heading from a sentence.
    """
    return next((stop for stop in stops if stop > end), max([end, *stops[-1:]]))


def first_end(cutter: Splitter, text: str) -> int:
    """Where the first sentence of a continuation ends, or the block that opens it or prose in that; 0 while it goes on."""
    if aside_opens(text):
        return aside_end(text) or (0 if prose_start(text) is None else len(text))
    spans = cutter.spans(text)
    return spans[0][1] if spans and cutter.first_sentence_over(text, spans) else 0


def _closing(line: str, rest: str) -> str:
    """What ends a line in the text: nothing behind a punctuation mark, a full stop, or a line break as the model wrote it."""
    if with_full_stop(line) == line:
        return ""
    if blank := _LINE_END.match(rest):
        listed = without_marker(line) != line
        return "\n\n" if blank[1] else "\n" if listed else "."
    return "" if len(line.split()) >= LONG_SENTENCE and rest else "."  # a clause of an endless sentence


def word_sequence(unit: str) -> str:
    """The words of a sentence without case and punctuation: two sentences with the same words count as a repeat."""
    return " ".join(word_list(unit)) or unit


def word_list(unit: str) -> list[str]:
    """The words of a sentence in small letters. Vowel signs, as Hindi has them, belong to a word, but are no letters."""
    if unit.isascii():
        return _WORD.findall(unit.lower())
    letters = (c if c.isalnum() or c == "_" or category(c).startswith("M") else " " for c in unit.lower())
    return "".join(letters).split()


def degenerate(unit: str) -> bool:
    """Whether a sentence repeats one word or one group of words, or consists of single letters."""
    words = word_list(unit)
    if len(words) >= 6 and sum(len(word) == 1 and word.isalpha() for word in words) > 0.6 * len(words):
        return True
    if len(words) < 6:
        return len(words) > 2 and len(set(words)) == 1
    if len(set(words)) > 0.8 * len(words) and len(words) < 20:
        return False  # most sentences end here, which saves the slower tests below
    if Counter(words).most_common(1)[0][1] > 0.5 * len(words):
        return True
    if any(words[i] == words[i + 1] == words[i + 2] == words[i + 3] for i in range(len(words) - 3)):
        return True
    return len(words) >= 12 and len(set(zip(words, words[1:], words[2:], strict=False))) < 0.5 * (len(words) - 2)


def broken_markup(sentence: str) -> bool:
    """Whether a sentence holds a control token, half a code fence, or tags that do not close."""
    if _MARKUP.isdisjoint(sentence):
        return False
    if _CONTROL.search(sentence) or "```" in sentence or sentence.count("`") % 2 or sentence.count("**") % 2:
        return True
    opened: list[str] = []
    for close, name, alone in _TAG.findall(sentence):
        if close:
            if not opened or opened.pop() != name.lower():
                return True
        elif not alone and name.lower() not in _VOID:
            opened.append(name.lower())
    return bool(opened)
