"""Attacks on single words: synonyms, and slips of the fingers. Of W words at rate r, floor(r W + 0.5) are touched.

A synonym needs the word's part of speech and its sense, and nothing light tells these for sure. So a word is replaced only
where there is little doubt: its part of speech follows from how often WordNet's tagged texts use it so and from the words
beside it, and a synonym counts only where it shares the sense that both words mostly have. All other words stay, as do
names, code, addresses, and whatever stands between the words.
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

from alimark.attacks.base import TextAttack, setting
from alimark.attacks.structure import touched
from alimark.attacks.tagging import (
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
from alimark.attacks.wordnet import Sense, wordnet
from alimark.errors import AttackError, MissingExtra
from alimark.text.language import WORDS, looks_english

T = TypeVar("T")
Edit = tuple[int, int, str]
"""From where to where of the text, and what stands there then."""


@dataclass(frozen=True)
class Synonyms(TextAttack):
    """Replace words by synonyms from WordNet, in the same inflection."""

    name: ClassVar[str] = "synonyms"
    rate: float = setting(0.3, "Share of the words that surely have a synonym.")

    def __post_init__(self) -> None:
        _check(self.rate)

    def rewrite(self, text: str, random: Random) -> str:
        for library in ("wn", "lemminflect"):
            if find_spec(library) is None:
                raise MissingExtra(library, "words")
        edits: list[Edit] = []
        for choice in _sampled(_choices(text), self.rate, random, "no word of the text surely has a synonym"):
            word = choice.word
            [synonym] = random.choices(list(choice.synonyms), list(choice.synonyms.values()))
            edits += _article_mended(text, word, synonym)
            edits.append((word.start, word.end, synonym.title() if word.text.istitle() else synonym))
        return _edited(text, edits)


@dataclass(frozen=True)
class Typos(TextAttack):
    """Make one slip of the fingers each in words of four letters or more."""

    name: ClassVar[str] = "typos"
    rate: float = setting(0.1, "Share of the words of four letters or more.")

    def __post_init__(self) -> None:
        _check(self.rate)

    def rewrite(self, text: str, random: Random) -> str:
        tokens = [token for token in tokens_of(text) if token.is_word]
        words = [word for token in tokens for word in WORDS.finditer(text, token.start, token.end)]
        long = [word.span() for word in words if len(word[0]) >= 4]
        chosen = _sampled(long, self.rate, random, "the text holds no word of four letters or more")
        return _edited(text, [(start, end, _slip(text[start:end], random)) for start, end in chosen])


def _check(rate: float) -> None:
    if not 0 < rate <= 1:  # nan, too
        raise AttackError(f"the rate is a share, more than 0 and at most 1, not {rate}")


def _sampled(places: Sequence[T], rate: float, random: Random, none: str) -> list[T]:
    if not places:
        raise AttackError(none)
    return [places[i] for i in sorted(random.sample(range(len(places)), touched(rate, len(places))))]


def _edited(text: str, edits: Iterable[Edit]) -> str:
    parts, at = [], 0
    for start, end, new in edits:
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


# Typos.

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _keys_beside() -> dict[str, str]:
    """The keys that touch each key: every row of a keyboard begins about half a key to the right of the one above."""
    found = {}
    for y, row in enumerate(_ROWS):
        for x, key in enumerate(row):
            near = ((y, x - 1), (y, x + 1), (y - 1, x), (y - 1, x + 1), (y + 1, x - 1), (y + 1, x))
            found[key] = "".join(_ROWS[v][u] for v, u in near if 0 <= v < len(_ROWS) and 0 <= u < len(_ROWS[v]))
    return found | {key.upper(): near.upper() for key, near in found.items()}


_BESIDE = _keys_beside()


def _slip(word: str, random: Random) -> str:
    """The word with one slip, not in its first letter, which people seldom get wrong."""
    places = range(1, len(word))
    kinds = (
        [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in places[:-1]],
        [word[:i] + word[i + 1 :] for i in places],
        [word[: i + 1] + word[i:] for i in places],
        [word[:i] + key + word[i + 1 :] for i in places for key in _BESIDE.get(word[i], "")],
    )
    changes = [[slip for slip in kind if slip != word] for kind in kinds]
    return random.choice(random.choice([kind for kind in changes if kind]))


# Synonyms.


class Choice(NamedTuple):
    """A word that can be replaced, and by what."""

    word: Token
    synonyms: Mapping[str, int]
    """How often each is used in this sense."""


_LEAST_SHARED, _LEAST_MUTUAL, _LEAST_USED = 0.3, 0.15, 0.02
"""The share of a word's uses in the common sense; that share times the synonym's; the synonym's uses for one of the word."""
_TRANSITIVE = frozenset([5, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 31])
_INTRANSITIVE = frozenset([1, 2, 3, 4, 22])
_TO_INFINITIVE, _THAT = frozenset([28]), frozenset([26])
_NOT_SO = {
    _TRANSITIVE: frozenset("dispose pertain react recede refer relate reply respond retreat search wait".split()),
    _INTRANSITIVE: frozenset("complete describe inhabit populate report".split()),
}
"""Verbs that WordNet has in these frames and people have not."""
_OBJECTS = ("definite", "indefinite", "object", "quantity", "number", "name", "NOUN", "ADJ")
_NEUTRAL = frozenset(
    "by than during after before until since without within among near behind beyond inside outside across along around "
    "above below under between despite including following".split()
)
"""Prepositions that no word calls for in particular."""


