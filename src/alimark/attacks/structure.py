"""Attacks on a text's sentences that need no model. Of N sentences at rate r, k = floor(r N + 0.5) are touched.

- insert: k sentences of other texts, drawn without repeats, each at a place of its own choice; the text's own stay, in order.
- delete: k sentences go; where that would be all of them, the attack fails.
- reorder: max(2, k) places exchange their sentences so that none of them keeps its own; layout stays where it was.
- merge: k pairs of neighbours, no sentence in two of them, become one sentence each with a connective between them.
- split: k sentences become two each, at a clause or, where there is none, before a phrase.
- truncate: k sentences go at the end, the start, or both.
- copy-paste: a text as long as the marked one, of which k sentences are marked, in order and in runs; the others are those
  of one human text.

Merging and splitting take what the text offers: a question is not merged with its answer, a sentence without a joint is not
split. Where fewer than k offer themselves all of these are taken, and where none does the attack fails. What is merged or
split is found as such by the splitter, so the count of sentences changes by exactly the number of merges or splits.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, ClassVar, Literal

from alimark.attacks.base import TextAttack, setting
from alimark.errors import AttackError
from alimark.text.language import WORDS
from alimark.text.splitting import DEFAULT_SPLITTER, Piece, join, pieces, splitter
from alimark.text.units import with_full_stop


def touched(rate: float, count: int) -> int:
    """k = floor(r N + 0.5)."""
    return math.floor(rate * count + 0.5)


def digest(pool: Sequence[str]) -> str:
    """Tells one pool from another in a record."""
    return f"{len(pool)} texts, " + hashlib.sha256("\0".join(pool).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def cut(text: str) -> tuple[list[Piece], str]:
    found, tail = pieces(text, splitter(DEFAULT_SPLITTER))
    if not found:
        raise AttackError("the text holds no sentence")
    return found, tail


@dataclass(frozen=True)
class _Rated(TextAttack):
    rate: float = setting(0.3, "Share of the sentences.")

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise AttackError(f"the rate is a share and lies between 0 and 1, not {self.rate}")


@dataclass(frozen=True)
class Insert(_Rated):
    """Put sentences of other texts between those of the text."""

    name: ClassVar[str] = "insert"
    pool: Sequence[str] = field(default=(), repr=False)
    """The texts that sentences come from. The attacked text itself, where it is among them, gives none."""

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"pool": digest(self.pool)}

    @cached_property
    def _sentences(self) -> list[tuple[str, str]]:
        """Every different sentence of the pool, and the text it is of."""
        cutter = splitter(DEFAULT_SPLITTER)
        found = {piece.body: text for text in self.pool for piece in pieces(text, cutter)[0]}
        return [(body, text) for body, text in found.items() if _may_stand_alone(body)]

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        own = {piece.body for piece in found}
        others = [body for body, source in self._sentences if source != text and body not in own]
        count = touched(self.rate, len(found))
        if len(others) < count:
            raise AttackError(
                f"{count} sentences of other texts are to be inserted and there are {len(others)}; give a larger pool"
            )
        gaps = sorted(random.randrange(len(found) + 1) for _ in range(count))
        new = random.sample(others, count)
        made: list[Piece] = []
        for i in range(len(found) + 1):
            for body in (body for gap, body in zip(gaps, new, strict=True) if gap == i):
                made.append(Piece(_lead_after(made), body))
            if i < len(found):
                made.append(Piece(found[i].lead if i or not made else f" {found[0].lead}", found[i].body))
        return join(made, tail)


def _lead_after(made: Sequence[Piece]) -> str:
    """A heading is followed by a line of its own."""
    if not made:
        return ""
    return " " if with_full_stop(made[-1].body) == made[-1].body else "\n\n"


@dataclass(frozen=True)
class Delete(_Rated):
    """Leave sentences out."""

    name: ClassVar[str] = "delete"

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        gone = set(random.sample(range(len(found)), touched(self.rate, len(found))))
        return _without(found, tail, gone)


@dataclass(frozen=True)
class Truncate(_Rated):
    """Cut off the end of the text, its start, or both."""

    name: ClassVar[str] = "truncate"
    side: Literal["end", "start", "both"] = setting("end", "Where sentences go: end, start or both (half and half).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in ("end", "start", "both"):
            raise AttackError(f"the side is end, start or both, not {self.side!r}")

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        count = touched(self.rate, len(found))
        at_start = {"end": 0, "start": count, "both": count // 2}[self.side]
        at_end = len(found) - (count - at_start)
        return _without(found, tail, {*range(at_start), *range(at_end, len(found))})


def _without(found: Sequence[Piece], tail: str, gone: set[int]) -> str:
    """Code blocks and breaks between paragraphs stay, list signs go with their sentences."""
    if len(gone) == len(found):
        raise AttackError(f"nothing would be left of {len(found)} sentences")
    made: list[Piece] = []
    code = blank = ""  # what stood before sentences that are gone
    for i, piece in enumerate(found):
        own_code, own_blank, sign = _parts(piece.lead)
        code += own_code
        blank = own_blank if own_code or own_blank.count("\n") >= blank.count("\n") else blank
        if i not in gone:
            lead = code + blank + sign
            made.append(Piece(lead if made else lead.lstrip(), piece.body))
            code = blank = ""
    return join(made, code + tail)


def _parts(lead: str) -> tuple[str, str, str]:
    """Code blocks with all before them, white space, and a list's or heading's sign."""
    fence = max(lead.rfind("```"), lead.rfind("~~~"))
    end = lead.find("\n", fence) if fence >= 0 else 0
    code, rest = lead[:end], lead[end:]
    sign = rest.lstrip()
    return code, rest[: len(rest) - len(sign)], sign


@dataclass(frozen=True)
class Reorder(_Rated):
    """Exchange the places of sentences."""

    name: ClassVar[str] = "reorder"

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        if len(found) < 2:
            raise AttackError("a text of one sentence cannot be reordered")
        places = random.sample(range(len(found)), max(2, touched(self.rate, len(found))))
        made = list(found)
        for here, there in zip(places, _deranged(places, random), strict=True):
            # What ended its text or its line without a mark would run into what follows it now.
            made[here] = Piece(found[here].lead, with_full_stop(found[there].body))
        return join(made, tail)


def _deranged(places: Sequence[int], random: Random) -> list[int]:
    """The places in an order in which none is where it was, all such orders equally likely."""
    while True:
        shuffled = random.sample(places, len(places))
        if all(one != other for one, other in zip(places, shuffled, strict=True)):
            return shuffled


# Merging

_CONNECTIVES = (", and ", ", while ", "; ", ", and at the same time ", "; what is more, ")
_LINKS_AT_START = re.compile(
    r"(?:and|but|so|or|yet|because|however|therefore|moreover|meanwhile|then|also|thus|still|instead|furthermore)\b,?\s+",
    re.IGNORECASE,
)
# What a sentence may begin with that is written small inside of one; a name is not.
_SMALL_INSIDE = frozenset(
    "a an the this that these those it its he she they we you his her their our your my there here one some many most all "
    "both each every no nobody nothing everyone someone people in on at by for from with without after before during since "
    "until when while as if although though because despite under over through between among into within across along "
    "another other such what who where why how once now today yesterday soon later finally first next last two three several "
    "few much more even only just not never always often sometimes perhaps maybe".split()
)


@dataclass(frozen=True)
class Merge(_Rated):
    """Join neighbouring sentences into one with a connective."""

    name: ClassVar[str] = "merge"

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        count = touched(self.rate, len(found))
        joined = {i: one for i in range(len(found) - 1) if (one := _merged(found, i, random))}
        chosen = _disjoint(sorted(joined), count, random)
        if count and not chosen:
            raise AttackError("no two neighbouring sentences can be merged")
        made = [Piece(piece.lead, joined.get(i, piece.body) if i in chosen else piece.body)
                for i, piece in enumerate(found) if i - 1 not in chosen]  # fmt: skip
        return join(made, tail)


def _merged(found: Sequence[Piece], i: int, random: Random) -> str | None:
    """Sentence i and the next as one, or None where that would be none."""
    first, (lead, second) = found[i].body, found[i + 1]
    if not first.endswith(".") or first.endswith("..") or "\n" in lead or lead.strip():
        return None
    if any(text.count('"') % 2 or text.count("“") != text.count("”") for text in (first, second)):
        return None
    if second[-1:] in "?!":
        return None
    tried = random.sample(_CONNECTIVES, len(_CONNECTIVES))
    small = _small(second)
    if link := _LINKS_AT_START.match(second):
        # It brings its connective along.
        tried, small = [", " if link[0].strip().lower() in ("and", "but", "so", "or", "yet") else "; "], _small(second)
    for connective in tried:
        made = first[:-1].rstrip() + connective + small
        if (
            len(splitter(DEFAULT_SPLITTER).spans(made))
            == 1
            == len(splitter(DEFAULT_SPLITTER).spans("So it was. " + made)) - 1
        ):
            return made
    return None


def _small(sentence: str) -> str:
    word = WORDS.match(sentence)
    if word and (word[0].lower() in _SMALL_INSIDE or _LINKS_AT_START.match(sentence)):
        return sentence[0].lower() + sentence[1:]
    return sentence


def _disjoint(edges: Sequence[int], count: int, random: Random) -> set[int]:
    """`count` of the pairs (i, i + 1) of which no two share a sentence, or as many as there can be; any such set may come."""
    ways = {len(edges): [1]}  # how many sets of 0, 1, 2, ... pairs there are among the edges from here on

    def behind(i: int) -> int:
        """The next edge that may be taken after edge i was."""
        return i + 2 if i + 1 < len(edges) and edges[i + 1] == edges[i] + 1 else i + 1

    def at(i: int, size: int) -> int:
        return ways[i][size] if 0 <= size < len(ways[i]) else 0

    for i in reversed(range(len(edges))):
        most = max(len(ways[i + 1]), len(ways[behind(i)]) + 1)
        ways[i] = [at(i + 1, size) + at(behind(i), size - 1) for size in range(most)]
    size, chosen, i = min(count, len(ways[0]) - 1), set(), 0
    while size:
        if random.randrange(at(i, size)) < at(behind(i), size - 1):
            chosen.add(edges[i])
            size, i = size - 1, behind(i)
        else:
            i += 1
    return chosen


# Splitting

_SUBJECT = (
    r"(?:I|you|he|she|it|they|we|this|that|these|those|there|the|a|an|his|her|its|their|our|my|your|some|many|most|each|every|no"
    r"|people|everyone|nobody|[A-Z][a-z]+)\b"
)
# A joint, and what the sentence behind it begins with. The first that is found nearest the middle is taken.
_JOINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf";\s+(?:however,\s+|moreover,\s+|what is more,\s+)?(?={_SUBJECT})"), ""),
    (re.compile(rf",\s+and\s+(?={_SUBJECT}\s+\w+)"), ""),
    (re.compile(rf",?\s+but\s+(?={_SUBJECT}\s+\w+)"), "However, "),
    (re.compile(rf",\s+so\s+(?:that\s+)?(?={_SUBJECT}\s+\w+)"), "Therefore, "),
    (re.compile(rf",\s+(?:while|whereas)\s+(?={_SUBJECT}\s+\w+)"), "Meanwhile, "),
    (re.compile(rf",?\s+(?:even\s+)?(?:although|though)\s+(?={_SUBJECT}\s+\w+)"), "Still, "),
    (re.compile(rf",?\s+because\s+(?={_SUBJECT}\s+\w+)"), "This is because "),
    (re.compile(r",\s+which\s+(?=(?:is|was|are|were|has|had|have|can|could|will|would|may|might|must|made|led)\b)"), "This "),
    (re.compile(r"\s+and\s+(?=(?:he|she|they|we|I|it)\s+\w+)"), ""),
)  # fmt: skip
# A clause that comes first, and what the main clause then begins with.
_FIRST_CLAUSE = re.compile(
    rf"(?P<word>As|When|While|Once|After|Although|Though|Because|Since|Despite the fact that)\s+(?={_SUBJECT}\s+\w+)"
    rf"(?P<clause>[^,;:]+),\s+(?={_SUBJECT}\s+\w+)"
)
_LATER = {"Although": "Nevertheless, ", "Though": "Nevertheless, ", "Despite the fact that": "Nevertheless, ",
          "Because": "Therefore, ", "Since": "Therefore, ", "After": "Afterwards, ", "Once": "Then "}  # fmt: skip
# Phrases that tell circumstances, and those that may belong to the word before them.
_FREE_PHRASE = re.compile(
    r",?\s+(?=(?:during|after|before|because of|despite|instead of|according to|as well as|such as|without|throughout)\s+\w+)"
    r"|,\s+(?=(?:in|on|at|with|for|by|from|through|under|over|near)\s+\w+)"
)
_PHRASE = re.compile(
    r"(?<!ed)(?<!ing)(?<!\bis)(?<!\bare)(?<!\bwas)(?<!\bwere)(?<!\bbe)(?<!\bup)(?<!\bout)\s+"
    r"(?=(?:in|on|at|with|for|by|from|near|through|under|over|between|among|within|across|along|against)\s+\w+)"
)
_LEAST_WORDS = 3  # of either half


@dataclass(frozen=True)
class Split(_Rated):
    """Break sentences in two."""

    name: ClassVar[str] = "split"

    def rewrite(self, text: str, random: Random) -> str:
        found, tail = cut(text)
        count = touched(self.rate, len(found))
        halves = {i: two for i, piece in enumerate(found) if (two := _halves(piece.body))}
        chosen = set(random.sample(sorted(halves), min(count, len(halves))))
        if count and not chosen:
            raise AttackError("no sentence can be split")
        made: list[Piece] = []
        for i, piece in enumerate(found):
            first, second = halves[i] if i in chosen else (piece.body, "")
            made += [Piece(piece.lead, first), *([Piece(" ", second)] if second else [])]
        return join(made, tail)


def _halves(sentence: str) -> tuple[str, str] | None:
    """The sentence as two, or None where it has no joint."""
    if sentence[-1:] not in ".!" or sentence.endswith("..") or re.search('["“”]', sentence):
        return None
    if first := _FIRST_CLAUSE.match(sentence):
        clause = first["clause"][0].upper() + first["clause"][1:]
        later = _LATER.get(first["word"], "At that time, ")
        if two := _both(f"{clause}.", later + _small(sentence[first.end() :])):
            return two
    clauses = [(match, start) for joint, start in _JOINTS for match in joint.finditer(sentence)]
    for cuts in (
        clauses,
        *([(match, "This was ") for match in kind.finditer(sentence)] for kind in (_FREE_PHRASE, _PHRASE)),
    ):
        for match, start in sorted(cuts, key=lambda one: abs(one[0].start() - len(sentence) / 2)):
            if two := _two(sentence, match, start):
                return two
    return None


def _two(sentence: str, match: re.Match[str], start: str) -> tuple[str, str] | None:
    second = sentence[match.end() :]
    return _both(
        sentence[: match.start()].rstrip(" ,;—–-&") + ".", start + second if start else second[0].upper() + second[1:]
    )


def _both(first: str, second: str) -> tuple[str, str] | None:
    """Two sentences that are long enough and that the splitter finds again."""
    if min(len(re.findall(r"\w+", half)) for half in (first, second)) < _LEAST_WORDS:
        return None
    found = splitter(DEFAULT_SPLITTER).spans(f"{first} {second}")
    return (first, second) if found == [(0, len(first)), (len(first) + 1, len(first) + 1 + len(second))] else None


# Copying


@dataclass(frozen=True)
class CopyPaste(_Rated):
    """Paste marked sentences into a human text."""

    name: ClassVar[str] = "copy-paste"
    rate: float = setting(0.3, "Share of the new text's sentences that are marked; at least one is.")
    runs: int = setting(1, "Unbroken runs of marked sentences.")
    pool: Sequence[str] = field(default=(), repr=False)
    """Human texts; one that is long enough is drawn for each marked text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs < 1:
            raise AttackError("at least one run of sentences is pasted")

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"pool": digest(self.pool)}

    @cached_property
    def _human(self) -> list[tuple[list[Piece], str]]:
        cutter = splitter(DEFAULT_SPLITTER)
        return [pieces(text, cutter) for text in self.pool]

    def rewrite(self, text: str, random: Random) -> str:
        found, _ = cut(text)
        count = max(1, touched(self.rate, len(found)))
        rest = len(found) - count
        long_enough = [human for human, _ in self._human if len(human) >= max(1, rest)]
        if not long_enough:
            raise AttackError(f"no human text of {max(1, rest)} sentences is in the pool; give longer ones")
        host = random.choice(long_enough)
        start = random.randrange(len(host) - rest + 1)
        host = host[start : start + rest]
        runs = _runs(count, min(self.runs, count, rest + 1), random)
        first = random.randrange(len(found) - count + 1)
        gaps = sorted(random.sample(range(rest + 1), len(runs)))
        made: list[str] = []
        at = first
        for i in range(rest + 1):
            if i in gaps:
                length = runs[gaps.index(i)]
                made += [piece.body for piece in found[at : at + length]]
                at += length
            made += [host[i].body] if i < rest else []
        return " ".join(with_full_stop(body) for body in made)


def _runs(count: int, parts: int, random: Random) -> list[int]:
    """`count` as `parts` lengths of at least one."""
    cuts = sorted(random.sample(range(1, count), parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


def _may_stand_alone(body: str) -> bool:
    """Whether a sentence is one in another text, too: it ends, and is no heading or list item."""
    return with_full_stop(body) == body and len(WORDS.findall(body)) >= 4
