"""One text while it is rewritten: a session requests rewrites of its sentences, parses, embeds and chooses among them.

A rewrite has to be one sentence with the same numbers and names, close in meaning to the original. If no rewrite is, the
original sentence stays, and its bits agree with its block only by chance.
"""

import hashlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import Splitter, pieces, splitter
from alimark.core.frozen.text.units import with_full_stop
from alimark.core.keys.key import Key
from alimark.core.keys.projection import carried, project, targets, worths
from alimark.core.llm.base import LLM, Draw, Request
from alimark.core.rewriting.candidates import Known, fixed_parts, judge, on_one_line
from alimark.core.rewriting.results import Outcome, Rewriting, RewrittenSentence
from alimark.core.rewriting.settings import WAYS, Original, RewriteSettings, turns_for
from alimark.core.text.language import looks_english
from alimark.errors import AlimarkError, ContextFull, LimitError, TextError

_MAX_SENTENCES = 10_000
_LEAST_WORDS = 4
_GUARD_SENTENCES = 2  # a new sentence can only change the boundaries of its neighbours
_AROUND = 300  # characters on either side of a sentence that the model is shown


@dataclass(frozen=True, slots=True)
class _Place:
    """A sentence of the original text, with the layout and list signs between it and the sentence before."""

    lead: str
    body: str
    unit: str
    untouchable: Outcome | None  # why the sentence is not rewritten; None where it is


@dataclass(frozen=True, slots=True)
class _Option:
    """A sentence that may stand in a place: the original, or a rewrite."""

    body: str
    unit: str
    matches: int = 0
    worth: float = 0.0
    cosine: float = 1.0