def _choices(text: str) -> list[Choice]:
    runs = runs_of(text)
    tokens = [token for run in runs for token in run.tokens if token.is_word]
    if not looks_english(" ".join(token.text for token in tokens)):
        raise AttackError("the text is not English prose, which WordNet is for")
    names = {token.lower for run in runs for token in run.tokens[run.opens :] if token.text[0].isupper()}
    return [choice for run in runs for choice in _choices_in(run, names)]


def _choices_in(run: Run, names: set[str]) -> Iterator[Choice]:
    said = {token.lower for token in run.tokens}
    bound = _bound(run.tokens)
    for spot in spots(run):
        word, reading = run.tokens[spot.at], spot.reading
        if reading.share < SURE or spot.at in bound or reading.lemma in LEFT_ALONE or not _has_room(spot):
            continue
        if not word.text.islower() and (word.lower in names or not _starts_sentence(run, spot)):
            continue
        uses = _synonyms(reading.lemma, reading.part, _frames(spot))
        forms = {form: uses[lemma] for lemma in uses if (form := _form(lemma, spot))}
        synonyms = {form: forms[form] for form in forms.keys() - said if not _spelt_alike(form, word.lower)}
        if synonyms:
            yield Choice(word, dict(sorted(synonyms.items())))


def _starts_sentence(run: Run, spot: Spot) -> bool:
    """With a capital for this reason alone: a single noun with nothing before it is rather a name."""
    return run.opens and spot.at == 0 and run.tokens[0].text.istitle() and "NN" not in spot.reading.tags


def _bound(tokens: Sequence[Token]) -> set[int]:
    """Places of words in phrases that WordNet has as such: "high schools", "carried out", "point of view"."""
    phrases = wordnet().phrases
    found: set[int] = set()
    lemmas = [{token.lower, *(lemma for lemma, _, _ in readings(token.lower))} for token in tokens]
    for start in range(len(tokens)):
        for end in range(start + 1, min(start + 4, len(tokens))):
            middle = [token.lower for token in tokens[start + 1 : end]]
            if any("_".join([one, *middle, other]) in phrases for one in lemmas[start] for other in lemmas[end]):
                found.update(range(start, end + 1))
    return found


def _has_room(spot: Spot) -> bool:
    """Whether another word could stand here, for all that its neighbours show."""
    part = spot.reading.part
    if part == "NOUN":  # nouns in a row are a term, and one behind "is" without an article is rather an adjective
        alone = spot.behind not in ("NOUN", "name", "be") and spot.before not in ("NOUN", "name", "number")
        return alone and not _looks_plural(spot.reading.lemma)
    if part in ("VERB", "ADJ") and spot.before == "preposition" and spot.next not in _NEUTRAL:
        return False  # each calls for prepositions of its own, which its synonyms do not share
    if part == "ADJ":
        return spot.next not in ("to", "that")
    return part == "ADV" or _verb_has_room(spot)


def _verb_has_room(spot: Spot) -> bool:
    tags = spot.reading.tags
    if "VBG" in tags:  # else rather a noun or an adjective
        return spot.behind == "be" or (spot.before in _OBJECTS and spot.behind in ("", "start", "preposition", "VERB"))
    if "VBN" in tags and "VBD" not in tags:
        return (spot.behind in ("be", "have") and spot.next != "to") or spot.next == "by"
    after_next = class_of(spot.tokens[spot.at + 2]) if spot.at + 2 < len(spot.tokens) else ""
    return spot.before != "ADJ" or after_next in ("NOUN", "ADJ")  # else a verb such as "seem"


def _frames(spot: Spot) -> frozenset[int]:
    """The frames of which a verb here must have one."""
    if spot.reading.part != "VERB":
        return frozenset()
    if spot.reading.tags == ("VBN",) and spot.behind != "have":
        return _TRANSITIVE
    if spot.next == "to":
        return _TO_INFINITIVE
    if spot.next == "that":
        return _THAT
    return _TRANSITIVE if spot.before in _OBJECTS else _INTRANSITIVE


