"""Attacks on single words: synonyms and typing errors. Of W words at rate r, floor(r W + 0.5) change.

A synonym needs the part of speech and the sense of the word, and no small model tells them with certainty. So a word is only
replaced where there is little doubt: its part of speech follows from how often the texts that WordNet counted use it so and
from the neighbouring words, and a synonym must share the sense that both words mostly have. Other words do not change, nor do
names, code, addresses, and what stands between words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from random import Random
from typing import ClassVar, NamedTuple, TypeVar

from alimark.core.text.language import WORDS, looks_english
from alimark.errors import AttackError, MissingExtra
from alimark.lab.attacks.base import TextAttack, setting
from alimark.lab.attacks.structure import number_to_change
from alimark.lab.attacks.tagging import (
    CLASS,
    LEFT_ALONE,
    SURE,
    Run,
    Spot,
    Token,
    class_of,
    forms,
    readings,
    runs_of,
    spots,
    tokens_of,
)
from alimark.lab.attacks.wordnet import Sense, wordnet

T = TypeVar("T")
Edit = tuple[int, int, str]
"""The start and the end of a part of the text, and what replaces it."""


@dataclass(frozen=True)
class _WordAttack(TextAttack):
    """An attack that changes a share of the words."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:  # false for nan, too
            raise AttackError(f"the rate must be more than 0 and at most 1, not {self.rate}")

    def _sample(self, candidates: Sequence[T], random: Random, none: str) -> list[T]:
        """The share `rate` of the candidates, in order; raises AttackError with the message `none` where there are none."""
        if not candidates:
            raise AttackError(none)
        count = number_to_change(self.rate, len(candidates))
        return [candidates[i] for i in sorted(random.sample(range(len(candidates)), count))]


@dataclass(frozen=True)
class Synonyms(_WordAttack):
    """Replace words by synonyms from WordNet, in the same inflection."""

    name: ClassVar[str] = "synonyms"
    rate: float = setting(0.3, "The share of the words with a synonym that fits beyond doubt.")

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        return ("wn", "words"), ("lemminflect", "words")

    def rewrite(self, text: str, random: Random) -> str:
        for library, extra in self.libraries:
            if find_spec(library) is None:
                raise MissingExtra(library, extra)
        edits: list[Edit] = []
        for choice in self._sample(_choices(text), random, "no word of the text surely has a synonym"):
            word = choice.word
            [synonym] = random.choices(list(choice.synonyms), list(choice.synonyms.values()))
            edits += _article_edits(text, word, synonym)
            edits.append((word.start, word.end, synonym.title() if word.text.istitle() else synonym))
        return _edited(text, edits)


@dataclass(frozen=True)
class Typos(_WordAttack):
    """Make one typing error each in words of four letters or more."""

    name: ClassVar[str] = "typos"
    rate: float = setting(0.1, "The share of the words of four letters or more.")

    def rewrite(self, text: str, random: Random) -> str:
        tokens = [token for token in tokens_of(text) if token.is_word]
        words = [word for token in tokens for word in WORDS.finditer(text, token.start, token.end)]
        long = [word.span() for word in words if len(word[0]) >= 4]
        chosen = self._sample(long, random, "the text holds no word of four letters or more")
        return _edited(text, [(start, end, _with_typo(text[start:end], random)) for start, end in chosen])


def _edited(text: str, edits: Iterable[Edit]) -> str:
    parts, end_of_last = [], 0
    for start, end, replacement in edits:
        parts += [text[end_of_last:start], replacement]
        end_of_last = end
    return "".join([*parts, text[end_of_last:]])


# Typos.

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _neighbouring_keys() -> dict[str, str]:
    """The keys that touch each key: each row of a keyboard begins about half a key to the right of the row above."""
    neighbours = {}
    for y, row in enumerate(_ROWS):
        for x, key in enumerate(row):
            near = ((y, x - 1), (y, x + 1), (y - 1, x), (y - 1, x + 1), (y + 1, x - 1), (y + 1, x))
            neighbours[key] = "".join(_ROWS[v][u] for v, u in near if 0 <= v < len(_ROWS) and 0 <= u < len(_ROWS[v]))
    return neighbours | {key.upper(): near.upper() for key, near in neighbours.items()}


