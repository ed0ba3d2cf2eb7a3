"""What every attack is: settings, and a run over texts that gives each a rewrite or the reason why there is none.

An attack is a frozen dataclass: its fields are its settings, which the records keep and the command line offers as options.
It knows texts and nothing of keys. What it needs beyond its settings it loads at its first text.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, ClassVar

from alimark.attacks.checks import joined_flaw, sentence_flaw
from alimark.errors import AttackError
from alimark.text.splitting import DEFAULT_SPLITTER, Piece, join, pieces, splitter


def setting(default: Any, help_text: str) -> Any:
    """A field of an attack that the command line offers as an option."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class Target:
    """A text to attack, and the seed of all that is random in it."""

    text: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Attacked:
    """What became of a text."""

    text: str
    """Empty where the attack failed."""
    error: str = ""
    """Why it failed."""
    tries: int = 1
    rejected: tuple[str, ...] = ()
    """Why answers of a model were not taken, each followed by a colon and the start of the answer."""
    left: int = 0
    """Sentences that stayed because no answer for them could be taken."""
    tokens: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.error)


class Attack(ABC):
    """One way to rewrite texts."""

    name: ClassVar[str]
    by_model: ClassVar[bool] = False
    """Whether a model writes the text, so that it may fail, takes time, and comes in batches."""

    @property
    def settings(self) -> dict[str, Any]:
        """As they are kept in a record: plain data."""
        return {one.name: getattr(self, one.name) for one in fields(self) if "help" in one.metadata}  # type: ignore[arg-type]

    @property
    def models(self) -> tuple[str, ...]:
        """The models it will load, by name, so that they may be fetched before."""
        return ()

    @abstractmethod
    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        """Each text's place and what became of it, as they are finished. Texts are taken no sooner than needed."""

    def __call__(self, text: str, seed: int = 0) -> str:
        """One text rewritten; raises AttackError where that fails."""
        [(_, done)] = self.run([Target(text, seed)])
        if done.failed:
            raise AttackError(f"{self.name} failed: {done.error}")
        return done.text


def seed_for(attack: str, seed: int, record_id: str) -> int:
    """A text's own seed: the same whatever other texts are attacked with it, and in whatever order."""
    return int.from_bytes(hashlib.sha256(f"alimark/attack/{attack}/{seed}/{record_id}".encode()).digest()[:6], "big")


class TextAttack(Attack):
    """An attack without a model: a function of a text and a source of random numbers."""

    @abstractmethod
    def rewrite(self, text: str, random: Random) -> str:
        """Raises AttackError where the text cannot be attacked so."""

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        for place, target in enumerate(targets):
            try:
                made = Attacked(self.rewrite(target.text, Random(target.seed)))
            except AttackError as error:
                made = Attacked("", str(error))
            yield place, made


class SentenceAttack(Attack):
    """An attack by a model that rewrites sentence by sentence; layout and code blocks stay.

    A sentence whose answers all fail the checks stays as it was, which the result counts; where more than `_MOST_LEFT` of a
    text's sentences stay, the text was not attacked, and that is a failure.
    """

    by_model = True
    batch: int
    """Sentences that go to the model at a time, of as many texts as it takes."""

    @abstractmethod
    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        """For each sentence its rewrites, best first."""

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        cutter = splitter(DEFAULT_SPLITTER)
        waiting: list[tuple[int, list[Piece], str]] = []
        for place, target in enumerate(targets):
            waiting.append((place, *pieces(target.text, cutter)))
            if sum(len(row) for _, row, _ in waiting) >= self.batch:
                yield from self._finish(waiting)
                waiting = []
        yield from self._finish(waiting)

    def _finish(self, waiting: Sequence[tuple[int, list[Piece], str]]) -> Iterator[tuple[int, Attacked]]:
        asked = list(dict.fromkeys(piece.body for _, row, _ in waiting for piece in row))
        answered = dict(zip(asked, self._in_batches(asked), strict=True))
        for place, row, tail in waiting:
            yield place, _rewritten(row, tail, answered)

    def _in_batches(self, sentences: Sequence[str]) -> Iterator[list[str]]:
        # Sentences of a length together: a batch is as long as its longest.
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found: dict[int, list[str]] = {}
        for start in range(0, len(order), self.batch):
            some = order[start : start + self.batch]
            for i, answers in zip(some, self.answers([sentences[i] for i in some]), strict=True):
                found[i] = answers
        return (found[i] for i in range(len(sentences)))


_MOST_LEFT = 0.25


def _rewritten(row: Sequence[Piece], tail: str, answered: dict[str, list[str]]) -> Attacked:
    if not row:
        return Attacked("", "the text holds no sentence")
    rejected, bodies, left = [], [], 0
    for piece in row:
        for answer in answered[piece.body]:
            if flaw := sentence_flaw(answer, piece.body):
                rejected.append(f"{flaw}: {answer[:80]}")
            else:
                bodies.append(answer.strip())
                break
        else:
            bodies.append(piece.body)
            left += 1
    if left > _MOST_LEFT * len(row):
        return Attacked("", f"no usable answer for {left} of {len(row)} sentences", 1, tuple(rejected), left)
    made = join([Piece(piece.lead, body) for piece, body in zip(row, bodies, strict=True)], tail)
    if flaw := joined_flaw(made, join(row, tail)):
        return Attacked("", flaw, 1, (*rejected, f"{flaw}: {made[:80]}"), left)
    return Attacked(made, "", 1, tuple(rejected), left)
