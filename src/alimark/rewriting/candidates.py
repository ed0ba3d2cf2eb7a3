"""Judging of rewrites: whether a chat model's answer may replace the sentence that it was asked to rewrite."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Literal

from alimark.generation.candidates import broken_markup, degenerate
from alimark.llm.base import Draw
from alimark.text.language import COMMON, WORDS
from alimark.text.splitting import Splitter
from alimark.text.units import clean, keep_on_one_line, with_full_stop, without_marker

Flaw = Literal["", "blank", "unfinished", "refusal", "chatter", "sentences", "markup", "degenerate", "length", "mark",
               "numbers", "names", "language", "unchanged"]  # fmt: skip
"""Why an answer cannot replace its sentence.

blank: it has no word. unfinished: the token limit cut it off. refusal: the model refuses. chatter: it talks about the task.
sentences: it is not one sentence. markup: it has broken markup or quotes. degenerate: it repeats a few words. length: it is
much longer or shorter. mark: a question became a statement, or the reverse. numbers: numbers, code or addresses were lost or
added. names: names were lost or invented. language: it is in another language. unchanged: it is the same sentence."""


_QUOTES = "\"'“”‘’`«»"
REFUSAL = re.compile(
    r"\bas an ai\b|\bi(?:'m| am) (?:sorry|unable|not able|afraid)\b|\bsorry,? but\b"
    r"|\bi (?:cannot|can't|won't|can not) (?:help|assist|rewrite|provide|fulfill?|comply|do that)\b",
    re.IGNORECASE,
)
PREFACE = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|great|understood|no problem)\b\s*[,!.:]"
    r"|(?:here(?:'s| is| are)|the following|below is)\b[^.!?]{0,60}:"
    r"|(?:\*\*)?(?:the )?(?:re-?written|rewrite|revised|rephrased|paraphrased?|new|original|answer|output|sentence|note)"
    r"\b[^.!?,]{0,40}:",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"\bre-?(?:writ|wrote|phras)\w*|\bparaphras\w*|\b(?:the|this|original|given) sentence\b|\boriginal text\b",
    re.IGNORECASE,
)
# Numbers, code and addresses must not change. The part of an address before the @ has at most 64 characters by its standard,
# and without the bound a long run of word characters would take quadratic time.
_EXACT = re.compile(r"`[^`]+`|https?://[^\s)>\]]*[\w/]|[\w.+-]{1,64}@[\w-]+\.\w+|\d+(?:[.,:/]\d+)*")
_COUNT = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|[mb]illion|dozen)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[\w.,;:—–-]\s)(?!I['’])[A-Z][\w-]*\w")  # not at the start, where every word has a capital

_CAPITALS = re.compile(r"[A-Z](?:[\w-]|['’](?=[A-Z]))*(?: [A-Z](?:[\w-]|['’](?=[A-Z]))*)*")


@dataclass(frozen=True, slots=True)
class Known:
    """The words of a text in lower case, which a rewrite may use freely, and its names."""

    words: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, units: Sequence[str]) -> Known:
        words = frozenset(word.lower() for unit in units for word in WORDS.findall(unit))
        return cls(words, frozenset(name for unit in units for name in WORDS.findall(" ".join(_NAME.findall(unit)))))

    def names_of(self, unit: str) -> set[str]:
        """The names in a sentence; its first word is one if it is a name elsewhere in the text."""
        return {*WORDS.findall(" ".join(_NAME.findall(unit))), *(set(WORDS.findall(unit)[:1]) & self.names)}


def fixed_parts(sentence: str, known: Known | None) -> list[str]:
    """The names, numbers, code and addresses of a sentence. A small model keeps them better when it is told them."""
    names = known.names_of(clean(sentence)) if known else set()
    parts = []
    for run in _CAPITALS.findall(sentence):
        words = list(dropwhile(lambda word: names.isdisjoint(WORDS.findall(word)), run.split()))
        parts.append(" ".join(words))
    parts += [match[0] for pattern in (_EXACT, _COUNT) for match in pattern.finditer(sentence)]
    return [
        part for part in dict.fromkeys(parts) if part and not any(part != other and part in other for other in parts)
    ]


def judge(draw: Draw, original: str, cutter: Splitter, known: Known | None) -> tuple[str, Flaw]:
    """The answer, adapted to the place of the original sentence, and its flaw ("" where it has none).

    `known` are the words of the whole text; without them names are not compared.
    """
    answer = draw.text.strip()
    if not any(c.isalnum() for c in answer):
        return "", "blank"
    cleaned, before = clean(answer), clean(original)
    if REFUSAL.search(cleaned) and not REFUSAL.search(before):
        return answer, "refusal"
    preface = PREFACE.match(cleaned) and not PREFACE.match(before)
    if preface or (_ABOUT.search(cleaned) and not _ABOUT.search(before)):
        return answer, "chatter"
    if draw.ended == "length":
        return answer, "unfinished"
    if draw.ended == "sentence" or len(cutter.spans(answer)) != 1:
        return answer, "sentences"
    body = _fitted(answer, original)
    pair = _Pair(body, clean(body), original, before, known)
    return body, next((flaw for flaw, holds in _CHECKS if holds(pair)), "")


def _fitted(answer: str, original: str) -> str:
    """The answer on one line, with the first and last characters of the kind that the original has."""
    body = without_marker(keep_on_one_line(answer))
    first = original[:1]
    if first not in _QUOTES and len(body) > 2 and body[0] in _QUOTES and body[-1] in _QUOTES:
        inside = body[1:-1]
        body = inside.strip() if not any(sign in inside for sign in '"“”«»`') else body
    if first.isupper() and body[:1].islower():
        body = body[0].upper() + body[1:]
    if with_full_stop(original) != original:
        return body[:-1] if body.endswith(".") and not body.endswith("..") else body
    return with_full_stop(body)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A rewrite and its original, each as written and as cleaned."""

    body: str
    unit: str
    original: str
    before: str
    known: Known | None


