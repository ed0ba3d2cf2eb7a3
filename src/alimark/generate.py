"""Algorithm 1: sample candidates for the next sentence, keep the one that carries the block, repeat."""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal

from alimark.embed import Embedder
from alimark.errors import AlimarkError, ContextFull
from alimark.key import Key
from alimark.llm.base import LLM, Draw, Request, Sampling
from alimark.signals import project, to_bits
from alimark.text import Splitter, clean, keep_on_one_line, splitter, with_full_stop

Ended = Literal["complete", "model ended", "model repeats itself", "context full"]
"""Why the text has the length it has."""

_MAX_SENTENCES = 10_000
_GUARD_SENTENCES = 2  # a new sentence changes at most where its neighbours end


@dataclass(frozen=True)
class GenerationSettings:
    """How much is written and how many candidates each sentence gets. The defaults are the paper's."""

    sentences: int = 12
    candidates: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    wave: int | None = None
    """Candidates sampled together; sampling stops at the wave that holds a full match. None: few where full matches are
    likely, all where they are rare, since an engine is fastest with many at once."""

    def __post_init__(self) -> None:
        if not 1 <= self.sentences <= _MAX_SENTENCES:
            raise AlimarkError(f"sentences must lie between 1 and {_MAX_SENTENCES}, not {self.sentences}")
        if self.candidates < 1 or (self.wave is not None and self.wave < 1):
            raise AlimarkError("candidates and wave must be at least 1")

    def wave_for(self, block_size: int) -> int:
        # One draw in 2**M matches in full by chance; a quarter of that many leaves most texts a wave to save.
        return self.wave or max(16, min(64, 2 ** min(block_size, 10) // 4))


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
    """A marked text, how well it carries the key, and what it cost."""

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
    rejected: dict[str, int]
    """Candidates that were not considered, by reason."""
    surviving: int
    """Sentences that splitting the finished text finds again."""
    ended: Ended
    seconds: float

    def record(self, record_id: str) -> dict[str, Any]:
        """As one line of JSONL."""
        return {
            "id": record_id,
            "prompt": self.prompt,
            "text": self.text,
            "sentences": list(self.sentences),
            "scheme": "alimark",
            "key_id": self.key_id,
            "settings": asdict(self.settings) | {"llm": self.llm, "block_size": self.block_size},
            "seed": self.seed,
            "matches": list(self.matches),
            "surviving": self.surviving,
            "ended": self.ended,
            "cost": {
                "candidates": self.candidates,
                "tokens": self.tokens,
                "rejected": self.rejected,
                "seconds": round(self.seconds, 3),
            },
        }


@dataclass(frozen=True)
class _Candidate:
    unit: str
    piece: str
    flaw: Literal["", "blank", "repeat", "unfinished", "resplit"]


class _Text:
    """The text so far, and what may be added to it."""

    def __init__(self, prompt: str, cutter: Splitter) -> None:
        self.prompt = prompt
        self.cutter = cutter
        self.pieces: list[str] = []
        self.units: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def context(self) -> str:
        # A token of its own for the blank would keep the model from its usual " The".
        return (self.prompt + ("" if not self.pieces else " " * (not _ends_blank(self.prompt)) + self.text)).rstrip(
            " \t"
        )

    def candidate(self, draw: Draw) -> _Candidate:
        """A draw's first sentence, with the layout before it."""
        spans = self.cutter.spans(draw.text)
        if not spans:
            return _Candidate("", "", "blank")
        start, end = spans[0]
        unit = clean(draw.text[start:end])
        if not any(c.isalnum() for c in unit):
            return _Candidate(unit, "", "blank")
        piece = self._layout(draw.text[:start]) + _written(draw.text[start:end], draw.text[end:])
        if draw.ended == "length" and not self.cutter.first_sentence_over(draw.text):
            return _Candidate(unit, piece, "unfinished")
        if unit in self.units:
            return _Candidate(unit, piece, "repeat")
        return _Candidate(unit, piece, "" if self._splits_again(unit, piece) else "resplit")

    def _layout(self, blank: str) -> str:
        if not self.pieces or _ends_blank(self.pieces[-1]):
            return ""
        breaks = blank.count("\n")
        return "\n" * min(breaks, 2) if breaks else " "

    def _splits_again(self, unit: str, piece: str) -> bool:
        """Whether a detector, which sees no boundaries but those it finds, will find this sentence."""
        tail = "".join(self.pieces[-_GUARD_SENTENCES:]) + piece
        return self.cutter.units(tail) == [*self.units[-_GUARD_SENTENCES:], unit]

    def add(self, candidate: _Candidate) -> None:
        self.pieces.append(candidate.piece)
        self.units.append(candidate.unit)

    def surviving(self) -> int:
        matcher = SequenceMatcher(None, self.cutter.units(self.text), self.units, autojunk=False)
        return sum(block.size for block in matcher.get_matching_blocks())


def _ends_blank(text: str) -> bool:
    return not text or text[-1].isspace()


def _written(sentence: str, rest: str) -> str:
    """What is written of a sentence: on one line, and ended by a mark or, as headings are, by a blank line."""
    text = keep_on_one_line(sentence)
    if with_full_stop(text) == text:
        return text
    return text + "\n\n" if re.match(r"[ \t\r]*\n[ \t\r]*\n", rest) else text + "."


class _Chooser:
    """Bits of candidates against the block; every distinct unit of a text is embedded once."""

    def __init__(self, key: Key, embedder: Embedder) -> None:
        key.check(embedder)
        self.key, self.embedder = key, embedder
        self.bits: dict[str, int] = {}

    def matches(self, units: list[str], block: int) -> list[int]:
        new = [unit for unit in dict.fromkeys(units) if unit not in self.bits]
        if new:
            packed = to_bits(project(self.embedder.embed(new), self.key))
            self.bits.update(zip(new, packed.tolist(), strict=True))
        return [self.key.block_size - (self.bits[unit] ^ block).bit_count() for unit in units]


def generate(
    prompt: str,
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: GenerationSettings,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Generation:
    """Writes `settings.sentences` marked sentences after the prompt, or fewer where the model gives no more."""
    started = time.perf_counter()
    seed = secrets.randbits(48) if seed is None else seed
    so_far, chooser = _Text(prompt, splitter(key.splitter)), _Chooser(key, embedder)
    blocks = key.blocks(settings.sentences)
    matches: list[int] = []
    cost: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    ended: Ended = "complete"
    for number, block in enumerate(blocks.tolist()):
        try:
            chosen, found, flaws = _next_sentence(so_far, chooser, llm, settings, block, seed, number, cost)
        except ContextFull:
            ended = "context full"
            break
        rejected += flaws
        if chosen is None:
            ended = _why_none(flaws)
            break
        so_far.add(chosen)
        matches.append(found)
        if progress:
            progress(MarkedSentence(number + 1, chosen.unit, chosen.piece, found, cost["candidates"], cost["tokens"]))
    return Generation(
        prompt=prompt,
        text=so_far.text.rstrip(),
        sentences=tuple(so_far.units),
        matches=tuple(matches),
        block_size=key.block_size,
        key_id=key.id,
        llm=llm.name,
        settings=settings,
        seed=seed,
        candidates=cost["candidates"],
        tokens=cost["tokens"],
        rejected=dict(rejected),
        surviving=so_far.surviving(),
        ended=ended,
        seconds=time.perf_counter() - started,
    )


def _next_sentence(
    so_far: _Text,
    chooser: _Chooser,
    llm: LLM,
    settings: GenerationSettings,
    block: int,
    seed: int,
    number: int,
    cost: Counter[str],
) -> tuple[_Candidate | None, int, Counter[str]]:
    """The candidate that carries the block best, its matching bits, and what was wrong with others.

    Draws are independent, so the first full match in draw order is distributed like a random one among all full matches;
    without one, a random draw among the best is taken, and a sentence drawn twice counts twice.
    """
    drawn: list[_Candidate] = []
    flaws: Counter[str] = Counter()
    counts: list[int] = []
    most = settings.wave_for(chooser.key.block_size)
    while len(drawn) < settings.candidates:
        count = min(most, settings.candidates - len(drawn))
        wave = _wave(so_far, llm, settings, seed, number, len(drawn), count, cost)
        drawn += wave
        flaws.update(candidate.flaw for candidate in wave if candidate.flaw)
        counts += chooser.matches([candidate.unit for candidate in wave if not candidate.flaw], block)
        usable = [candidate for candidate in drawn if not candidate.flaw]
        if chooser.key.block_size in counts:
            return usable[counts.index(chooser.key.block_size)], chooser.key.block_size, flaws
    if not usable:
        # A sentence that is cut off, or that will be split otherwise, is better than none.
        usable = [c for c in drawn if c.flaw == "resplit"] or [c for c in drawn if c.flaw == "unfinished"]
        counts = chooser.matches([candidate.unit for candidate in usable], block)
    if not usable:
        return None, 0, flaws
    best = [i for i, count in enumerate(counts) if count == max(counts)]
    at = random.Random(f"{seed}/{number}").choice(best)
    return usable[at], counts[at], flaws


def _wave(
    so_far: _Text,
    llm: LLM,
    settings: GenerationSettings,
    seed: int,
    number: int,
    first: int,
    count: int,
    cost: Counter[str],
) -> list[_Candidate]:
    digest = hashlib.sha256(f"alimark/{seed}/{number}".encode()).digest()
    request = Request(so_far.context, count, seed=int.from_bytes(digest[:6], "big"), first=first)
    [draws] = llm.draw([request], settings.sampling, so_far.cutter.first_sentence_over)
    if len(draws) != count:
        raise AlimarkError(f"{llm.name} gave {len(draws)} continuations where {count} were asked for")
    cost["candidates"] += count
    cost["tokens"] += sum(draw.tokens for draw in draws)
    return [so_far.candidate(draw) for draw in draws]


def _why_none(flaws: Counter[str]) -> Ended:
    return "model repeats itself" if flaws["repeat"] > flaws["blank"] else "model ended"
