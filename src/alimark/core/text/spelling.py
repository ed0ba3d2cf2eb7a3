"""Mends the spelling of a text with many strange words: vowels dropped, letters shuffled, blanks moved, pig latin, typos.

The dictionary is the list of frequent words with counts that steering has. Every way of mending is tried on the beginning of
the text, and the one whose words are the likeliest English is taken. A text of which few words are strange, or that no way
turns into likely English, stays as it is, and so does one of another language. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from typing import NamedTuple

import numpy as np

_LEAST, _MOST = 200, 200_000
"""A text with fewer letters, or more characters, is not mended."""
_SAMPLE = 4_000
"""The way of mending is chosen by so many characters from the start of a text."""
_STRANGE = 2.6
"""A text is mended where its words cost so much ..."""
_MISSPELT = 0.04
"""... or where so many of its longer words are one change away from a frequent word, which typos are and rare words are not."""
_FREQUENT = 10.0
"""The most that a frequent word costs."""
_LIKELY, _GAIN = 2.5, 0.97
"""The words of the mended text cost at most so much, and at most so much of what those of the text cost."""
_LONGEST = 20
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"(?<![A-Za-z'’])[A-Za-z]+")
_RUN = re.compile(r"(?<=[a-z,])(?=[A-Z])|[A-Za-z][a-z]*")
_VOWELS = re.compile("[aeiou]")
_BLANKS = re.compile(r"(?<=[A-Za-z,])[ \t]+(?=[A-Za-z])")
_SIGN = re.compile(r"(?<=[A-Za-z])(?:_|[^\w\s'’.,;:!?])|(?:_|[^\w\s'’.,;:!?])(?=[A-Za-z])")
_ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "er", "r", "ers", "y", "n", "al", "ness")
_STARTS = ("un", "re", "in", "im", "non", "over", "out", "mis", "dis", "pre", "co")

Way = Callable[[str], Iterable[str]]
"""From a word in small letters to words that it may stand for."""


class Dictionary(NamedTuple):
    """Frequent words: what each costs, and words by their consonants and by their letters."""

    cost: dict[str, float]
    consonants: dict[str, list[str]]
    shuffled: dict[str, list[str]]

    def price(self, word: str) -> float:
        """The cost of a word; an unknown one costs more than two known ones of its length."""
        return self.cost.get(word) or 8.0 + 3.0 * len(word)

    def best(self, words: Iterable[str], default: str) -> str:
        """The most frequent of some words."""
        return min((word for word in words if word in self.cost), key=self.cost.__getitem__, default=default)


@cache
def dictionary() -> Dictionary:
    """The words of `core/generation/word_vectors.npz`, without single letters that are no words."""
    path = resources.files("alimark.core.generation").joinpath("word_vectors.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        name = next(name for name in content.files if name.endswith("/words"))
        words = content[name].tobytes().decode().split("\n")
        counts = content[name.replace("/words", "/counts")]
    costs = np.log(counts.sum()) - np.log(counts)
    cost = {word: float(c) for word, c in zip(words, costs, strict=True) if len(word) > 1 or word in "ai"}
    consonants, shuffled = defaultdict(list), defaultdict(list)
    for word in cost:
        consonants[_VOWELS.sub("", word)].append(word)
        shuffled[_signature(word)].append(word)
    return Dictionary(cost, consonants, shuffled)


def _signature(word: str) -> str:
    return word[0] + "".join(sorted(word[1:-1])) + word[-1]


def mend(text: str, counts: Counter[str]) -> str:
    """Mends the words of a text in the way that fits best, where many of them are strange.

    Example:
        >>> mend("Ethay amplay entway outway andway obodynay awsay itway. " * 8, Counter())[:38]
        'The lamp went out and nobody saw it. T'
    """
    if len(text) > _MOST or not _is_strange(_words(text[:_SAMPLE])):
        return text
    plain = _without_sign(text)
    sample = plain[:_SAMPLE]
    way = min(_ways(sample), key=lambda way: _price(_words(way(sample))))
    mended = way(plain)
    if _price(_words(mended)) > min(_LIKELY, _GAIN * _price(_words(text))):
        return text
    counts["spelling"] += (Counter(_WORD.findall(mended)) - Counter(_WORD.findall(text))).total()
    return mended


def _without_sign(text: str) -> str:
    """The text without the sign that stands beside letters in about every third word."""
    (sign, times), *_ = Counter(_SIGN.findall(text)).most_common(1) or [("", 0)]
    return text.replace(sign, "") if 18 * times > len(text) else text


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _price(words: Sequence[str]) -> float:
    """What words cost for each of their letters: about 2 where they are English prose, and over 3 in other languages."""
    return sum(map(dictionary().price, words)) / max(1, sum(map(len, words)))


def _is_strange(words: list[str]) -> bool:
    """Whether the words are unlikely English, or many of the longer ones are nearly frequent words."""
    if sum(map(len, words)) < _LEAST:
        return False
    if _price(words) >= _STRANGE:
        return True
    longer = [word for word in words if len(word) >= 4]
    unknown = [word for word in longer if not _is_derived(word)]
    if len(unknown) < _MISSPELT * len(longer):
        return False
    price, corrected = dictionary().price, map(_corrected, unknown)
    return sum(price(word) < _FREQUENT for word in corrected) > _MISSPELT * len(longer)


def _is_derived(word: str) -> bool:
    """Whether a word is in the dictionary, or derived or put together from words there."""
    known = dictionary().cost
    if word in known or len(word) > _LONGEST:
        return word in known
    stems = [word[: -len(end)] for end in _ENDINGS if word.endswith(end)]
    if any(stem in known or stem + "e" in known or stem[:-1] in known or stem[:-1] + "y" in known for stem in stems):
        return True
    parts = [(word[:cut], word[cut:]) for cut in range(2, len(word) - 2)]
    return any(last in known and (first in _STARTS or (len(first) > 2 and first in known)) for first, last in parts)


def _ways(sample: str) -> Iterator[Callable[[str], str]]:
    """Ways to read a text that may fit its beginning."""
    known, words = dictionary(), _words(sample)
    yield str
    if not sample[:1].isalnum():  # else each word is reversed by itself
        yield lambda text: text[::-1]
    ways: list[Way] = [
        lambda word: (word[::-1],),
        lambda word: (word[-1] + word[:-1],),
        lambda word: (word[1:] + word[0],),
        lambda word: (word[::2] if word[::2] == word[1::2] else re.sub(r"(.)\1+", r"\1", word),),
        lambda word: known.shuffled.get(_signature(word), ()),
        lambda word: (word if _is_derived(word) else _corrected(word),),
        _with_other_vowels,
        partial(_with_vowels, begin=10 * sum(word[0] in "aeiou" for word in words) > len(words)),
        *(partial(_from_pig_latin, mark=mark) for mark in ("w", "y", "h", "")),
        *(partial(_shifted, by=by) for by in range(1, 26)),
    ]
    for size in (2, 3):
        parts = Counter(word[i : i + size] for word in words for i in range(len(word) - size + 1))
        ways += [partial(_without, part=part) for part, _ in parts.most_common(4)]
    for way in ways:
        yield partial(_by_word, way)
    yield _segmented
    yield lambda text: _segmented(_BLANKS.sub("", text))


def _by_word(way: Way, text: str) -> str:
    """The text with each word replaced by the most frequent word that it may stand for, or by the first one."""
    found: dict[str, str] = {}

    def read(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word not in found:
            words = list(way(word))
            found[word] = dictionary().best(words, words[0] if words else word)
        if match[0].islower():
            return found[word]
        return found[word].upper() if len(word) > 1 and match[0].isupper() else found[word].capitalize()

    return _WORD.sub(read, text)


def _shifted(word: str, by: int) -> tuple[str]:
    return (word.translate(str.maketrans(_LETTERS, _LETTERS[by:] + _LETTERS[:by])),)


def _without(word: str, part: str) -> tuple[str]:
    """A word without the syllable that a secret language puts into all words."""
    return (word.replace(part, "") or word,)


def _from_pig_latin(word: str, mark: str) -> Iterator[str]:
    stem = word.removesuffix("ay")
    if len(stem) > len(mark) and stem != word:
        yield from (stem[-size:] + stem[:-size] for size in range(1, min(5, len(stem))))
        if stem.endswith(mark):
            yield stem.removesuffix(mark)


def _corrected(word: str) -> str:
    """The most frequent word that is one letter more, less, other or swapped away; else the word itself."""
    if len(word) > _LONGEST:
        return word
    pairs = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    nearby = {first + last[1:] for first, last in pairs}
    nearby |= {first + last[1] + last[0] + last[2:] for first, last in pairs if len(last) > 1}
    nearby |= {first + letter + last[cut:] for first, last in pairs for letter in _LETTERS for cut in (0, 1)}
    return dictionary().best(nearby, word)


def _with_other_vowels(word: str) -> Iterator[str]:
    known = dictionary().consonants.get(_VOWELS.sub("", word), ())
    return (other for other in known if len(other) == len(word))


def _with_vowels(word: str, begin: bool) -> Iterator[str]:
    """The words that give this one when some of their vowels are left out, not the first letter where vowels begin words."""
    for other in dictionary().consonants.get(_VOWELS.sub("", word), ()):
        letters = iter(other)
        if all(letter in letters for letter in word) and not (begin and other[0] != word[0]):
            yield other


def _segmented(text: str) -> str:
    """The text with blanks where words end: the likeliest words of each run of letters, and before capitals."""
    return _RUN.sub(lambda match: " ".join(_parts(match[0])) or " ", text)


def _parts(run: str) -> list[str]:
    price, letters = dictionary().price, run.lower()
    costs, starts = [0.0], [0]
    for end in range(1, len(run) + 1):
        options = ((costs[start] + price(letters[start:end]), start) for start in range(max(0, end - _LONGEST), end))
        cost, start = min(options)
        costs.append(cost)
        starts.append(start)
    parts, end = [], len(run)
    while end:
        parts.append(run[starts[end] : end])
        end = starts[end]
    return parts[::-1]