def _numbers_moved(pair: _Pair) -> bool:
    """Whether numbers were lost or added: digits are counted; number words only have to occur, as in "the two of them"."""
    exact = [Counter(_EXACT.findall(text)) for text in (pair.body, pair.original)]
    counts = [{word.lower() for word in _COUNT.findall(text)} for text in (pair.body, pair.original)]
    return exact[0] != exact[1] or counts[0] != counts[1]


def _names_moved(pair: _Pair) -> bool:
    """Whether a name was lost, or one was added that the text does not have."""
    if pair.known is None:
        return False
    before, after = pair.known.names_of(pair.before), pair.known.names_of(pair.unit)
    return not before <= set(WORDS.findall(pair.unit)) or any(word.lower() not in pair.known.words for word in after)


_CHECKS: tuple[tuple[Flaw, Callable[[_Pair], bool]], ...] = (
    ("unchanged", lambda pair: pair.unit.casefold() == pair.before.casefold()),
    ("markup", lambda pair: broken_markup(pair.body) or (pair.unit.count('"') - pair.before.count('"')) % 2 == 1),
    ("degenerate", lambda pair: degenerate(pair.unit) and not degenerate(pair.before)),
    ("language", lambda pair: other_language(pair.unit, pair.before)),
    ("length", lambda pair: not 0.5 <= len(pair.unit) / len(pair.before) <= 2),
    ("mark", lambda pair: _asks(pair.unit) != _asks(pair.before)),
    ("numbers", _numbers_moved),
    ("names", _names_moved),
)


def _asks(unit: str) -> bool:
    return unit.rstrip("\"')]»” ")[-1:] in ("?", "？", "؟")


def other_language(unit: str, original: str) -> bool:
    """Whether a sentence is in another language than the original: another script, or English and something else."""
    if not _scripts(unit) <= _scripts(original):
        return True
    shares = [_share_of_common_words(text) for text in (unit, original)]
    return min(shares) < 0.1 and max(shares) > 0.3


def _share_of_common_words(text: str) -> float:
    """The share of common English words; 0.2, which decides nothing, for a sentence of few words."""
    words = WORDS.findall(text.lower())
    return sum(word in COMMON for word in words) / len(words) if len(words) >= 8 else 0.2


def _scripts(text: str) -> set[str]:
    return {"LATIN"} | {unicodedata.name(c, "?").split()[0] for c in text if c.isalpha() and not c.isascii()}