_NEIGHBOURS = _neighbouring_keys()


def _with_typo(word: str, random: Random) -> str:
    """The word with one typing error, but not in the first letter, where people seldom make one."""
    positions = range(1, len(word))
    swapped = [(i, i + 2, word[i + 1] + word[i]) for i in positions[:-1] if word[i] != word[i + 1]]
    omitted = [(i, i + 1, "") for i in positions]
    doubled = [(i, i + 1, word[i] * 2) for i in positions]
    mistyped = [(i, i + 1, key) for i in positions for key in _NEIGHBOURS.get(word[i], "")]
    kinds: list[list[Edit]] = [kind for kind in (swapped, omitted, doubled, mistyped) if kind]
    return _edited(word, [random.choice(random.choice(kinds))])


# Synonyms.


class Choice(NamedTuple):
    """A word that can be replaced, and its synonyms."""

    word: Token
    synonyms: Mapping[str, int]
    """Each synonym, and how often it is used in this sense."""


_MIN_SHARE, _MIN_MUTUAL, _MIN_USES = 0.3, 0.15, 0.02
"""Minima: the share of the word's uses that are in the common sense; this share times the synonym's share; and the uses of the
synonym in the common sense for each use of the word."""
# Sentence frames of verbs, by their numbers in WordNet.
_TRANSITIVE = frozenset([5, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 31])
_INTRANSITIVE = frozenset([1, 2, 3, 4, 22])
_TO_INFINITIVE, _THAT = frozenset([28]), frozenset([26])
_WRONG_FRAMES = {
    _TRANSITIVE: frozenset("dispose pertain react recede refer relate reply respond retreat search wait".split()),
    _INTRANSITIVE: frozenset("complete describe inhabit populate report".split()),
}
"""Verbs that WordNet lists with these frames although they are not used so."""
_OBJECTS = ("definite", "indefinite", "object", "quantity", "number", "name", "NOUN", "ADJ")
_NEUTRAL = frozenset(
    "by than during after before until since without within among near behind beyond inside outside across along around "
    "above below under between despite including following".split()
)
"""Prepositions that no verb or adjective requires."""


def _choices(text: str) -> list[Choice]:
    runs = runs_of(text)
    tokens = [token for run in runs for token in run.tokens if token.is_word]
    if not looks_english(" ".join(token.text for token in tokens)):
        raise AttackError("the text is not English prose, which WordNet is for")
    names = {token.lower for run in runs for token in run.tokens[run.opens :] if token.text[0].isupper()}
    return [choice for run in runs for choice in _choices_in(run, names)]


def _choices_in(run: Run, names: set[str]) -> Iterator[Choice]:
    present = {token.lower for token in run.tokens}
    in_phrase = _in_phrases(run.tokens)
    for spot in spots(run):
        word, reading = run.tokens[spot.at], spot.reading
        if reading.share < SURE or spot.at in in_phrase or reading.lemma in LEFT_ALONE or not _is_replaceable(spot):
            continue
        if not word.text.islower() and (word.lower in names or not _starts_sentence(run, spot)):
            continue
        uses = _synonyms(reading.lemma, reading.part, _frames(spot))
        forms = {form: uses[lemma] for lemma in uses if (form := _form(lemma, spot))}
        synonyms = {form: forms[form] for form in forms.keys() - present if not _spelt_alike(form, word.lower)}
        if synonyms:
            yield Choice(word, dict(sorted(synonyms.items())))


def _starts_sentence(run: Run, spot: Spot) -> bool:
    """Whether a capital letter only shows the start of the sentence; a noun without anything before it may be a name."""
    return run.opens and spot.at == 0 and run.tokens[0].text.istitle() and "NN" not in spot.reading.tags


