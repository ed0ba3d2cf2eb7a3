"""Attacks on the sentences of a text, without a model. Of N sentences at rate r, k = floor(r N + 0.5) change (docs/attacks.md).

With the paper's preset, insertion, deletion and reordering do what the public code does: k = floor(r N), punctuation marks are
inserted in the place of sentences, and a reordered sentence may keep its place.

Not all sentences can be merged or split: a question is not merged with its answer, and a sentence without a place to split
stays whole. If fewer than k are possible, all of these change; if none is possible, the attack fails. A merge or split is only
made where the splitter finds the new sentences again, so the number of sentences changes by exactly the number of merges or
splits.
"""

import hashlib
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from random import Random
from typing import ClassVar, Literal

from alimark.core._util.jsonl import Record
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Piece, join, pieces, splitter
from alimark.core.frozen.text.units import with_full_stop
from alimark.core.text.language import WORDS
from alimark.errors import AttackError
from alimark.lab.attacks.base import PAPER_PRESET, TextAttack, join_without, preset_setting, setting


def number_to_change(rate: float, count: int) -> int:
    """The share `rate` of `count`, rounded half up: floor(r N + 0.5)."""
    return math.floor(rate * count + 0.5)


def pool_digest(pool: Sequence[str]) -> str:
    """The number of texts in a pool and a hash of them, by which records identify the pool."""
    return f"{len(pool)} texts, " + hashlib.sha256("\0".join(pool).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class _StructureAttack(TextAttack):
    """An attack that changes a share of the sentences."""

    rate: float = setting(0.3, "The share of the sentences to change.")

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise AttackError(f"the rate must lie between 0 and 1, not {self.rate}")

    def rewrite(self, text: str, random: Random) -> str:
        sentences, tail = pieces(text, splitter(DEFAULT_SPLITTER))
        if not sentences:
            raise AttackError("the text holds no sentence")
        count = (
            int(self.rate * len(sentences)) if self.follows_public_code else number_to_change(self.rate, len(sentences))
        )
        return self._change(sentences, tail, count, random)

    @abstractmethod
    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        """The text with `count` of its sentences changed; `tail` is what follows the last sentence."""


_OF_PUBLIC_CODE: Mapping[str, Mapping[str, object]] = {PAPER_PRESET: {}}


class _PooledAttack(_StructureAttack):
    """An attack that takes sentences of other texts: its class has a field `pool`. Records name the pool by its digest."""

    pool: Sequence[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        pool: object = self.pool  # a single text is a sequence, too: of its characters
        if isinstance(pool, str) or not isinstance(pool, Sequence) or not all(isinstance(text, str) for text in pool):
            raise AttackError("the pool must be a list of texts; put a single text into a list")

    @property
    def settings(self) -> Record:
        return super().settings | {"pool": self._pool_digest}

    @cached_property
    def _pool_digest(self) -> str:
        return pool_digest(self.pool)  # every record names it, and a pool may be as large as all texts together


@dataclass(frozen=True)
class Insert(_PooledAttack):
    """Insert sentences of other texts."""

    name: ClassVar[str] = "insert"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = _OF_PUBLIC_CODE
    preset: str = preset_setting()
    pool: Sequence[str] = field(default=(), repr=False)
    """The texts that sentences are taken from. Sentences that the attacked text has already are not taken."""

    @cached_property
    def _pool_sentences(self) -> list[str]:
        """The different sentences of the pool that can stand in another text."""
        sentence_splitter = splitter(DEFAULT_SPLITTER)
        bodies = dict.fromkeys(piece.body for text in self.pool for piece in pieces(text, sentence_splitter)[0])
        # It ends with a mark, and is neither a heading nor a short list item.
        return [body for body in bodies if with_full_stop(body) == body and len(WORDS.findall(body)) >= 4]

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        if self.follows_public_code:
            return _with_marks(sentences, tail, count, random)
        gaps = Counter(random.randrange(len(sentences) + 1) for _ in range(count))
        inserted = iter(self._drawn({piece.body for piece in sentences}, count, random))
        result: list[Piece] = []
        for i in range(len(sentences) + 1):
            for body in islice(inserted, gaps[i]):
                result.append(Piece(_lead_after(result), body))
            if i < len(sentences):
                lead = sentences[i].lead
                result.append(Piece(lead if i or not result else f" {lead}", sentences[i].body))
        return join(result, tail)

    def _drawn(self, present: set[str], count: int, random: Random) -> list[str]:
        """Different sentences of the pool that are not present in the text."""
        pool = self._pool_sentences
        drawn = (pool[i] for i in random.sample(range(len(pool)), min(len(pool), count + len(present))))
        others = [body for body in drawn if body not in present][:count]
        if len(others) < count:
            raise AttackError(
                f"{count} sentences of other texts are to be inserted and there are {len(others)}; give a larger pool"
            )
        return others


def _with_marks(sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
    """The text with a punctuation mark of its own after some sentences, but never after the first one."""
    if count >= len(sentences):
        raise AttackError(f"{count} marks cannot be inserted after {len(sentences) - 1} sentences; choose a lower rate")
    places = set(random.sample(range(1, len(sentences)), count))
    marked = [
        [piece, Piece("  ", random.choice(".?!"))] if i in places else [piece] for i, piece in enumerate(sentences)
    ]
    return join([piece for group in marked for piece in group], tail)


def _lead_after(sentences: Sequence[Piece]) -> str:
    """What separates a new sentence from those before it: a space, or a blank line after a heading."""
    if not sentences:
        return ""
    return " " if with_full_stop(sentences[-1].body) == sentences[-1].body else "\n\n"


@dataclass(frozen=True)
class Delete(_StructureAttack):
    """Delete sentences."""

    name: ClassVar[str] = "delete"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = _OF_PUBLIC_CODE
    preset: str = preset_setting()

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        count = min(count, len(sentences) - 1) if self.follows_public_code else count
        return _without(sentences, tail, set(random.sample(range(len(sentences)), count)))


@dataclass(frozen=True)
class Truncate(_StructureAttack):
    """Cut off the end of the text, its start, or both."""

    name: ClassVar[str] = "truncate"
    side: Literal["end", "start", "both"] = setting("end", "Where to delete sentences: end, start or both (half each).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in ("end", "start", "both"):
            raise AttackError(f"the side must be end, start or both, not {self.side!r}")

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        at_start = {"end": 0, "start": count, "both": count // 2}[self.side]
        at_end = len(sentences) - (count - at_start)
        return _without(sentences, tail, {*range(at_start), *range(at_end, len(sentences))})


def _without(sentences: Sequence[Piece], tail: str, deleted: set[int]) -> str:
    if len(deleted) == len(sentences):
        raise AttackError(f"nothing would be left of {len(sentences)} sentences")
    return join_without(sentences, tail, deleted)


@dataclass(frozen=True)
class Reorder(_StructureAttack):
    """Exchange the positions of sentences."""

    name: ClassVar[str] = "reorder"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = _OF_PUBLIC_CODE
    preset: str = preset_setting()

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        if len(sentences) < 2:
            raise AttackError("a text of one sentence cannot be reordered")
        if self.follows_public_code:
            positions = random.sample(range(len(sentences)), min(count, len(sentences) - 1))
            sources = random.sample(positions, len(positions))
        else:
            positions = random.sample(range(len(sentences)), max(2, count))
            sources = _derangement(positions, random)
        result = list(sentences)
        for position, source in zip(positions, sources, strict=True):
            # A sentence that ended a line without a mark gets a full stop, or it would run into the next sentence.
            result[position] = Piece(sentences[position].lead, with_full_stop(sentences[source].body))
        return join(result, tail)


def _derangement(positions: Sequence[int], random: Random) -> list[int]:
    """A random order in which no position keeps its place, each such order with the same probability."""
    while True:
        shuffled = random.sample(positions, len(positions))
        if all(before != after for before, after in zip(positions, shuffled, strict=True)):
            return shuffled


# Merging

_CONNECTIVES = (", and ", ", while ", "; ", ", and at the same time ", "; what is more, ")
_LINKS_AT_START = re.compile(
    r"(?:and|but|so|or|yet|because|however|therefore|moreover|meanwhile|then|also|thus|still|instead|furthermore)\b,?\s+",
    re.IGNORECASE,
)
# First words that get a small initial letter when they move into the middle of a sentence, unlike names.
_LOWERCASE_INSIDE = frozenset(
    "a an the this that these those it its he she they we you his her their our your my there here one some many most all "
    "both each every no nobody nothing everyone someone people in on at by for from with without after before during since "
    "until when while as if although though because despite under over through between among into within across along "
    "another other such what who where why how once now today yesterday soon later finally first next last two three several "
    "few much more even only just not never always often sometimes perhaps maybe".split()
)


@dataclass(frozen=True)
class Merge(_StructureAttack):
    """Join neighbouring sentences into one with a connective."""

    name: ClassVar[str] = "merge"

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        merged = {i: body for i in range(len(sentences) - 1) if (body := _merged(sentences, i, random))}
        chosen = _disjoint(sorted(merged), count, random)
        if count and not chosen:
            raise AttackError("no two neighbouring sentences can be merged")
        result = [
            Piece(piece.lead, merged[i] if i in chosen else piece.body)
            for i, piece in enumerate(sentences)
            if i - 1 not in chosen
        ]
        return join(result, tail)


def _merged(sentences: Sequence[Piece], i: int, random: Random) -> str | None:
    """Sentence i and the next one as one sentence, or None where they cannot be merged."""
    first, (lead, second) = sentences[i].body, sentences[i + 1]
    if not first.endswith(".") or first.endswith("..") or "\n" in lead or lead.strip():
        return None
    if any(text.count('"') % 2 or text.count("“") != text.count("”") for text in (first, second)):
        return None
    if second[-1:] in "?!":
        return None
    connectives: Sequence[str] = random.sample(_CONNECTIVES, len(_CONNECTIVES))
    if link := _LINKS_AT_START.match(second):  # the second sentence has a connective already
        connectives = [", " if link[0].strip().lower() in ("and", "but", "so", "or", "yet") else "; "]
    spans = splitter(DEFAULT_SPLITTER).spans
    for connective in connectives:
        merged = first[:-1].rstrip() + connective + _lowercase_start(second)
        if len(spans(merged)) == 1 and len(spans("So it was. " + merged)) == 2:
            return merged
    return None


def _lowercase_start(sentence: str) -> str:
    """The sentence with a small initial letter, unless it may begin with a name."""
    word = WORDS.match(sentence)
    if word and (word[0].lower() in _LOWERCASE_INSIDE or _LINKS_AT_START.match(sentence)):
        return sentence[0].lower() + sentence[1:]
    return sentence


_DRAWS = 10  # of pairs, before the first possible ones are taken


def _disjoint(pairs: Sequence[int], count: int, random: Random) -> set[int]:
    """Chooses `count` of the pairs (i, i + 1), given by i, so that no two share a sentence; fewer if there are not so many."""
    most = _first_disjoint(pairs, len(pairs))
    count = min(count, len(most))
    for _ in range(_DRAWS):
        chosen = _first_disjoint(random.sample(pairs, len(pairs)), count)
        if len(chosen) == count:
            return chosen
    return set(random.sample(sorted(most), count))


def _first_disjoint(pairs: Sequence[int], count: int) -> set[int]:
    """The first of the pairs that share no sentence with one before; in their order in the text these are the most possible."""
    chosen: set[int] = set()
    for pair in pairs:
        if len(chosen) < count and not {pair - 1, pair + 1} & chosen:
            chosen.add(pair)
    return chosen


# Splitting

_SUBJECT = (
    r"(?:I|you|he|she|it|they|we|this|that|these|those|there|the|a|an|his|her|its|their|our|my|your|some|many|most|each|every|no"
    r"|people|everyone|nobody|[A-Z][a-z]+)\b"
)
# Places between clauses, and what the second sentence then begins with. The place nearest to the middle is used. The lookbehind
# `(?<!\s)` keeps the search linear in long white space.
_CLAUSE_BREAKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf";\s+(?:however,\s+|moreover,\s+|what is more,\s+)?(?={_SUBJECT})"), ""),
    (re.compile(rf",\s+and\s+(?={_SUBJECT}\s+\w+)"), ""),
    (re.compile(rf",?(?<!\s)\s+but\s+(?={_SUBJECT}\s+\w+)"), "However, "),
    (re.compile(rf",\s+so\s+(?:that\s+)?(?={_SUBJECT}\s+\w+)"), "Therefore, "),
    (re.compile(rf",\s+(?:while|whereas)\s+(?={_SUBJECT}\s+\w+)"), "Meanwhile, "),
    (re.compile(rf",?(?<!\s)\s+(?:even\s+)?(?:although|though)\s+(?={_SUBJECT}\s+\w+)"), "Still, "),
    (re.compile(rf",?(?<!\s)\s+because\s+(?={_SUBJECT}\s+\w+)"), "This is because "),
    (re.compile(r",\s+which\s+(?=(?:is|was|are|were|has|had|have|can|could|will|would|may|might|must|made|led)\b)"), "This "),
    (re.compile(r"(?<!\s)\s+and\s+(?=(?:he|she|they|we|I|it)\s+\w+)"), ""),
)  # fmt: skip
# A subordinate clause at the start; `_LATER` says what the main clause then begins with.
_FIRST_CLAUSE = re.compile(
    rf"(?P<word>As|When|While|Once|After|Although|Though|Because|Since|Despite the fact that)\s+(?={_SUBJECT}\s+\w+)"
    rf"(?P<clause>[^,;:]+),\s+(?={_SUBJECT}\s+\w+)"
)
_LATER = {"Although": "Nevertheless, ", "Though": "Nevertheless, ", "Despite the fact that": "Nevertheless, ",
          "Because": "Therefore, ", "Since": "Therefore, ", "After": "Afterwards, ", "Once": "Then "}  # fmt: skip
# Phrases that stand on their own, and phrases that may belong to the word before them.
_FREE_PHRASE = re.compile(
    r",?(?<!\s)\s+(?=(?:during|after|before|because of|despite|instead of|according to|as well as|such as|without"
    r"|throughout)\s+\w+)"
    r"|,\s+(?=(?:in|on|at|with|for|by|from|through|under|over|near)\s+\w+)"
)
_PHRASE = re.compile(
    r"(?<!ed)(?<!ing)(?<!\bis)(?<!\bare)(?<!\bwas)(?<!\bwere)(?<!\bbe)(?<!\bup)(?<!\bout)(?<!\s)\s+"
    r"(?=(?:in|on|at|with|for|by|from|near|through|under|over|between|among|within|across|along|against)\s+\w+)"
)
_MIN_WORDS = 3  # of each half
_PLACES_TRIED = 10  # of each kind of break, since every try splits the whole sentence


@dataclass(frozen=True)
class Split(_StructureAttack):
    """Split sentences in two."""

    name: ClassVar[str] = "split"

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        halves = {i: pair for i, piece in enumerate(sentences) if (pair := _halves(piece.body))}
        chosen = set(random.sample(sorted(halves), min(count, len(halves))))
        if count and not chosen:
            raise AttackError("no sentence can be split")
        result: list[Piece] = []
        for i, piece in enumerate(sentences):
            if i in chosen:
                first, second = halves[i]
                result += [Piece(piece.lead, first), Piece(" ", second)]
            else:
                result.append(piece)
        return join(result, tail)


def _halves(sentence: str) -> tuple[str, str] | None:
    """The sentence as two sentences, or None where it cannot be split."""
    if sentence[-1:] not in ".!" or sentence.endswith("..") or re.search('["“”]', sentence):
        return None
    if opening := _FIRST_CLAUSE.match(sentence):
        clause = opening["clause"][0].upper() + opening["clause"][1:]
        later = _LATER.get(opening["word"], "At that time, ")
        if halves := _checked(f"{clause}.", later + _lowercase_start(sentence[opening.end() :])):
            return halves
    breaks = [
        [(match, start) for pattern, start in _CLAUSE_BREAKS for match in pattern.finditer(sentence)],
        *([(match, "This was ") for match in pattern.finditer(sentence)] for pattern in (_FREE_PHRASE, _PHRASE)),
    ]
    for matches in breaks:
        for match, start in nsmallest(
            _PLACES_TRIED, matches, key=lambda pair: abs(pair[0].start() - len(sentence) / 2)
        ):
            first, second = sentence[: match.start()].rstrip(" ,;—–-&"), sentence[match.end() :]
            if halves := _checked(f"{first}.", start + second if start else second[0].upper() + second[1:]):
                return halves
    return None


def _checked(first: str, second: str) -> tuple[str, str] | None:
    """Both sentences, or None where one is too short or the splitter would split them elsewhere."""
    if min(len(re.findall(r"\w+", half)) for half in (first, second)) < _MIN_WORDS:
        return None
    spans = splitter(DEFAULT_SPLITTER).spans(f"{first} {second}")
    return (first, second) if spans == [(0, len(first)), (len(first) + 1, len(first) + 1 + len(second))] else None


# Copying


@dataclass(frozen=True)
class CopyPaste(_PooledAttack):
    """Paste marked sentences into a human text."""

    name: ClassVar[str] = "copy-paste"
    rate: float = setting(0.3, "The share of marked sentences in the new text, which has at least one.")
    runs: int = setting(1, "The number of unbroken runs of marked sentences.")
    pool: Sequence[str] = field(default=(), repr=False)
    """Human texts. For each marked text, one of those that are long enough is drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs < 1:
            raise AttackError(f"the number of runs must be at least 1, not {self.runs}")

    @cached_property
    def _human_texts(self) -> list[list[Piece]]:
        sentence_splitter = splitter(DEFAULT_SPLITTER)
        return [pieces(text, sentence_splitter)[0] for text in self.pool]

    def _change(self, sentences: Sequence[Piece], tail: str, count: int, random: Random) -> str:
        count = max(1, count)
        rest = len(sentences) - count
        long_enough = [human for human in self._human_texts if len(human) >= max(1, rest)]
        if not long_enough:
            raise AttackError(f"no human text of {max(1, rest)} sentences is in the pool; give longer ones")
        host = random.choice(long_enough)
        start = random.randrange(len(host) - rest + 1)
        host = host[start : start + rest]
        # Runs of random lengths of at least 1, `count` sentences together.
        cuts = sorted(random.sample(range(1, count), min(self.runs, count, rest + 1) - 1))
        runs = [end - start for start, end in zip([0, *cuts], [*cuts, count], strict=True)]
        first = random.randrange(len(sentences) - count + 1)
        marked = iter(sentences[first : first + count])
        gaps = sorted(random.sample(range(rest + 1), len(runs)))
        lengths = dict(zip(gaps, runs, strict=True))
        result: list[str] = []
        for i in range(rest + 1):
            result += [next(marked).body for _ in range(lengths.get(i, 0))]
            result += [host[i].body] if i < rest else []
        return " ".join(with_full_stop(body) for body in result)
