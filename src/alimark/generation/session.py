"""One text in progress: it asks for a wave of draws, takes them, learns what its rule sees of the new ones, and chooses.

What it writes depends on its prompt, key, settings and seed alone, whoever else is being served. What makes one scheme
differ from another is its rule; the loop, the stop rules and the budget are the same for all.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from alimark._util.arrays import Floats
from alimark.errors import AlimarkError
from alimark.generation.candidates import Candidate, Text
from alimark.generation.rules import Weight, rule_for
from alimark.keys.key import Key
from alimark.llm.base import LLM, Draw, Message, Request, Sampling
from alimark.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.text.workers import First

Ended = Literal["complete", "model ended", "model repeats itself", "context full", "token limit"]
"""Why the text has the length it has."""

PromptStyle = Literal["continue", "chat"]
"""`continue`: the text goes on where the prompt stops. `chat`: the text is a chat model's answer to the prompt."""

_MAX_SENTENCES = 10_000
_MAX_TOKENS = 1_000_000
_WEIGHED = ("", "resplit", "unfinished")  # candidates that may be chosen, the last two in want of better ones
_MAX_CODE_WAVES = 32  # of `max_tokens` each; a code block longer than that is left open


@dataclass(frozen=True)
class GenerationSettings:
    """How much is written and how many candidates each sentence gets. The defaults are AliMark's paper's."""

    sentences: int = 12
    candidates: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    wave: int | None = None
    """Candidates sampled together; sampling stops at the wave that holds one that meets the rule in full. None: few where that
    is likely, all where it is rare, since an engine is fastest with many at once. A soft decision has no full match."""
    prompt_style: PromptStyle = "continue"
    tokens: int | None = None
    """So many tokens instead of sentences, where the scheme marks tokens."""

    def __post_init__(self) -> None:
        if not 1 <= self.sentences <= _MAX_SENTENCES:
            raise AlimarkError(f"sentences must lie between 1 and {_MAX_SENTENCES}, not {self.sentences}")
        if self.candidates < 1 or (self.wave is not None and self.wave < 1):
            raise AlimarkError("candidates and wave must be at least 1")
        if self.tokens is not None and not 1 <= self.tokens <= _MAX_TOKENS:
            raise AlimarkError(f"tokens must lie between 1 and {_MAX_TOKENS}, not {self.tokens}")
        if self.prompt_style not in ("continue", "chat"):
            raise AlimarkError(f"prompt style must be `continue` or `chat`, not {self.prompt_style!r}")

    def to_dict(self) -> dict[str, Any]:
        """For records; a length in tokens stands there only if it was asked for, so that others stay as they were."""
        content = asdict(self)
        if self.tokens is None:
            del content["tokens"]
        return content


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence as it was chosen: `piece` is what is added to the text, layout included; `matches` as in a Generation."""

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
    """Of each sentence what it carries: bits of its block, channels of PMark, or 1 where it meets a rival's rule."""
    block_size: int
    """The most that a sentence can match."""
    key_id: str
    scheme: str
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
    unmet: int | None = None
    """Sentences for which no candidate met the rule, so that the best was taken; None where the rule asks for no more."""

    @property
    def marked(self) -> bool:
        return bool(self.key_id)

    def record(self, record_id: str) -> dict[str, Any]:
        """As one line of JSONL."""
        mark: dict[str, Any] = {"key_id": self.key_id, "matches": list(self.matches)} if self.marked else {}
        if self.unmet is not None:
            mark["unmet"] = self.unmet
        limits = {"limits": list(self.limits)} if self.limits else {}
        return {
            "id": record_id,
            "prompt": self.prompt,
            "text": self.text,
            "sentences": list(self.sentences),
            "scheme": self.scheme,
            **mark,
            "settings": self.settings.to_dict() | {"llm": self.llm, "block_size": self.block_size} | limits,
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
        turns: tuple[Message, ...] = (),
    ) -> None:
        """`turns`: a whole chat that the text answers, in place of the prompt as its only turn."""
        self.prompt, self.key, self.settings = prompt, key, settings
        self._turns = turns or ((Message("user", prompt),) if settings.prompt_style == "chat" else ())
        self.seed = secrets.randbits(48) if seed is None else seed
        self.text = Text(splitter(key.splitter if key else DEFAULT_SPLITTER))
        self.ended: Ended | None = None
        self.seconds = 0.0
        self._progress = progress
        self._started: float | None = None
        self.rule = rule_for(key, settings, f"{self.seed}/{prompt}")
        self._seen: dict[str, Floats] = {}
        self._matches: list[int] = []
        self._unmet = 0
        self._cost: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._code_waves = 0
        self._begin_sentence()

    def _begin_sentence(self) -> None:
        self._drawn: list[Candidate] = []
        self._weights: dict[str, Weight] = {}  # for the sentence to come

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
            return Request(self.context, 1, seed, first=2**20 + self._code_waves, messages=self._turns)
        left = self.settings.candidates - len(self._drawn)
        return Request(
            self.context, min(self.rule.wave(self.settings), left), seed, first=len(self._drawn), messages=self._turns
        )

    def take(self, draws: Sequence[Draw], firsts: Sequence[First] | None = None) -> list[str]:
        """Add a wave's draws, of which the first sentences may be known; the units that `settle` wants seen."""
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
        if not self.rule.embeds:
            return []
        wanted = [candidate.unit for candidate in wave if not candidate.flaw]
        if len(self._drawn) >= self.settings.candidates and all(candidate.flaw for candidate in self._drawn):
            wanted = [candidate.unit for candidate in self._drawn if candidate.flaw == "unfinished"]
        return [unit for unit in dict.fromkeys(wanted) if unit not in self._seen]

    def settle(self, seen: dict[str, Floats]) -> None:
        """Choose, or leave it to the next wave. `seen`: what the rule sees of the units that `take` named.

        Without a draw that meets the rule a random one among the best is taken, and a sentence drawn twice counts twice.
        """
        self._seen |= seen
        self._cost["embedded"] += len(seen)
        if self.ended or not self._drawn:
            return
        self._weigh()
        chosen = None
        if self.rule.stops:
            chosen = self._first([one for one in self._usable() if self._weights[one.unit].met])
        if chosen is None:
            if len(self._drawn) < self.settings.candidates:
                return
            chosen = self._best() or self._makeshift()
        if chosen is None:
            self.ended = _why_none(self._drawn)
            return
        self._add(chosen)

    def _weigh(self) -> None:
        """Finds out how well the candidates meet the rule."""
        some = [
            one.unit for one in self._drawn if one.flaw in _WEIGHED and (one.unit in self._seen or not self.rule.embeds)
        ]
        if some:
            rows = np.stack([self._seen[unit] for unit in some]) if self.rule.embeds else np.empty((len(some), 0))
            self._weights = dict(zip(some, self.rule.weigh(rows), strict=True))

    def _worth(self, candidate: Candidate) -> float:
        return self._weights[candidate.unit].worth

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
        weight = self._weights[chosen.unit]
        if self.rule.size:
            self._matches.append(weight.matches)
        self._unmet += not weight.met
        if self.rule.embeds:
            self.rule.chose(self._seen[chosen.unit])
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
            block_size=self.rule.size,
            key_id=self.key.id if self.key else "",
            scheme=self.rule.scheme,
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
            unmet=self._unmet if self.rule.strict else None,
        )


def _why_none(drawn: Sequence[Candidate]) -> Ended:
    flaws = Counter(candidate.flaw for candidate in drawn)
    return "model repeats itself" if flaws["repeat"] + flaws["degenerate"] > flaws["blank"] else "model ended"