@cache
def _synonyms(lemma: str, part: str, frames: frozenset[int]) -> dict[str, int]:
    """Lemmas that can mostly stand for this one, and how often each is used so."""
    known = wordnet()
    senses = known.senses(lemma, part)
    shared: dict[str, list[tuple[Sense, Sense]]] = defaultdict(list)
    for sense in senses:
        members = known.members(part, sense.synset) if sense.rank <= 2 else []
        own = next((member for member in members if member.lemma == lemma), None)
        if own is None or (frames and not own.frames & frames):
            continue
        for other in members:
            if other is own or other.position != own.position or not own.frames & frames <= other.frames:
                continue
            if _can_be_synonym(other.lemma, lemma) and other.lemma not in _NOT_SO.get(frames, ()):
                theirs = known.senses(other.lemma, part)
                shared[other.lemma].append((sense, next(their for their in theirs if their.synset == sense.synset)))
    close = {name: pairs for name, pairs in shared.items() if _close(lemma, name, part, pairs)}
    return {name: sum(their.uses for _, their in pairs) for name, pairs in close.items()}


def _close(lemma: str, name: str, part: str, pairs: Sequence[tuple[Sense, Sense]]) -> bool:
    """Whether the senses that two lemmas share are much of what both are used for."""
    ours, theirs = (sum(sense.weight for sense in wordnet().senses(word, part)) for word in (lemma, name))
    share = sum(our.weight for our, _ in pairs) / ours
    mutual = share * sum(their.weight for _, their in pairs) / theirs
    usual = sum(their.uses for _, their in pairs) > _LEAST_USED * sum(our.uses for our, _ in pairs)
    return share >= _LEAST_SHARED and mutual >= _LEAST_MUTUAL and usual


def _can_be_synonym(name: str, lemma: str) -> bool:
    """Whether it is a usual word, and not one made of the other, such as "historical" or "journeying"."""
    if not (name.isalpha() and name.islower() and len(name) > 2) or name in CLASS or name in LEFT_ALONE:
        return False
    akin = name.startswith(lemma) or lemma.startswith(name) or (name[:3] == lemma[:3] and name.endswith("ing"))
    return not akin and not _looks_plural(name) and name.endswith("ly") >= lemma.endswith("ly")


def _looks_plural(lemma: str) -> bool:
    """As "news", "grounds" and "morals" do, of which one cannot know what verb they take."""
    return lemma.endswith("s") and not lemma.endswith(("ss", "us", "is"))


def _spelt_alike(one: str, other: str) -> bool:
    """Whether they are rather one word: "realise" and "realize", "theatre" and "theater", "afterward" and "afterwards"."""
    same = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    one_letter = one[same + 1 :] in (other[same:], other[same + 1 :]) or one[same:] == other[same + 1 :]
    return one_letter or sorted(one) == sorted(other)


def _form(lemma: str, spot: Spot) -> str:
    """The lemma in the form that the spot asks for, or nothing."""
    part, tags = spot.reading.part, spot.reading.tags
    found = forms(lemma, part)
    spellings = {found.get(tag, ("",))[0] for tag in tags}
    if len(spellings) != 1 or (part == "NOUN" and not _counts_alike(lemma, spot)):
        return ""
    by_degrees = spot.at > 0 and spot.tokens[spot.at - 1].lower in ("more", "most", "less", "least")
    return "" if by_degrees and {"JJR", "RBR"} & found.keys() else spellings.pop()  # not "more big"


def _counts_alike(lemma: str, spot: Spot) -> bool:
    """Whether the noun can have a plural, or be without an article, where the one at the spot is so."""
    plurals, own_plurals = (forms(name, "NOUN").get("NNS", ()) for name in (lemma, spot.reading.lemma))
    determiners = [CLASS[token.lower] for token in spot.tokens[max(0, spot.at - 3) : spot.at] if token.lower in CLASS]
    determiner = determiners[-1] if determiners else ""
    if spot.reading.tags == ("NNS",) or determiner == "indefinite":
        return lemma not in plurals
    return determiner == "definite" or lemma in plurals or spot.reading.lemma not in own_plurals


_ARTICLE = re.compile(r"(?<!\w)an?(?=[\s\"'“‘(\[*_]+$)", re.IGNORECASE)
_YOU_SOUND = r"eu|ewe|ub[ie]|uk|unan|uni(?![mn])|ur[aeiou]|us[aeiu]|ut[eio]"
_VOWEL_SOUND = re.compile(rf"(?!{_YOU_SOUND}|one(?!rous)|once)[aeiou]|heir|honest|hono|hour")


def _article_mended(text: str, word: Token, synonym: str) -> list[Edit]:
    article = _ARTICLE.search(text, max(0, word.start - 8), word.start)
    wants_n = _VOWEL_SOUND.match(synonym) is not None
    if article is None or wants_n == (_VOWEL_SOUND.match(word.lower) is not None):
        return []
    return [(*article.span(), article[0][0] + "n" * wants_n)]
