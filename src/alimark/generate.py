"""Algorithm 1: sample candidates for the next sentence, keep the one that carries the block, repeat.

A `Writing` is one text in progress. It asks for a wave of draws, takes them, learns the projections of what was new, and
chooses; what it writes depends on its prompt, key, settings and seed alone, whoever else is being served. `generate_many`
and `Scheduler` serve many at a time: a *round* samples a wave for each of some texts in one call of the model and embeds
what it brought in one call of the embedder. A model that takes several callers gets several rounds at a time, so that
one group's candidates are embedded while the other's are sampled.
"""

from __future__ import annotations

import hashlib
import queue
import random
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from alimark._workers import First
from alimark.alignment import Floats
from alimark.candidate import Candidate, FirstSentence, Text
from alimark.embed import Embedder
from alimark.errors import AlimarkError, ContextFull
from alimark.key import Key
from alimark.llm.base import LLM, Draw, Over, Request, Sampling, Turn
from alimark.signals import Carried, carried, project, targets
from alimark.text import DEFAULT_SPLITTER, splitter

Ended = Literal["complete", "model ended", "model repeats itself", "context full"]
"""Why the text has the length it has."""

PromptStyle = Literal["continue", "chat"]
"""`continue`: the text goes on where the prompt stops. `chat`: the text is a chat model's answer to the prompt."""

_MAX_SENTENCES = 10_000
_MAX_CODE_WAVES = 32  # of `max_tokens` each; a code block longer than that is left open


