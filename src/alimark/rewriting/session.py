"""One text while it is rewritten: its sentences, what to ask for each, what came back, and which rewrites to take.

A rewrite must pass for the sentence it replaces: one sentence, with the same numbers and names, close in meaning. Where none
does, the sentence stays, and its block gets what it carries by chance.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, ContextFull, LimitError, TextError
from alimark.keys.key import Key
from alimark.keys.projection import carried, project, targets
from alimark.llm.base import LLM, Draw, Request
from alimark.rewriting.candidates import Known, fixed_parts, judge
from alimark.rewriting.results import WAYS, Original, Outcome, RewriteSettings, Rewriting, RewrittenSentence, turns_for
from alimark.text.language import looks_english
from alimark.text.splitting import Splitter, pieces, splitter
from alimark.text.units import clean, keep_on_one_line, with_full_stop

_MAX_SENTENCES = 10_000
_LEAST_WORDS = 4
_GUARD_SENTENCES = 2  # a new sentence changes at most where its neighbours end
_AROUND = 300  # characters of the text on either side of a sentence that the model is shown


@dataclass(frozen=True, slots=True)
class _Place:
    """A sentence in its text: what stands before it since the last one, layout and list signs, and the sentence itself."""

    lead: str
    body: str
    unit: str
    untouchable: Outcome | None


@dataclass(frozen=True, slots=True)
class _Option:
    """A text for a place; the first of each place is the original."""

    body: str
    unit: str
    matches: int = 0
    worth: float = 0.0
    cosine: float = 1.0


class Revision:
    """One text in progress."""

    def __init__(self, place: int, original: Original, key: Key, settings: RewriteSettings) -> None:
        self.place, self.text, self.key, self.settings = place, original.text, key, settings
        self.seed = secrets.randbits(48) if original.seed is None else original.seed
        self.cutter = splitter(key.splitter)
        self.places, self._tail = _cut(original.text, self.cutter)
        if not self.places:
            raise TextError("the text holds no sentence; there is nothing to rewrite")
        if len(self.places) > _MAX_SENTENCES:
            raise LimitError(
                f"the text has {len(self.places):,} sentences and the limit is {_MAX_SENTENCES:,}; cut it into parts"
            )
        self.waiting = 0
        # In languages that capitalise every noun names cannot be told from other words.
        self._known = Known.of([one.unit for one in self.places]) if looks_english(self.text) else None
        self._wave = 0
        self._answered = 0
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._found: list[dict[str, str]] = [{} for _ in self.places]  # of each sentence its rewrites, by unit
        self._cost: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._error: AlimarkError | None = None
        self._started = time.perf_counter()

    def next_wave(self, embedder: Embedder) -> list[tuple[int, Request]]:
        """For each sentence what to ask next; nothing where all is asked, or where an error ended the text.

        The first wave rewrites the sentences, a later one the best rewrites so far: a step from there goes further than a
        step from the start, and what it must keep is still measured by the original.
        """
        ways = self.settings.waves_of_ways
        if self._error is not None or self._wave == len(ways):
            return []
        wave, self._wave = self._wave, self._wave + 1
        bodies = [one.body for one in self.places] if wave == 0 else self._best(embedder)
        found = [ask for number, body in enumerate(bodies) for ask in self._asks(number, body, ways[wave])]
        self.waiting = len(found)
        return found or self.next_wave(embedder)

    def _best(self, embedder: Embedder) -> list[str]:
        """Of each sentence what carries most; nothing where it carries all."""
        best = [max(some, key=lambda one: (one.worth, one.cosine)) for some in self._options(embedder)]
        full = None if self.key.soft else self.key.block_size
        return ["" if one.matches == full else one.body for one in best]

    def _asks(self, number: int, body: str, ways: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Request]]:
        one = self.places[number]
        if one.untouchable or not body:
            return
        before, after = self._around(number) if self.settings.context else ("", "")
        fixed = fixed_parts(keep_on_one_line(one.body), self._known)
        for way, count in ways:
            digest = hashlib.sha256(f"alimark/rewrite/{self.seed}/{number}/{way}".encode()).digest()
            messages = turns_for(keep_on_one_line(body), WAYS[way], fixed, before, after)
            yield number, Request("", count, int.from_bytes(digest[:6], "big"), messages=messages)

    def _around(self, number: int) -> tuple[str, str]:
        before = " ".join(place.unit for place in self.places[max(0, number - 2) : number])
        after = self.places[number + 1].unit if number + 1 < len(self.places) else ""
        return before[-_AROUND:], after[:_AROUND]

    @property
    def step_done(self) -> bool:
        """Whether as many answers came as one more sentence takes."""
        return self._answered % self._asks_a_sentence == 0

    @property
    def done(self) -> int:
        """As many sentences as the answers so far are worth; those that stay are done from the start."""
        stay = sum(bool(one.untouchable) for one in self.places)
        return stay + self._answered // self._asks_a_sentence

    @property
    def _asks_a_sentence(self) -> int:
        return sum(map(len, self.settings.waves_of_ways))

    def take(self, number: int, request: Request, answer: list[Draw] | AlimarkError) -> None:
        self.waiting -= 1
        self._answered += 1
        if isinstance(answer, ContextFull):
            self._rejected["context full"] += request.count
            return
        if isinstance(answer, AlimarkError):
            self._error = answer
            return
        self._cost.update(candidates=len(answer), tokens=sum(draw.tokens for draw in answer))
        for draw in answer:
            body, flaw = judge(draw, self.places[number].body, self.cutter, self._known)
            unit = clean(body)
            if not flaw and unit in self._found[number]:
                self._rejected["repeat"] += 1
            elif flaw:
                self._rejected[flaw] += 1
            else:
                self._found[number][unit] = body

    def finish(self, embedder: Embedder, llm: LLM) -> Rewriting | AlimarkError:
        if self._error is not None:
            return self._error
        options = self._options(embedder)
        chosen = self._choose(options)
        text = "".join(one.lead + pick.body for one, pick in zip(self.places, chosen, strict=True)) + self._tail
        units = [pick.unit for pick in chosen]
        again = SequenceMatcher(None, self.cutter.units(text), units, autojunk=False)
        return Rewriting(
            text=text,
            original=self.text,
            rewritten=tuple(self._rewritten(n, options[n], pick) for n, pick in enumerate(chosen)),
            block_size=self.key.block_size,
            key_id=self.key.id,
            llm=llm.name,
            settings=self.settings,
            seed=self.seed,
            candidates=self._cost["candidates"],
            tokens=self._cost["tokens"],
            embedded=self._cost["embedded"],
            rejected=dict(self._rejected),
            surviving=sum(block.size for block in again.get_matching_blocks()),
            seconds=time.perf_counter() - self._started,
            limits=llm.limits,
        )

    def _rewritten(self, number: int, options: Sequence[_Option], pick: _Option) -> RewrittenSentence:
        first = options[0]
        outcome: Outcome = self.places[number].untouchable or (
            "rewritten" if pick is not first else "best as it was" if options[1:] else "no rewrite fits"
        )
        return RewrittenSentence(
            number + 1, first.unit, pick.unit, first.matches, pick.matches, pick.cosine, len(options) - 1, outcome
        )

    def _options(self, embedder: Embedder) -> list[list[_Option]]:
        """What each sentence may become, itself first; all embedded in one call."""
        bodies = [{one.unit: one.body} | found for one, found in zip(self.places, self._found, strict=True)]
        new = [unit for unit in dict.fromkeys(unit for some in bodies for unit in some) if unit not in self._vectors]
        if new:
            self._vectors |= dict(zip(new, embedder.embed(new), strict=True))
        self._cost["embedded"] = len(self._vectors)
        units = list(self._vectors)
        at = {unit: i for i, unit in enumerate(units)}
        vectors = np.stack(list(self._vectors.values()))
        projections = project(vectors, self.key)
        blocks = targets(self.key, len(bodies), self.key.start(f"{self.seed}/{self.text}"))
        options, too_far = [], 0
        for one, some, target in zip(self.places, bodies, blocks, strict=True):
            row = []
            carries = carried(projections[[at[unit] for unit in some]], target, self.key)
            for (unit, body), carry in zip(some.items(), carries, strict=True):
                cosine = float(np.dot(vectors[at[one.unit]], vectors[at[unit]])) if unit != one.unit else 1.0
                if cosine >= self.settings.closeness or unit == one.unit:
                    row.append(_Option(body, unit, *carry, min(1.0, cosine)))
                else:
                    too_far += 1
            options.append(row)
        self._rejected["too far"] = too_far
        return options

    def _choose(self, options: Sequence[Sequence[_Option]]) -> list[_Option]:
        """The most of the mark that can be had for the mean closeness asked for.

        The cosine gets a weight, and every sentence takes what is best at that weight: that makes the sum of worths
        greatest under a bound on the sum of cosines. The least weight that holds the bound is looked for.
        """
        known: dict[tuple[int, str], bool] = {}

        def close(chosen: Sequence[_Option]) -> bool:
            return float(np.mean([pick.cosine for pick in chosen])) >= self.settings.mean_closeness

        chosen = self._at(0.0, options, known)
        if not close(chosen):
            low, high = 0.0, 1.0
            # No bit is worth a weight so great: then every sentence stays as it is, or moves by next to nothing.
            while high < 1e6 and not close(chosen := self._at(high, options, known)):
                low, high = high, 2 * high
            for _ in range(12):
                middle = (low + high) / 2
                if close(found := self._at(middle, options, known)):
                    high, chosen = middle, found
                else:
                    low = middle
        self._rejected["resplit"] += sum(not fits for fits in known.values())
        self._rejected += Counter()  # drops what is zero
        return chosen

    def _at(
        self, weight: float, options: Sequence[Sequence[_Option]], known: dict[tuple[int, str], bool]
    ) -> list[_Option]:
        chosen: list[_Option] = []
        for number, some in enumerate(options):
            best_first = sorted(some, key=lambda one: (one.worth + weight * one.cosine, one.cosine), reverse=True)
            # The original always fits: it was found between its neighbours when the sentence before was chosen.
            fitting = (one for one in best_first if one is some[0] or self._splits_again(number, one, chosen, known))
            chosen.append(next(fitting))
        return chosen

    def _splits_again(
        self, number: int, one: _Option, chosen: Sequence[_Option], known: dict[tuple[int, str], bool]
    ) -> bool:
        """Whether a detector, which sees no boundaries but those it finds, will find this sentence and the next."""
        first = max(0, number - _GUARD_SENTENCES)
        before = zip(self.places[first:number], chosen[first:], strict=True)
        window = "".join(place.lead + pick.body for place, pick in before) + self.places[number].lead + one.body
        units = [*(pick.unit for pick in chosen[first:]), one.unit]
        if number + 1 < len(self.places):
            following = self.places[number + 1]
            window += following.lead + following.body
            units.append(following.unit)
        else:
            window += self._tail
        if (number, window) not in known:
            known[number, window] = self.cutter.units(window) == units
        return known[number, window]


def _cut(text: str, cutter: Splitter) -> tuple[list[_Place], str]:
    """The sentences of a text with what stands before each, and what stands behind the last."""
    found, tail = pieces(text, cutter)
    rests = [*(lead + body for lead, body in found), tail][1:]
    places = [
        _Place(lead, body, clean(body), _untouchable(lead.rpartition("\n")[2].lstrip(), body, rest))
        for (lead, body), rest in zip(found, rests, strict=True)
    ]
    return places, tail


def _untouchable(sign: str, body: str, rest: str) -> Outcome | None:
    words = re.findall(r"\w+", body)
    title = not sign and with_full_stop(body) != body and len(words) <= 12 and re.match(r"[ \t\r]*\n\s*\S", rest)
    if "#" in sign or title:
        return "heading"
    # Scripts that write no spaces have few words in a sentence.
    return "too short" if len(words) < _LEAST_WORDS and len(body) < 20 else None
