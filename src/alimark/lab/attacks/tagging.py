"""Finds the words of a text and estimates their part of speech from word counts and neighbouring words.

It is hand-written because the taggers of libraries need models that are too large for this one attack.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.lab.attacks.wordnet import wordnet

# Tokens.

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


class Token(NamedTuple):
    """A word, a number, or something that is not prose, with its place in the text."""

    text: str
    start: int
    end: int
    is_word: bool

    @property
    def lower(self) -> str:
        """The token in small letters, with straight apostrophes."""
        return self.text.lower().replace("’", "'")


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, in order."""
    return [Token(m[0], m.start(), m.end(), m["word"] is not None) for m in _TOKEN.finditer(text)]


class Run(NamedTuple):
    """A sequence of tokens of one sentence with only white space between them."""

    tokens: list[Token]
    opens: bool
    """Whether a sentence starts with the first token."""


def runs_of(text: str) -> list[Run]:
    """The tokens of a text, in runs that end at punctuation and at the ends of sentences."""
    starts = {start for start, _ in splitter(DEFAULT_SPLITTER).spans(text)}
    runs: list[Run] = []
    end = 0
    for token in tokens_of(text):
        opens = any(position in starts for position in range(end, token.start + 1))
        if not runs or opens or text[end : token.start].strip():
            runs.append(Run([], opens))
        runs[-1].tokens.append(token)
        end = token.end
    return runs


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
CLASS = {word: kind for kind, words in _FUNCTION.items() for word in words.split()}
_ENDINGS = {"'ll": "modal", "'d": "modal", "'re": "be", "'m": "be", "'ve": "have", "'s": "definite"}

# Lemmas whose synonyms seldom fit: parts of fixed phrases, light verbs, units, forms of address. Then lemmas that are seldom a
# good synonym although WordNet's counts suggest it, and offensive words, which must not be put into a text.
LEFT_ALONE = frozenset(
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
"""The share of each form among all uses of a noun or a verb."""

# Weights of a noun, an adjective, an adverb, and a verb's base, past, -s, -ing and participle form after each class of words.
_AFTER = {
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
# The same weights before each class of words.
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
_NO_PREFERENCE = (1.0,) * 8
SURE, _LIKELY = 0.85, 0.7
"""Minimum shares of a reading: to replace the word, and to use the reading when the neighbouring words are classified."""


class Reading(NamedTuple):
    """A possible part of speech and lemma of a word."""

    part: str
    lemma: str
    tags: tuple[str, ...]
    """The inflections of the lemma that the word may be here."""
    share: float
    """The weight of this reading as a share of the weights of all readings."""


@cache
def forms(lemma: str, part: str) -> dict[str, tuple[str, ...]]:
    """The spellings of a lemma in each inflection, the usual one first."""
    from lemminflect import getAllInflections

    forms: dict[str, tuple[str, ...]] = getAllInflections(lemma, part)
    return forms | {"VBN": forms.get("VBN", forms["VBD"])} if "VBD" in forms else forms


@cache
def readings(word: str) -> list[tuple[str, str, float]]:
    """The possible readings of a word: lemma, inflection and weight."""
    from lemminflect import getAllLemmas

    lemmas = getAllLemmas(word) if word.isascii() else {}
    weighted: list[tuple[str, str, float]] = []
    for part, base in _BASE.items():
        # WordNet has words that lemminflect lacks, such as the adjective "complete"; they are their own lemma.
        for lemma in lemmas.get(part, (word,)):
            senses = wordnet().senses(lemma, part)
            tags = [tag for tag, spellings in forms(lemma, part).items() if word in spellings and tag in _COLUMN]
            if lemma == word and (senses or base in tags):  # without the plural of the same spelling, as of "work"
                tags = [base, *(tag for tag in tags if tag[0] == "V" and tag != base)]
            weight = sum(sense.uses for sense in senses) + (0.5 if senses else 0.1)
            weighted += [(lemma, tag, weight * _SHARE.get(tag, 1)) for tag in tags]
    return weighted


def _read(word: str, previous: str = "", following: str = "") -> Reading | None:
    """The most probable reading of a word between words of these classes."""
    left, right = _AFTER.get(previous, _NO_PREFERENCE), _BEFORE.get(following, _NO_PREFERENCE)
    weights: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for lemma, tag, weight in readings(word):
        weights[_PART_OF[tag[0]], lemma][tag] = weight * left[_COLUMN[tag]] * right[_COLUMN[tag]]
    if not weights:
        return None
    sums = {key: sum(tags.values()) for key, tags in weights.items()}
    best = max(sums, key=lambda key: sums[key])
    tags = tuple(tag for tag, weight in weights[best].items() if weight >= 0.05 * sums[best])
    return Reading(*best, tags, sums[best] / sum(sums.values()))


def class_of(token: Token, opens: bool = False) -> str:
    """The class of a word for its neighbours: a class of function words, or a part of speech; empty where it is not clear."""
    word = token.lower
    if not token.is_word:
        return "number"
    if word in CLASS:
        return CLASS[word]
    if word.endswith("n't"):
        return CLASS.get(word[:-3], "modal")
    for ending, kind in _ENDINGS.items():
        if word.endswith(ending):
            return kind
    if token.text[0].isupper() and not opens:
        return "name"
    reading = _read(word)
    return reading.part if reading and reading.share >= _LIKELY else ""


class Spot(NamedTuple):
    """A content word with its reading, its run, and the classes of its neighbours."""

    tokens: list[Token]
    at: int
    previous: str
    """The class of the word before it."""
    following: str
    """The class of the word after it."""
    reading: Reading

    @property
    def next(self) -> str:
        """The next word in small letters."""
        return self.tokens[self.at + 1].lower if self.at + 1 < len(self.tokens) else ""


def spots(run: Run) -> Iterator[Spot]:
    """The content words of a run that have a reading."""
    classes = [class_of(token, run.opens and i == 0) for i, token in enumerate(run.tokens)]
    previous = "start" if run.opens else ""
    for i, (token, kind) in enumerate(zip(run.tokens, classes)):
        here = kind
        if token.text.isalpha() and kind not in _FUNCTION:
            following = classes[i + 1] if i + 1 < len(classes) else "end"
            reading = _read(token.lower, previous, following)
            if reading is not None:
                yield Spot(run.tokens, i, previous, following, reading)
                here = kind if kind == "name" else reading.part if reading.share >= _LIKELY else ""
        if here not in ("adverb", "ADV") or previous not in ("to", "modal", "subject", "be", "have"):
            previous = here  # an adverb is skipped between "has" and "gone"