def _in_phrases(tokens: Sequence[Token]) -> set[int]:
    """The indices of words in phrases that WordNet lists: "high schools", "carried out", "point of view"."""
    phrases = wordnet().phrases
    indices: set[int] = set()
    lemmas = [{token.lower, *(lemma for lemma, _, _ in readings(token.lower))} for token in tokens]
    for start in range(len(tokens)):
        for end in range(start + 1, min(start + 4, len(tokens))):
            middle = [token.lower for token in tokens[start + 1 : end]]
            if any("_".join([first, *middle, last]) in phrases for first in lemmas[start] for last in lemmas[end]):
                indices.update(range(start, end + 1))
    return indices


def _is_replaceable(spot: Spot) -> bool:
    """Whether the neighbouring words allow another word here."""
    part = spot.reading.part
    if part == "NOUN":  # not in a term of several nouns; after "is" without an article it may be an adjective
        alone = spot.previous not in ("NOUN", "name", "be") and spot.following not in ("NOUN", "name", "number")
        return alone and not _looks_plural(spot.reading.lemma)
    if part in ("VERB", "ADJ") and spot.following == "preposition" and spot.next not in _NEUTRAL:
        return False  # the preposition may belong to this word, and its synonyms may need another one
    if part == "ADJ":
        return spot.next not in ("to", "that")
    return part == "ADV" or _verb_is_replaceable(spot)


def _verb_is_replaceable(spot: Spot) -> bool:
    tags = spot.reading.tags
    if "VBG" in tags:  # otherwise it may be a noun or an adjective
        return spot.previous == "be" or (
            spot.following in _OBJECTS and spot.previous in ("", "start", "preposition", "VERB")
        )
    if "VBN" in tags and "VBD" not in tags:
        return (spot.previous in ("be", "have") and spot.next != "to") or spot.next == "by"
    after_next = class_of(spot.tokens[spot.at + 2]) if spot.at + 2 < len(spot.tokens) else ""
    return spot.following != "ADJ" or after_next in ("NOUN", "ADJ")  # otherwise a verb such as "seem"


def _frames(spot: Spot) -> frozenset[int]:
    """The sentence frames that fit here; a verb must have one of them."""
    if spot.reading.part != "VERB":
        return frozenset()
    if spot.reading.tags == ("VBN",) and spot.previous != "have":
        return _TRANSITIVE
    if spot.next == "to":
        return _TO_INFINITIVE
    if spot.next == "that":
        return _THAT
    return _TRANSITIVE if spot.following in _OBJECTS else _INTRANSITIVE


@cache
def _synonyms(lemma: str, part: str, frames: frozenset[int]) -> dict[str, int]:
    """Lemmas that can replace this one in most of its uses, and how often each is used in the shared senses."""
    known = wordnet()
    senses = known.senses(lemma, part)
    shared: dict[str, list[tuple[Sense, Sense]]] = defaultdict(list)
    for sense in senses:
        members = known.members(part, sense.synset) if sense.rank <= 2 else []
        word = next((member for member in members if member.lemma == lemma), None)
        if word is None or (frames and not word.frames & frames):
            continue
        for other in members:
            if other is word or other.position != word.position or not word.frames & frames <= other.frames:
                continue
            if _can_be_synonym(other.lemma, lemma) and other.lemma not in _WRONG_FRAMES.get(frames, ()):
                theirs = known.senses(other.lemma, part)
                shared[other.lemma].append((sense, next(their for their in theirs if their.synset == sense.synset)))
    close = {name: pairs for name, pairs in shared.items() if _close(lemma, name, part, pairs)}
    return {name: sum(their.uses for _, their in pairs) for name, pairs in close.items()}