class RewriteSession:
    """One text in progress."""

    def __init__(self, number: int, original: Original, key: Key, settings: RewriteSettings) -> None:
        self.number, self.text, self.key, self.settings = number, original.text, key, settings
        self.seed = secrets.randbits(48) if original.seed is None else original.seed
        self.cutter = splitter(key.splitter)
        self.places, self._tail = _cut(original.text, self.cutter)
        if not self.places:
            raise TextError("the text holds no sentence; there is nothing to rewrite")
        if len(self.places) > _MAX_SENTENCES:
            raise LimitError(
                f"the text has {len(self.places):,} sentences and the limit is {_MAX_SENTENCES:,}; cut it into parts"
            )
        # Other languages may capitalise every noun, so that names cannot be told from other words.
        self._known = Known.of([place.unit for place in self.places]) if looks_english(self.text) else None
        self._wave = 0
        self._answered = 0
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._rewrites: list[dict[str, str]] = [{} for _ in self.places]  # of each sentence, by unit
        self._cost: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._error: AlimarkError | None = None
        self._started = time.perf_counter()

    def next_wave(self, embedder: Embedder) -> list[tuple[int, Request]]:
        """The next requests, each with the number of its sentence; none after the last wave or an error.

        The first wave rewrites the original sentences. A later one rewrites the best rewrites so far, which moves further;
        names, numbers and closeness are still compared with the original.
        """
        ways = self.settings.waves_of_ways
        if self._error is not None or self._wave == len(ways):
            return []
        wave, self._wave = self._wave, self._wave + 1
        bodies = [place.body for place in self.places] if wave == 0 else self._best_bodies(embedder)
        requests = [pair for number, body in enumerate(bodies) for pair in self._requests(number, body, ways[wave])]
        return requests or self.next_wave(embedder)

    def _best_bodies(self, embedder: Embedder) -> list[str]:
        """For each sentence the option that carries most; "" where it carries the whole block and needs no more rewrites."""
        best = [max(options, key=lambda option: (option.worth, option.cosine)) for options in self.embed(embedder)]
        full = None if self.key.soft else self.key.block_size
        return ["" if option.matches == full else option.body for option in best]

    def _requests(self, number: int, body: str, ways: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Request]]:
        place = self.places[number]
        if place.untouchable or not body:
            return
        before, after = self._around(number) if self.settings.context else ("", "")
        fixed = fixed_parts(on_one_line(place.body), self._known)
        for way, count in ways:
            digest = hashlib.sha256(f"alimark/rewrite/{self.seed}/{number}/{way}".encode()).digest()
            messages = turns_for(on_one_line(body), WAYS[way], fixed, before, after)
            yield number, Request("", count, int.from_bytes(digest[:6], "big"), messages=messages)

    def _around(self, number: int) -> tuple[str, str]:
        before = " ".join(place.unit for place in self.places[max(0, number - 2) : number])
        after = self.places[number + 1].unit if number + 1 < len(self.places) else ""
        return before[-_AROUND:], after[:_AROUND]

    @property
    def step_done(self) -> bool:
        """Whether the last answer completed the answers of one more sentence."""
        return self._answered % self._asks_a_sentence == 0

    @property
    def done(self) -> int:
        """Sentences done, measured by the number of answers; sentences that are not rewritten are done from the start."""
        stay = sum(bool(place.untouchable) for place in self.places)
        return stay + self._answered // self._asks_a_sentence

    @property
    def _asks_a_sentence(self) -> int:
        return sum(map(len, self.settings.waves_of_ways))

    def parse(self, number: int, request: Request, answer: list[Draw] | AlimarkError) -> None:
        """Takes the answer to a request for sentence `number`, and keeps the rewrites without a flaw."""
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
            unit = self.cutter.unit(body)
            if not flaw and unit in self._rewrites[number]:
                self._rejected["repeat"] += 1
            elif flaw:
                self._rejected[flaw] += 1
            else:
                self._rewrites[number][unit] = body
                self._known = self._known and self._known.with_name_from(unit, self.places[number].unit)

    def _drop_lost_names(self) -> None:
        """Drops rewrites that lack a first word which other rewrites showed to be a name."""
        known = self._known
        if known is None:
            return
        for place, rewrites in zip(self.places, self._rewrites, strict=True):
            lost = [unit for unit in rewrites if known.lost(unit, place.unit)]
            self._rejected["names"] += len(lost)
            for unit in lost:
                del rewrites[unit]

    def finish(self, embedder: Embedder, llm: LLM) -> Rewriting | AlimarkError:
        """The finished text, or the error that ended it."""
        if self._error is not None:
            return self._error
        options = self.embed(embedder)
        chosen = self.choose(options)
        text = "".join(place.lead + pick.body for place, pick in zip(self.places, chosen, strict=True)) + self._tail
        units = [pick.unit for pick in chosen]
        again = SequenceMatcher(None, self.cutter.units(text), units, autojunk=False)
        return Rewriting(
            text=text,
            original=self.text,
            rewritten=tuple(self._rewritten(n, options[n], pick) for n, pick in enumerate(chosen)),
            block_size=self.key.block_size,
            key_id=self.key.id,
            scheme=self.key.scheme,
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
            payload=self.key.payload,
        )

    def _rewritten(self, number: int, options: Sequence[_Option], pick: _Option) -> RewrittenSentence:
        first = options[0]
        outcome: Outcome = self.places[number].untouchable or (
            "rewritten" if pick is not first else "best as it was" if options[1:] else "no rewrite fits"
        )
        return RewrittenSentence(
            number + 1, first.unit, pick.unit, first.matches, pick.matches, pick.cosine, len(options) - 1, outcome
        )

    def embed(self, embedder: Embedder) -> list[list[_Option]]:
        """The options of each sentence, the original first, rated by its block; new ones are embedded in one call.

        Rewrites that are too far from the original in meaning are left out. Where a text may begin with several blocks, it
        begins with the one that gives the strongest mark.
        """
        self._drop_lost_names()
        bodies = [
            {place.unit: place.body} | rewrites for place, rewrites in zip(self.places, self._rewrites, strict=True)
        ]
        new = [unit for unit in dict.fromkeys(unit for units in bodies for unit in units) if unit not in self._vectors]
        if new:
            self._vectors |= dict(zip(new, embedder.embed(new), strict=True))
        self._cost["embedded"] = len(self._vectors)
        projections = project(np.stack(list(self._vectors.values())), self.key)
        projected = dict(zip(self._vectors, projections, strict=True))
        tables = [np.stack([projected[unit] for unit in units]) for units in bodies]
        cosines = [self._cosines(place, units) for place, units in zip(self.places, bodies, strict=True)]
        close = [values >= self.settings.closeness for values in cosines]
        self._rejected["too far"] = sum(int((~near).sum()) for near in close)
        start = best_start(
            [table[near] for table, near in zip(tables, close, strict=True)],
            [values[near] for values, near in zip(cosines, close, strict=True)],
            self.key,
            self.settings.mean_closeness,
        )
        options = []
        for units, table, values, near, target in zip(
            bodies, tables, cosines, close, targets(self.key, len(bodies), start), strict=True
        ):
            carries = carried(table, target, self.key)
            rated = zip(units.items(), carries, values.tolist(), near, strict=True)
            options.append([_Option(body, unit, *carry, cosine) for (unit, body), carry, cosine, fits in rated if fits])
        return options

    def _cosines(self, place: _Place, units: Iterable[str]) -> Floats:
        """How close the options of a sentence are to the original in meaning; 1 for the original itself."""
        original = self._vectors[place.unit]
        return np.array(
            [1.0 if unit == place.unit else min(1.0, float(np.dot(original, self._vectors[unit]))) for unit in units]
        )

    def choose(self, options: Sequence[Sequence[_Option]]) -> list[_Option]:
        """Chooses an option for each sentence: the strongest mark under the bound on the mean closeness.

        Every sentence takes the option with the highest worth plus weight times cosine, which gives the highest sum of
        worths for its sum of cosines (a Lagrange multiplier). The smallest weight that keeps the bound is found by bisection.
        """
        known: dict[tuple[int, str], bool] = {}

        def close(chosen: Sequence[_Option]) -> bool:
            return float(np.mean([pick.cosine for pick in chosen])) >= self.settings.mean_closeness

        chosen = self._at(0.0, options, known)
        if not close(chosen):
            low, high = 0.0, 1.0
            # At such a weight the cosine decides alone: every sentence stays as it is, or hardly moves.
            while high < 1e6 and not close(chosen := self._at(high, options, known)):
                low, high = high, 2 * high
            for _ in range(12):
                middle = (low + high) / 2
                if close(closer := self._at(middle, options, known)):
                    high, chosen = middle, closer
                else:
                    low = middle
        self._rejected["resplit"] += sum(not fits for fits in known.values())
        self._rejected += Counter()  # drops the reasons that are counted zero times
        return chosen

    def _at(
        self, weight: float, options: Sequence[Sequence[_Option]], known: dict[tuple[int, str], bool]
    ) -> list[_Option]:
        """The best option of each sentence at a weight of the cosine; `known` remembers what splits again."""

        def value(option: _Option) -> tuple[float, float]:
            return option.worth + weight * option.cosine, option.cosine

        chosen: list[_Option] = []
        for number, candidates in enumerate(options):
            # The original always fits: it was found between its neighbours when the sentence before was chosen.
            fitting = (
                option
                for option in sorted(candidates, key=value, reverse=True)
                if option is candidates[0] or self._splits_again(number, option, chosen, known)
            )
            chosen.append(next(fitting))
        return chosen

    def _splits_again(
        self, number: int, option: _Option, chosen: Sequence[_Option], known: dict[tuple[int, str], bool]
    ) -> bool:
        """Whether the splitter finds this sentence and the next one again, as a detector has to."""
        first = max(0, number - _GUARD_SENTENCES)
        before = zip(self.places[first:number], chosen[first:], strict=True)
        window = "".join(place.lead + pick.body for place, pick in before) + self.places[number].lead + option.body
        units = [*(pick.unit for pick in chosen[first:]), option.unit]
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
    """The sentences of a text, each with what stands before it, and what stands after the last one."""
    sentences, tail = pieces(text, cutter)
    rests = [*(lead + body for lead, body in sentences), tail][1:]
    places = [
        _Place(lead, body, cutter.unit(body), _untouchable(lead.rpartition("\n")[2].lstrip(), body, rest))
        for (lead, body), rest in zip(sentences, rests, strict=True)
    ]
    return places, tail