@dataclass(frozen=True)
class GenerationSettings:
    """How much is written and how many candidates each sentence gets. The defaults are the paper's."""

    sentences: int = 12
    candidates: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    wave: int | None = None
    """Candidates sampled together; sampling stops at the wave that holds a full match. None: few where full matches are
    likely, all where they are rare, since an engine is fastest with many at once. A soft decision has no full match."""
    prompt_style: PromptStyle = "continue"

    def __post_init__(self) -> None:
        if not 1 <= self.sentences <= _MAX_SENTENCES:
            raise AlimarkError(f"sentences must lie between 1 and {_MAX_SENTENCES}, not {self.sentences}")
        if self.candidates < 1 or (self.wave is not None and self.wave < 1):
            raise AlimarkError("candidates and wave must be at least 1")
        if self.prompt_style not in ("continue", "chat"):
            raise AlimarkError(f"prompt style must be `continue` or `chat`, not {self.prompt_style!r}")

    def wave_for(self, key: Key) -> int:
        if key.soft:
            return self.wave or self.candidates
        # One draw in 2**M matches in full by chance; a quarter of that many leaves most texts a wave to save.
        return self.wave or max(16, min(64, 2 ** min(key.block_size, 10) // 4))


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence as it was chosen: `piece` is what is added to the text, layout included."""

    number: int
    unit: str
    piece: str
    matches: int
    candidates: int
    tokens: int


Progress = Callable[[MarkedSentence], None]


@dataclass(frozen=True)
class Generation:
    """A text, how well it carries the key, and what it cost. Unmarked text has no key and no matches."""

    prompt: str
    text: str
    sentences: tuple[str, ...]
    matches: tuple[int, ...]
    """Bits of each sentence's block that the sentence carries."""
    block_size: int
    key_id: str
    llm: str
    settings: GenerationSettings
    seed: int
    candidates: int
    """Candidates sampled, over all sentences."""
    tokens: int
    """Tokens sampled, over all candidates."""
    waves: int
    """Times the model was asked."""
    embedded: int
    """Candidates embedded: those fit to be chosen, each once."""
    rejected: dict[str, int]
    """Candidates that were not considered, by reason."""
    surviving: int
    """Sentences that splitting the finished text finds again."""
    ended: Ended
    seconds: float
    """This text's share of the time that went by: what a round takes is shared by its texts."""
    elapsed: float
    """From the text's first request to its end."""
    limits: tuple[str, ...] = ()
    """What of the settings the model could not honour."""

    @property
    def marked(self) -> bool:
        return bool(self.key_id)

    def record(self, record_id: str) -> dict[str, Any]:
        """As one line of JSONL."""
        mark = {"key_id": self.key_id, "matches": list(self.matches)} if self.marked else {}
        limits = {"limits": list(self.limits)} if self.limits else {}
        return {
            "id": record_id,
            "prompt": self.prompt,
            "text": self.text,
            "sentences": list(self.sentences),
            "scheme": "alimark" if self.marked else "unmarked",
            **mark,
            "settings": asdict(self.settings) | {"llm": self.llm, "block_size": self.block_size} | limits,
            "seed": self.seed,
            "surviving": self.surviving,
            "ended": self.ended,
            "cost": {
                "candidates": self.candidates,
                "tokens": self.tokens,
                "waves": self.waves,
                "embedded": self.embedded,
                "rejected": self.rejected,
                "seconds": round(self.seconds, 3),
                "elapsed": round(self.elapsed, 3),
            },
        }


class Writing:
    """One text in progress. Without a key it is written unmarked: of each sentence's draws the first good one is taken."""

    def __init__(
        self,
        prompt: str,
        key: Key | None,
        settings: GenerationSettings,
        *,
        seed: int | None = None,
        progress: Progress | None = None,
        turns: tuple[Turn, ...] = (),
    ) -> None:
        """`turns`: a whole chat that the text answers, in place of the prompt as its only turn."""
        self.prompt, self.key, self.settings = prompt, key, settings
        self._turns = turns or ((Turn("user", prompt),) if settings.prompt_style == "chat" else ())
        self.seed = secrets.randbits(48) if seed is None else seed
        self.text = Text(splitter(key.splitter if key else DEFAULT_SPLITTER))
        self.ended: Ended | None = None
        self.seconds = 0.0
        self._progress = progress
        self._started: float | None = None
        self._targets = targets(key, settings.sentences) if key else np.empty((0, 0))
        self._projections: dict[str, Floats] = {}
        self._matches: list[int] = []
        self._cost: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._code_waves = 0
        self._begin_sentence()

    def _begin_sentence(self) -> None:
        self._drawn: list[Candidate] = []
        self._carries: dict[str, Carried] = {}  # of the block to come

    @property
    def context(self) -> str:
        text = str(self.text)
        if self.settings.prompt_style == "continue":
            gap = "" if not text or not self.prompt or self.prompt[-1].isspace() else " "
            text = self.prompt + gap + text
        # A token of its own for the blank would keep the model from its usual " The".
        return text if self.text.in_code else text.rstrip(" \t")

    def request(self) -> Request:
        """The next wave's."""
        if self._started is None:
            self._started = time.perf_counter()
        number = len(self.text.units)
        digest = hashlib.sha256(f"alimark/{self.seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:6], "big")
        if self.text.in_code:
            # Far from the numbers of candidates, and each wave of a block its own.
            return Request(self.context, 1, seed, first=2**20 + self._code_waves, turns=self._turns)
        left = self.settings.candidates - len(self._drawn)
        wave = self.settings.wave_for(self.key) if self.key else 1
        return Request(self.context, min(wave, left), seed, first=len(self._drawn), turns=self._turns)

    def take(self, draws: Sequence[Draw], firsts: Sequence[First] | None = None) -> list[str]:
        """Add a wave's draws, of which the first sentences may be known; the units whose projections `settle` wants."""
        self._cost.update(waves=1, candidates=len(draws), tokens=sum(draw.tokens for draw in draws))
        if self.text.in_code:
            self._code_waves += 1
            self.text.add_code(draws[0].text + "\n" * (draws[0].ended == "model"))
            if self.text.in_code and (draws[0].ended == "model" or self._code_waves >= _MAX_CODE_WAVES):
                self.ended = "model ended"
            return []
        wave = [self.text.candidate(draw, None if firsts is None else firsts[i]) for i, draw in enumerate(draws)]
        first = wave[0] if wave and not self._drawn else None
        if first is not None and first.flaw == "code" and self._code_waves < _MAX_CODE_WAVES:
            # Draws are independent, so code follows as often as the model would have it: when the first draw says so.
            self.text.add_code(first.piece + "\n" * (draws[0].ended != "length"))
            self._code_waves += 1
            return []
        self._drawn += wave
        self._rejected.update(candidate.flaw for candidate in wave if candidate.flaw)
        if self.key is None:
            return []
        wanted = [candidate.unit for candidate in wave if not candidate.flaw]
        if len(self._drawn) >= self.settings.candidates and all(candidate.flaw for candidate in self._drawn):
            wanted = [candidate.unit for candidate in self._drawn if candidate.flaw == "unfinished"]
        return [unit for unit in dict.fromkeys(wanted) if unit not in self._projections]

    def settle(self, projections: dict[str, Floats]) -> None:
        """Choose, or leave it to the next wave. `projections`: of the units that `take` named.

        Draws are independent, so the first full match in draw order is distributed like a random one among all full
        matches; without one, a random draw among the best is taken, and a sentence drawn twice counts twice. A soft
        decision has no full match: it takes the draw that lies furthest along the block's direction.
        """
        self._projections |= projections
        self._cost["embedded"] += len(projections)
        if self.ended or not self._drawn:
            return
        self._weigh()
        chosen = None
        if self.key is None or not self.key.soft:
            full = self.key.block_size if self.key else 0
            chosen = self._first([one for one in self._usable() if self._worth(one) == full])
        if chosen is None:
            if len(self._drawn) < self.settings.candidates:
                return
            chosen = self._best() or self._makeshift()
        if chosen is None:
            self.ended = _why_none(self._drawn)
            return
        self._add(chosen)

    def _weigh(self) -> None:
        """Finds out how much the new candidates carry of the block to come."""
        units = {one.unit for one in self._drawn} & self._projections.keys() - self._carries.keys()
        if self.key and units:
            rows = np.stack([self._projections[unit] for unit in units])
            self._carries |= zip(units, carried(rows, self._targets[len(self._matches)], self.key), strict=True)

    def _worth(self, candidate: Candidate) -> float:
        return self._carries[candidate.unit].worth if self.key else 0.0

    def _first(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The first that a detector will find again. Splitting is dear, so it is asked of few."""
        for candidate in candidates:
            if self.text.splits_again(candidate):
                return candidate
            self._drawn[self._drawn.index(candidate)] = replace(candidate, flaw="resplit")
            self._rejected["resplit"] += 1
        return None

    def _usable(self) -> list[Candidate]:
        return [candidate for candidate in self._drawn if not candidate.flaw]

    def _best(self) -> Candidate | None:
        """A random one of those that match best, as long as one of them splits again."""
        usable = self._usable()
        random.Random(f"{self.seed}/{len(self.text.units)}").shuffle(usable)
        return self._first(sorted(usable, key=self._worth, reverse=True))

    def _makeshift(self) -> Candidate | None:
        """A sentence that will be split otherwise, or that is cut off, is better than none."""
        for flaw in ("resplit", "unfinished"):
            if some := [candidate for candidate in self._drawn if candidate.flaw == flaw]:
                return max(some, key=self._worth)
        return None

    def _add(self, chosen: Candidate) -> None:
        if self.key:
            self._matches.append(self._carries[chosen.unit].bits)
        self.text.add(chosen)
        self._begin_sentence()
        self._code_waves = 0
        number = len(self.text.units)
        if number == self.settings.sentences:
            self.ended = "complete"
        if self._progress:
            found = self._matches[-1] if self._matches else 0
            cost = self._cost
            self._progress(MarkedSentence(number, chosen.unit, chosen.piece, found, cost["candidates"], cost["tokens"]))

    def generation(self, llm: LLM) -> Generation:
        assert self.ended is not None
        return Generation(
            prompt=self.prompt,
            text=str(self.text).rstrip(),
            sentences=tuple(self.text.units),
            matches=tuple(self._matches),
            block_size=self.key.block_size if self.key else 0,
            key_id=self.key.id if self.key else "",
            llm=llm.name,
            settings=self.settings,
            seed=self.seed,
            candidates=self._cost["candidates"],
            tokens=self._cost["tokens"],
            waves=self._cost["waves"],
            embedded=self._cost["embedded"],
            rejected=dict(self._rejected),
            surviving=self.text.surviving(),
            ended=self.ended,
            seconds=self.seconds,
            elapsed=time.perf_counter() - (self._started or time.perf_counter()),
            limits=llm.limits,
        )


def _why_none(drawn: Sequence[Candidate]) -> Ended:
    flaws = Counter(candidate.flaw for candidate in drawn)
    return "model repeats itself" if flaws["repeat"] + flaws["degenerate"] > flaws["blank"] else "model ended"


Drawn = list[Draw] | ContextFull


class _Rounds:
    """What a group of texts needs: the model, and the embedder where text is marked."""

    def __init__(self, llm: LLM, embedder: Embedder | None) -> None:
        self.llm, self.embedder = llm, embedder

    def run(self, live: Sequence[Writing]) -> None:
        """One wave for every text."""
        started = time.perf_counter()
        wanted: list[tuple[Writing, list[str]]] = []
        for group, drawn, firsts in self._draws(live):
            for one, draws in zip(group, drawn, strict=True):
                if isinstance(draws, ContextFull):
                    one.ended = "context full"
                else:
                    known = None if firsts is None else list(islice(firsts, len(draws)))
                    wanted.append((one, one.take(draws, known)))
        for (one, _), found in zip(wanted, self._projections(wanted), strict=True):
            one.settle(found)
        took = time.perf_counter() - started
        for one in live:
            one.seconds += took / len(live)

    def _draws(self, live: Sequence[Writing]) -> Iterator[tuple[list[Writing], list[Drawn], Iterator[First] | None]]:
        """Texts that are sampled alike go in one call: those in words, and each one that is in a code block."""
        groups: dict[Any, list[Writing]] = {}
        for one in live:
            own = id(one) if one.text.in_code else one.text.cutter.name
            groups.setdefault((one.settings.sampling, own), []).append(one)
        for group in groups.values():
            requests = [one.request() for one in group]
            if group[0].text.in_code:
                yield group, self._sample(group, requests, group[0].text.code_over), None
                continue
            over = FirstSentence(group[0].text.cutter)
            drawn = self._sample(group, requests, over)
            texts = [draw.text for draws in drawn if not isinstance(draws, ContextFull) for draw in draws]
            yield group, drawn, iter(over.spans(texts))

    def _sample(self, group: Sequence[Writing], requests: Sequence[Request], over: Over) -> list[Drawn]:
        try:
            draws = self.llm.draw(requests, group[0].settings.sampling, over)
        except ContextFull as full:
            if len(requests) == 1:
                return [full]
            half = len(requests) // 2  # who it was is found out by asking for fewer
            return [
                *self._sample(group[:half], requests[:half], over),
                *self._sample(group[half:], requests[half:], over),
            ]
        for request, found in zip(requests, draws, strict=True):
            if len(found) != request.count:
                raise AlimarkError(
                    f"{self.llm.name} gave {len(found)} continuations where {request.count} were asked for"
                )
        return list(draws)

    def _projections(self, wanted: Sequence[tuple[Writing, list[str]]]) -> list[dict[str, Floats]]:
        """All new units of the round, embedded in one call; texts of several keys may be written together."""
        units = list(dict.fromkeys(unit for _, some in wanted for unit in some))
        if not units:
            return [{} for _ in wanted]
        assert self.embedder is not None
        vectors = self.embedder.embed(units)
        at = {unit: i for i, unit in enumerate(units)}
        found = []
        for one, some in wanted:
            assert one.key is not None
            rows = vectors[[at[unit] for unit in some]]
            found.append(dict(zip(some, project(rows, one.key), strict=True)) if some else {})
        return found


def generate(
    prompt: str,
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Generation:
    """Writes `settings.sentences` sentences after the prompt, or fewer where the model gives no more.

    They carry the key's mark; without a key they are plain.
    """
    one = Writing(prompt, key, settings, seed=seed, progress=progress)
    _check(key, embedder)
    rounds = _Rounds(llm, embedder)
    while one.ended is None:
        rounds.run([one])
    return one.generation(llm)


def _check(key: Key | None, embedder: Embedder | None) -> None:
    if key is not None:
        if embedder is None:
            raise AlimarkError("marking needs an embedder")
        key.check(embedder)


@dataclass(frozen=True)
class Prompt:
    """One of many: what to continue, from which seed, and under which key where it is not the run's."""

    text: str
    seed: int | None = None
    key: Key | None = None


def generate_many(
    prompts: Iterable[Prompt],
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    batch: int | None = None,
    progress: Callable[[int, MarkedSentence], None] | None = None,
) -> Iterator[tuple[int, Generation | AlimarkError]]:
    """Yields each text with its prompt's place as soon as it is finished, or the error that ended it.

    `batch`: texts in progress at a time; by default as many as the model is fastest with. What is written does not depend
    on it, as far as the model's draws do not.
    """
    _check(key, embedder)
    batch = batch or default_batch(llm)
    if batch < 1:
        raise AlimarkError("batch must be at least 1")

    def started() -> Iterator[tuple[int, Writing]]:
        for i, prompt in enumerate(prompts):
            step = None if progress is None else (lambda sentence, i=i: progress(i, sentence))
            yield i, Writing(prompt.text, prompt.key or key, settings, seed=prompt.seed, progress=step)

    if min(batch, llm.callers) == 1:
        yield from _in_turn(started(), _Rounds(llm, embedder), batch)
        return
    with Scheduler(llm, embedder, batch=batch) as scheduler, _brisk_threads():
        yield from scheduler.run(started())


@contextmanager
def _brisk_threads() -> Iterator[None]:
    """A thread that feeds a GPU waits for the interpreter at every step; by default up to 5 ms, as long as the step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, 0.0005))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def default_batch(llm: LLM) -> int:
    return max(1, llm.callers * llm.together)


Finished = Iterator[tuple[int, Generation | AlimarkError]]


def _in_turn(writings: Iterator[tuple[int, Writing]], rounds: _Rounds, batch: int) -> Finished:
    """All in this thread: for a model that takes one caller, and so that an interruption reaches the model at once."""
    live: list[tuple[int, Writing]] = []
    while True:
        live += islice(writings, batch - len(live))
        if not live:
            return
        try:
            rounds.run([one for _, one in live])
        except AlimarkError as error:
            yield from ((i, error) for i, _ in live)
            live = []
        yield from ((i, one.generation(rounds.llm)) for i, one in live if one.ended)
        live = [(i, one) for i, one in live if not one.ended]


class Scheduler:
    """Serves texts from many threads with one model and one embedder; a server holds one of these.

    `submit` gives a future. Texts are served in groups, one thread each: as many groups as the model takes callers.
    """

    def __init__(self, llm: LLM, embedder: Embedder | None, *, batch: int | None = None) -> None:
        self._rounds = _Rounds(llm, embedder)
        batch = batch or default_batch(llm)
        self._groups = max(1, min(batch, llm.callers))
        self._batch = batch
        self._most = -(-batch // self._groups)
        self._waiting: queue.SimpleQueue[tuple[Writing, Future[Generation]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, writing: Writing) -> Future[Generation]:
        """The text, once it is written. Cancelling the future ends the work on it after the round it is in."""
        _check(writing.key, self._rounds.embedder)
        future: Future[Generation] = Future()
        with self._lock:
            if self._closed:
                raise AlimarkError("the scheduler is closed")
            self._waiting.put((writing, future))
            if len(self._threads) < self._groups:
                # Daemons: an interrupted program does not wait for a model that is in the middle of a wave.
                thread = threading.Thread(target=self._serve, name="alimark-writer", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _serve(self) -> None:
        live: list[tuple[Writing, Future[Generation]]] = []
        while self._take_more(live):
            try:
                self._rounds.run([one for one, _ in live])
                for one, future in live:
                    if one.ended and not future.done():
                        _finish(future, one.generation(self._rounds.llm))
            except Exception as error:  # whatever it was, those who wait must hear of it
                for _, future in live:
                    _fail(future, error)
            live[:] = [(one, future) for one, future in live if not one.ended and not future.done()]
            if self._closed:
                for _, future in live:
                    future.cancel()
                return

    def _take_more(self, live: list[tuple[Writing, Future[Generation]]]) -> bool:
        """Fill the group up; wait only where there is nothing else to do. False once there is no more to come."""
        while len(live) < self._most:
            try:
                found = self._waiting.get(block=not live)
            except queue.Empty:
                break
            if found is None:
                self._waiting.put(None)  # for the other threads, too
                return bool(live)
            if not found[1].cancelled():
                live.append(found)
        return True

    def run(self, writings: Iterator[tuple[int, Writing]]) -> Finished:
        """Keeps all groups busy with these texts; yields them as they are finished."""
        done: queue.SimpleQueue[tuple[int, Future[Generation]]] = queue.SimpleQueue()
        under_way = 0
        while True:
            for i, one in islice(writings, max(0, self._batch - under_way)):
                under_way += 1
                self.submit(one).add_done_callback(lambda future, i=i: done.put((i, future)))  # type: ignore[misc]
            if not under_way:
                return
            i, future = done.get()
            under_way -= 1
            error = future.exception()
            if error is not None and not isinstance(error, AlimarkError):
                raise error
            yield i, error if error is not None else future.result()

    def close(self, wait: float = 10) -> None:
        """Texts in progress are given up, and so are those that wait. Waits some seconds for rounds to come to an end."""
        with self._lock:
            self._closed = True
        with suppress(queue.Empty):
            while found := self._waiting.get_nowait():
                found[1].cancel()
        self._waiting.put(None)
        until = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0, until - time.monotonic()))

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finish(future: Future[Generation], made: Generation) -> None:
    with suppress(InvalidStateError):  # given up meanwhile
        future.set_result(made)


def _fail(future: Future[Generation], error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