def _close(lemma: str, name: str, part: str, pairs: Sequence[tuple[Sense, Sense]]) -> bool:
    """Whether both lemmas are mostly used in the senses that they share."""
    ours, theirs = (sum(sense.weight for sense in wordnet().senses(word, part)) for word in (lemma, name))
    share = sum(our.weight for our, _ in pairs) / ours
    mutual = share * sum(their.weight for _, their in pairs) / theirs
    usual = sum(their.uses for _, their in pairs) > _MIN_USES * sum(our.uses for our, _ in pairs)
    return share >= _MIN_SHARE and mutual >= _MIN_MUTUAL and usual


def _can_be_synonym(name: str, lemma: str) -> bool:
    """Whether `name` is a usual word that is not derived from `lemma`, such as "historical" from "historic"."""
    if not (name.isalpha() and name.islower() and len(name) > 2) or name in CLASS or name in LEFT_ALONE:
        return False
    derived = name.startswith(lemma) or lemma.startswith(name) or (name[:3] == lemma[:3] and name.endswith("ing"))
    return not derived and not _looks_plural(name) and name.endswith("ly") >= lemma.endswith("ly")


def _looks_plural(lemma: str) -> bool:
    """Whether a noun looks like a plural, such as "news" or "morals", so that the number of its verb is unclear."""
    return lemma.endswith("s") and not lemma.endswith(("ss", "us", "is"))


def _spelt_alike(word: str, other: str) -> bool:
    """Whether two words may be spellings of the same word, such as "realise" and "realize", or "theatre" and "theater"."""
    same = next((i for i, (a, b) in enumerate(zip(word, other)) if a != b), min(len(word), len(other)))
    one_letter = word[same + 1 :] in (other[same:], other[same + 1 :]) or word[same:] == other[same + 1 :]
    return one_letter or sorted(word) == sorted(other)


def _form(lemma: str, spot: Spot) -> str:
    """The lemma in the inflection that is needed here; empty where that is not clear."""
    part, tags = spot.reading.part, spot.reading.tags
    inflections = forms(lemma, part)
    spellings = {inflections.get(tag, ("",))[0] for tag in tags}
    if len(spellings) != 1 or (part == "NOUN" and not _counts_alike(lemma, spot)):
        return ""
    by_degrees = spot.at > 0 and spot.tokens[spot.at - 1].lower in ("more", "most", "less", "least")
    return "" if by_degrees and {"JJR", "RBR"} & inflections.keys() else spellings.pop()  # not "more big"


def _counts_alike(lemma: str, spot: Spot) -> bool:
    """Whether the noun can be plural, or be without an article, where the noun that it replaces is."""
    plurals, replaced_plurals = (forms(name, "NOUN").get("NNS", ()) for name in (lemma, spot.reading.lemma))
    determiners = [CLASS[token.lower] for token in spot.tokens[max(0, spot.at - 3) : spot.at] if token.lower in CLASS]
    determiner = determiners[-1] if determiners else ""
    if spot.reading.tags == ("NNS",) or determiner == "indefinite":
        return lemma not in plurals
    return determiner == "definite" or lemma in plurals or spot.reading.lemma not in replaced_plurals


_ARTICLE = re.compile(r"(?<!\w)an?(?=[\s\"'“‘(\[*_]+$)", re.IGNORECASE)
_YOU_SOUND = r"eu|ewe|ub[ie]|uk|unan|uni(?![mn])|ur[aeiou]|us[aeiu]|ut[eio]"
_VOWEL_SOUND = re.compile(rf"(?!{_YOU_SOUND}|one(?!rous)|once)[aeiou]|heir|honest|hono|hour")


def _article_edits(text: str, word: Token, synonym: str) -> list[Edit]:
    """The change of "a" to "an", or back, that the synonym makes necessary."""
    article = _ARTICLE.search(text, max(0, word.start - 8), word.start)
    wants_n = _VOWEL_SOUND.match(synonym) is not None
    if article is None or wants_n == (_VOWEL_SOUND.match(word.lower) is not None):
        return []
    return [(*article.span(), article[0][0] + "n" * wants_n)]