def _untouchable(sign: str, body: str, rest: str) -> Outcome | None:
    """Why a sentence is not rewritten, from the list sign before it and the text after it; None where it is."""
    words = re.findall(r"\w+", body)
    unfinished = not sign and with_full_stop(body) != body
    title = len(words) <= 12 and re.match(r"[ \t\r]*\n\s*\S", rest)
    # A greeting, an address or a signature: short lines without a full stop.
    lines = not rest.strip() and all(len(re.findall(r"\w+", line)) <= 5 for line in body.splitlines())
    if "#" in sign or (unfinished and (title or lines)):
        return "heading"
    # A sentence without spaces, as in Chinese, counts as few words and is judged by its characters.
    return "too short" if len(words) < _LEAST_WORDS and len(body) < 20 else None


# The block that a rewritten text begins with, for keys whose texts may begin with several. A generated text has to begin
# somewhere before its sentences exist. Those of a rewritten text and their rewrites are there, so it begins where they carry
# most.

_NUMBERS_AT_A_TIME = 1 << 22
"""The most worths that are compared at a time, which bounds the memory for long texts under keys with many starts."""

_EXPONENTS = -10.0, 20.0
"""The weights of the cosine are powers of 2 between these. At the least, the cosine decides only between options of the same
worth; at the greatest it decides alone."""

