"""Marks a text that exists: every sentence is rewritten many times by a chat model, and its block picks among the rewrites.

What lies between the sentences stays as it was, code blocks included. Sentences do not depend on each other's choice, so a
model is asked for the rewrites of all of them at once. A rewrite must pass for the sentence it replaces: one sentence, with
the same numbers and names, close in meaning. Where none does, the sentence stays, and its block gets what it carries by
chance.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from alimark.chat import draw_all
from alimark.embed import Embedder
from alimark.errors import AlimarkError, ContextFull, LimitError, TextError
from alimark.judging import Known, fixed_parts, judge
from alimark.key import Key
from alimark.llm.base import LLM, Draw, Request, Sampling, Turn
from alimark.signals import carried, project, targets
from alimark.text import Splitter, clean, keep_on_one_line, looks_english, pieces, splitter, with_full_stop

Outcome = Literal["rewritten", "best as it was", "no rewrite fits", "too short", "heading"]
"""What became of a sentence. The last three were left alone."""

_MAX_SENTENCES = 10_000
_LEAST_WORDS = 4
_GUARD_SENTENCES = 2  # a new sentence changes at most where its neighbours end
_AROUND = 300  # characters of the text on either side of a sentence that the model is shown

# The prompt

WAYS = (
    "Rewrite this sentence in completely different words.",
    "Rewrite this sentence with a different structure and in a different order, starting with another part of it.",
    "Rewrite this sentence in plain, everyday language.",
    "Rewrite this sentence in an elegant, formal style.",
)
"""One instruction for each of several requests: a single one makes a small model say the same again and again."""

_RULES = "Keep all names, numbers and the meaning. Answer with one sentence only."
_FIXED = " Use these words in it: {}."
_CONTEXT = "Here is a passage of a text, for your information only:\n{before} {sentence} {after}"


def turns_for(
    sentence: str, way: str, fixed: Sequence[str] = (), before: str = "", after: str = ""
) -> tuple[Turn, ...]:
    """What a model is asked; the sentence is the last paragraph.

    `fixed`: what of it must stay to the letter. `before` and `after`: what the model may know of the text.
    """
    context = _CONTEXT.format(before=before, sentence=sentence, after=after) if before or after else ""
    parts = (context, f"{way} {_RULES}{_FIXED.format(', '.join(fixed)) if fixed else ''}", sentence)
    return (Turn("user", "\n\n".join(part for part in parts if part)),)


def _chat_sampling() -> Sampling:
    # Rewrites must differ from each other, and must repeat the names in the prompt, which a penalty would keep them from.
    return Sampling(temperature=1.0, top_p=0.95, repetition_penalty=1.0, max_tokens=160, may_end=True)


@dataclass(frozen=True)
class RewriteSettings:
    """How many rewrites each sentence gets, and how far from it the text may move in meaning.

    Meaning is measured as the cosine of two sentences under the key's embedder.
    """

    candidates: int = 16
    closeness: float = 0.62
    """The least cosine of a rewrite to its sentence."""
    mean_closeness: float = 0.81
    """The least mean over a text's sentences: bits are given up where they cost the most meaning."""
    waves: int = 2
    """In how many rounds the rewrites are asked for. From the second on what carries most so far is rewritten again, which
    finds more bits for as many rewrites; but texts wait for their rounds."""
    context: bool = False
    """Whether the model is shown the sentences around. That helps a large model; a small one mixes them into the rewrite."""
    sampling: Sampling = field(default_factory=_chat_sampling)

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise AlimarkError("candidates must be at least 1")
        if not 1 <= self.waves <= len(WAYS):
            raise AlimarkError(f"waves must lie between 1 and {len(WAYS)}, which is how many ways there are to ask")
        if not (-1 <= self.closeness <= 1 and -1 <= self.mean_closeness <= 1):
            raise AlimarkError("closeness is a cosine and lies between -1 and 1")

    @property
    def waves_of_ways(self) -> list[list[tuple[int, int]]]:
        """Of each wave the ways to ask, by number, and how many rewrites are asked for in each."""
        shares = list(enumerate(_shares(self.candidates, len(WAYS))))
        sizes = _shares(len(shares), self.waves)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [shares[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    @property
    def asks_a_wave(self) -> int:
        return len(self.waves_of_ways[0])


@dataclass(frozen=True)
class RewrittenSentence:
    """One sentence before and after; `rewrites` is the number of different ones it could be chosen from."""

    number: int
    before: str
    after: str
    matches_before: int
    matches: int
    cosine: float
    rewrites: int
    outcome: Outcome


Progress = Callable[[int, int], None]
"""Called with the sentences done so far and all sentences."""


@dataclass(frozen=True)
class Rewriting:
    """A text that was marked by rewriting it, how well it carries the key, how far it moved, and what it cost."""

    text: str
    original: str
    rewritten: tuple[RewrittenSentence, ...]
    block_size: int
    key_id: str
    llm: str
    settings: RewriteSettings
    seed: int
    candidates: int
    tokens: int
    embedded: int
    rejected: dict[str, int]
    """Rewrites that could not be chosen, by reason."""
    surviving: int
    """Sentences that splitting the finished text finds again."""
    seconds: float
    """From the text's first request to its end; several texts may have shared that time."""
    limits: tuple[str, ...] = ()
    """What of the settings the model could not honour."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(one.after for one in self.rewritten)

    @property
    def matches(self) -> tuple[int, ...]:
        """Bits of each sentence's block that the sentence carries now."""
        return tuple(one.matches for one in self.rewritten)

    @property
    def cosines(self) -> tuple[float, ...]:
        """Each sentence's closeness in meaning to what it was."""
        return tuple(one.cosine for one in self.rewritten)

    @property
    def left_alone(self) -> tuple[int, ...]:
        """The numbers of sentences that had no choice."""
        return tuple(one.number for one in self.rewritten if one.outcome not in ("rewritten", "best as it was"))

    def record(self, record_id: str) -> dict[str, Any]:
        """As one line of JSONL."""
        limits = {"limits": list(self.limits)} if self.limits else {}
        return {
            "id": record_id,
            "text": self.text,
            "original": self.original,
            "sentences": list(self.sentences),
            "scheme": "alimark",
            "key_id": self.key_id,
            "matches": list(self.matches),
            "matches_before": [one.matches_before for one in self.rewritten],
            "cosines": [round(cosine, 4) for cosine in self.cosines],
            "outcomes": [one.outcome for one in self.rewritten],
            "settings": asdict(self.settings) | {"llm": self.llm, "block_size": self.block_size} | limits,
            "seed": self.seed,
            "surviving": self.surviving,
            "cost": {
                "candidates": self.candidates,
                "tokens": self.tokens,
                "embedded": self.embedded,
                "rejected": self.rejected,
                "seconds": round(self.seconds, 3),
            },
        }


@dataclass(frozen=True)
class Original:
    """One of many texts: from which seed it is rewritten, and under which key where it is not the run's."""

    text: str
    seed: int | None = None
    key: Key | None = None


def rewrite(
    text: str,
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Rewriting:
    """The text with the key's mark."""
    step = None if progress is None else (lambda _, done, total: progress(done, total))
    [(_, made)] = rewrite_many([Original(text, seed)], key, embedder, llm, settings, progress=step)
    if isinstance(made, AlimarkError):
        raise made
    return made


def rewrite_many(
    originals: Iterable[Original],
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    progress: Callable[[int, int, int], None] | None = None,
) -> Iterator[tuple[int, Rewriting | AlimarkError]]:
    """Yields each text with its place as soon as it is finished, or the error that ended it."""
    key.check(embedder)
    settings = settings or RewriteSettings()
    asked: dict[int, tuple[_Revision, int]] = {}
    ready: deque[_Revision | tuple[int, AlimarkError]] = deque()
    again: deque[tuple[_Revision, int, Request]] = deque()  # later waves of texts under way, which go first
    numbers = itertools.count()
    fresh = enumerate(originals)

    def wanted() -> Iterator[tuple[_Revision, int, Request]]:
        while again:
            yield again.popleft()
        for place, one in fresh:
            try:
                (one.key or key).check(embedder)
                revision = _Revision(place, one, one.key or key, settings)
            except AlimarkError as error:
                ready.append((place, error))
                continue
            asks = revision.next_wave(embedder)
            if not asks:
                ready.append(revision)
            for sentence, request in asks:
                yield revision, sentence, request
            while again:
                yield again.popleft()

    def requests() -> Iterator[Request]:
        for revision, sentence, request in wanted():
            asked[next(numbers)] = revision, sentence
            yield request

    def finished() -> Iterator[tuple[int, Rewriting | AlimarkError]]:
        while ready:
            one = ready.popleft()
            yield one if isinstance(one, tuple) else (one.place, one.finish(embedder, llm))

    over = _goes_on(splitter(key.splitter))
    first = 0
    while True:  # a round ends when nothing more can be asked; answers that came last may want another wave
        numbers = itertools.count(first)
        for number, request, answer in draw_all(llm, requests(), settings.sampling, over, least=settings.asks_a_wave):
            revision, sentence = asked.pop(first + number)
            revision.take(sentence, request, answer)
            if progress and revision.step_done:
                progress(revision.place, revision.done, len(revision.places))
            if not revision.waiting:
                asks = revision.next_wave(embedder)
                again.extend((revision, sentence, request) for sentence, request in asks)
                if not asks:
                    ready.append(revision)
                    if progress and revision.done < len(revision.places):  # some took fewer answers than others
                        progress(revision.place, len(revision.places), len(revision.places))
            yield from finished()
        yield from finished()
        first = next(numbers)
        if not again:
            return


def _goes_on(cutter: Splitter) -> Callable[[str], bool]:
    """A rewrite that goes on after its sentence is none, so nobody waits for its end."""
    return lambda text: len(cutter.spans(text)) > 1 and cutter.first_sentence_over(text)


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


class _Revision:
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
            turns = turns_for(keep_on_one_line(body), WAYS[way], fixed, before, after)
            yield number, Request("", count, int.from_bytes(digest[:6], "big"), turns=turns)

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


def _shares(count: int, parts: int) -> list[int]:
    """`count` in at most `parts` parts that differ by at most one."""
    return [share for i in range(parts) if (share := (count + parts - 1 - i) // parts)]


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
