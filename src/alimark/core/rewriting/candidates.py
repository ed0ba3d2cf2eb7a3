"""Judging of rewrites: whether a chat model's answer may replace the sentence that it was asked to rewrite."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Literal

from alimark.core.frozen.text.splitting import Splitter
from alimark.core.frozen.text.units import clean, keep_on_one_line, with_full_stop, without_marker
from alimark.core.llm.base import Draw
from alimark.core.text.continuations import broken_markup, degenerate
from alimark.core.text.language import COMMON, WORDS

RewriteFlaw = Literal["", "blank", "unfinished", "refusal", "chatter", "sentences", "markup", "degenerate", "length", "mark",
               "numbers", "negation", "persons", "names", "language", "unchanged"]  # fmt: skip
"""Why an answer cannot replace its sentence.

blank: it has no word. unfinished: the token limit cut it off. refusal: the model refuses. chatter: it talks about the task.
sentences: it is not one sentence. markup: it has broken markup or quotes. degenerate: it repeats a few words. length: it is
much longer or shorter. mark: a question became a statement, or the reverse. numbers: numbers, units, code or addresses were
lost or added. negation: words such as "not", "without" or "except" were lost or added. persons: "I", "you", "he" or "she"
became another of them. names: names were lost or invented. language: it is in another language. unchanged: it is the same
sentence."""


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
# A line break inside a sentence, with the indentation and the signs of a quotation around it.
_BREAK = re.compile(r"[ \t]*\r?\n[ \t]*(?:>[ \t]?)*")
# Numbers, code and addresses must not change. The part of an address before the @ has at most 64 characters by its standard,
# and without the bound a long run of word characters would take quadratic time.
_EXACT = re.compile(r"`[^`]+`|https?://[^\s)>\]]*[\w/]|[\w.+-]{1,64}@[\w-]+\.\w+|\d+(?:[.,:/]\d+)*")
_COUNT = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|[mb]illion|dozen)\b",
    re.IGNORECASE,
)
# What a number counts, which has to stay: "12.50 euros" is not "12.50 kilograms".
_UNIT_WORDS = (
    r"%|[€£$¥°]|[kcm]?m\b|[km]?g\b|[kmgt]b\b|k?wh\b|eur\b|usd\b|gbp\b|[ap]\.?m\b|per ?cent\b|feet\b|people\b|copies\b"
    r"|(?:euro|cent|dollar|pound|second|minute|hour|day|week|month|year|met(?:re|er)|kilomet(?:re|er)|mile|inche?|foot"
    r"|gram|kilogram|ton|lit(?:re|er)|degree|page|piece|person|copy|unit|item|time)s?\b"
)
_WITH_UNIT = re.compile(
    rf"\d+(?:[.,:/]\d+)*[ \u00a0-]?(?P<after>{_UNIT_WORDS})|(?P<before>[€£$¥])\s?\d+(?:[.,]\d+)*", re.IGNORECASE
)
_SAME_UNIT = {
    "€": "euro", "eur": "euro", "$": "dollar", "usd": "dollar", "£": "pound", "gbp": "pound", "%": "percent",
    "per cent": "percent", "feet": "foot", "people": "person", "copie": "copy", "meter": "metre", "kilometer": "kilometre",
    "liter": "litre", "inche": "inch", "a.m": "am", "p.m": "pm",
}  # fmt: skip
# Words that turn a statement into its opposite or take something out of it. All count alike, so that "is not able to" may
# become "cannot" or "is unable to". "Not only" adds, and "No. 5" is a number.
_NEGATION = re.compile(
    r"\b(?:not(?! (?:only|just|merely)\b)|cannot|(?:\w+n['’]t)|no(?!\. ?\d)|never|none|nobody|nothing|nowhere|neither|nor"
    r"|without|unless|except(?:ing)?|exclud(?:e|es|ed|ing)|omit\w*|hardly|scarcely|barely|rarely|seldom|unable"
    r"|impossible|refus(?:e|es|ed|ing)|lack(?:s|ed|ing)?|fail(?:s|ed|ing)?|den(?:y|ies|ied|ying)|forb(?:id|ids|ade|idden)"
    r"|prohibit\w*|prevent(?:s|ed|ing)?|avoid(?:s|ed|ing)?|cancel\w*|reject(?:s|ed|ing)?|declin(?:e|es|ed|ing))\b",
    re.IGNORECASE,
)
# Who speaks, who is spoken to, and who is spoken about.
_PERSONS = {
    person: re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for person, words in (
        ("I", "I|me|my|mine|myself|we|us|our|ours|ourselves"), ("you", "you|your|yours|yourself|yourselves"),
        ("he", "he|him|his|himself"), ("she", "she|her|hers|herself"),
    )
}  # fmt: skip
_FOREIGN_NEGATION = re.compile(
    r"\b(?:nicht|kein\w*|nie(?:mals|mand)?|nichts|ohne|weder|außer|ne|n['’]|pas|jamais|rien|sans|aucune?|sauf|no|nunca|nada|nadie"
    r"|sin|ningun[oa]?|ningún|excepto|tampoco|non|mai|niente|nessun[oa]?|senza|tranne|não|nem|sem|ninguém|niet|geen|nooit|zonder)"
    r"(?!\w)",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[\w.,;:—–-]\s)(?!I['’])[A-Z][\w-]*\w")  # not at the start, where every word has a capital
_FIRST_NAME = re.compile(r"([A-Z][^\W\d_]+) [A-Z]")

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
        """The names in a sentence; its first word is one if it is a name elsewhere, or if a name follows it at once."""
        first = _FIRST_NAME.match(unit)
        full = {first[1]} if first and first[1].lower() not in COMMON else set()
        return {*WORDS.findall(" ".join(_NAME.findall(unit))), *(set(WORDS.findall(unit)[:1]) & self.names), *full}

    def lost(self, unit: str, before: str) -> bool:
        """Whether a rewrite lacks a name of its sentence."""
        return not self.names_of(before) <= set(WORDS.findall(unit))

    def with_name_from(self, unit: str, before: str) -> Known:
        """What is known after a rewrite: a first word that the rewrite has with a capital in its middle is a name."""
        first = set(WORDS.findall(before)[:1]) - self.names
        names = first & set(WORDS.findall(" ".join(_NAME.findall(unit))))
        return Known(self.words, self.names | names) if names else self


def fixed_parts(sentence: str, known: Known | None) -> list[str]:
    """The names, numbers, code and addresses of a sentence. A small model keeps them better when it is told them."""
    names = known.names_of(clean(sentence)) if known else set()
    parts = []
    for run in _CAPITALS.findall(sentence):
        words = list(dropwhile(lambda word: names.isdisjoint(WORDS.findall(word)), run.split()))
        parts.append(" ".join(words))
    parts += [match[0] for pattern in (_WITH_UNIT, _EXACT, _COUNT) for match in pattern.finditer(sentence)]
    return [
        part for part in dict.fromkeys(parts) if part and not any(part != other and part in other for other in parts)
    ]


def judge(draw: Draw, original: str, cutter: Splitter, known: Known | None) -> tuple[str, RewriteFlaw]:
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


def on_one_line(sentence: str) -> str:
    """A sentence without its line breaks, and without the signs of a quotation at the start of its lines."""
    return keep_on_one_line(_BREAK.sub(" ", sentence))


def _fitted(answer: str, original: str) -> str:
    """The answer with the line breaks of the original, and first and last characters of the kind that the original has."""
    body = without_marker(keep_on_one_line(answer))
    first = original[:1]
    if first not in _QUOTES and len(body) > 2 and body[0] in _QUOTES and body[-1] in _QUOTES:
        inside = body[1:-1]
        body = inside.strip() if not any(sign in inside for sign in '"“”«»`') else body
    if first.isupper() and body[:1].islower():
        body = body[0].upper() + body[1:]
    if with_full_stop(original) == original:
        body = with_full_stop(body)
    elif body.endswith(".") and not body.endswith(".."):
        body = body[:-1]
    return _with_breaks(body, original)


def _with_breaks(body: str, original: str) -> str:
    """Puts the line breaks of the original into a rewrite, each at the space that is nearest its place in the original."""
    breaks = list(_BREAK.finditer(original))
    if not breaks:
        return body
    # A word such as "2." or "-" at the start of a line would read as the sign of a list.
    spaces = [i for i, sign in enumerate(body) if sign == " " and without_marker(body[i + 1 :]) == body[i + 1 :]]
    parts, at = [], 0
    for number, line_break in enumerate(breaks):
        later = len(breaks) - number - 1
        free = [i for i in spaces if i >= at][: -later or None]
        if not free:
            return body  # there are too few words
        place = line_break.start() / len(original) * len(body)
        nearest = min(free, key=lambda i: abs(i - place))
        parts += [body[at:nearest], line_break[0]]
        at = nearest + 1
    return "".join(parts) + body[at:]


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
    return exact[0] != exact[1] or counts[0] != counts[1] or _units(pair.unit) != _units(pair.before)


def _units(text: str) -> set[str]:
    """What the numbers of a text count, each in one form: "€12" and "12 euros" give the same."""
    units = {(match["after"] or match["before"]).lower().rstrip("s") for match in _WITH_UNIT.finditer(text)}
    return {_SAME_UNIT.get(unit, unit) for unit in units}


def _negation_moved(pair: _Pair) -> bool:
    """Whether words of negation were lost or added."""
    negation = _NEGATION if pair.known else _FOREIGN_NEGATION
    after, before = (len(negation.findall(text)) for text in (pair.unit, pair.before))
    return after != before


def _persons_moved(pair: _Pair) -> bool:
    """Whether other persons speak, act or are spoken to.

    A rewrite in the passive voice may lose both "I" and "you". It may say "he" or "she" of a name.
    """
    if pair.known is None:
        return False
    after, before = (
        {name for name, words in _PERSONS.items() if words.search(text)} for text in (pair.unit, pair.before)
    )
    talking, absent = {"I", "you"}, before - {"I", "you"}
    return (after & talking) not in (before & talking, set()) or bool(absent and after - talking != absent)


def _names_moved(pair: _Pair) -> bool:
    """Whether a name was lost, or one was added that the text does not have."""
    if pair.known is None:
        return False
    added = (word for word in pair.known.names_of(pair.unit) if word.lower() not in pair.known.words)
    return pair.known.lost(pair.unit, pair.before) or any(added)


_CHECKS: tuple[tuple[RewriteFlaw, Callable[[_Pair], bool]], ...] = (
    ("unchanged", lambda pair: pair.unit.casefold() == pair.before.casefold()),
    ("markup", lambda pair: broken_markup(pair.body) or (pair.unit.count('"') - pair.before.count('"')) % 2 == 1),
    ("degenerate", lambda pair: degenerate(pair.unit) and not degenerate(pair.before)),
    ("language", lambda pair: other_language(pair.unit, pair.before)),
    ("length", lambda pair: not 0.5 <= len(pair.unit) / len(pair.before) <= 2),
    ("mark", lambda pair: _asks(pair.unit) != _asks(pair.before)),
    ("numbers", _numbers_moved),
    ("negation", _negation_moved),
    ("names", _names_moved),
    ("persons", _persons_moved),
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