_BISECTIONS = 12


def best_start(projections: Sequence[Floats], cosines: Sequence[Floats], key: Key, mean_closeness: float) -> int:
    """The block of `key.starts` with which a text carries the strongest mark under a bound on the mean closeness.

    `projections` and `cosines` have for each sentence those of its options, the original and its rewrites. Each start is rated
    by the options that `RewriteSession.choose` would take if all of them were split again as they are.
    """
    starts = key.starts
    if len(starts) == 1:
        return int(starts[0])
    count, most = len(projections), max(map(len, cosines))
    blocks = targets(key, int(starts.max()) + count)
    close = np.zeros((count, most))
    for number, values in enumerate(cosines):
        close[number, : len(values)] = values
    step = max(1, _NUMBERS_AT_A_TIME // close.size)
    totals = []
    for some in (starts[i : i + step] for i in range(0, len(starts), step)):
        table = np.full((len(some), *close.shape), -np.inf)
        for number, options in enumerate(projections):
            table[:, number, : len(options)] = worths(options, blocks[some + number], key).T
        totals.append(_totals(table, close, mean_closeness))
    return int(starts[np.argmax(np.concatenate(totals))])


def _totals(table: Floats, cosines: Floats, bound: float) -> Floats:
    """For each start the sum of the worths of the best options whose mean cosine keeps the bound.

    `table` holds the worths by start, sentence and option, `cosines` the cosines by sentence and option. The weight of the
    cosine is found by bisection for all starts at once, as `RewriteSession.choose` finds it for one.
    """
    rows = np.arange(len(cosines))

    def at(exponents: Floats) -> tuple[Floats, Floats]:
        chosen = (table + 2.0 ** exponents[:, None, None] * cosines).argmax(axis=2)
        return np.take_along_axis(table, chosen[:, :, None], axis=2).sum(axis=(1, 2)), cosines[rows, chosen].mean(
            axis=1
        )

    low, high = (np.full(len(table), exponent) for exponent in _EXPONENTS)
    totals, means = at(low)
    if (means >= bound).all():
        return totals
    high[means >= bound] = low[0]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        close = at(middle)[1] >= bound
        low, high = np.where(close, low, middle), np.where(close, middle, high)
    return at(high)[0]
