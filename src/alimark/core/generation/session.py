"""One text in progress. A session requests draws, parses them, chooses the next sentence and appends it.

What is written depends only on prompt, key, settings and seed, and not on the other texts of the same batch. Schemes differ
by their selection rule; everything else in this module is the same for all.
"""

import hashlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.frozen.text.prose import aside_opens
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.generation.candidates import Candidate, Text
from alimark.core.generation.results import Generation, MarkedSentence, Progress
from alimark.core.generation.selection import (
    AdaptiveRule,
    DirectedRule,
    Rule,
    RuleFactory,
    TextOrigin,
    TextRule,
    UnmarkedRule,
    Weight,
)
from alimark.core.generation.settings import Ended, Ending, GenerationSettings
from alimark.core.generation.steering import token_vectors
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM, Draw, Message, Request, TokenBias
from alimark.errors import AlimarkError, LLMError

_RATED = ("", "resplit", "unfinished")  # flaws that a chosen candidate may have; the last two only if all others fail
_NO_BIAS = np.zeros(0, np.float32)  # engines batch draws with a bias, so what is steered at all always has one
_MAX_CODE_WAVES = 32  # of `max_tokens` each; a code block longer than that is left open


class Session:
    """One text in progress. Without a key it is unmarked: the first draw without a flaw is taken."""

    def __init__(
        self,
        prompt: str,
        key: Key | None,
        settings: GenerationSettings,
        *,
        rule: RuleFactory | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
        turns: tuple[Message, ...] = (),
        ending: Ending | None = None,
        owner: str = "",
    ) -> None:
        """`rule` makes the selection rule of the key's scheme. `turns`: a whole chat to answer, instead of the prompt.

        `ending`: where the text has to end whatever the model would write. `owner`: whose request it is; a scheduler serves
        owners in turn.
        """
        self.owner = owner
        self.prompt, self.key, self.settings = prompt, key, settings
        self._turns = turns or ((Message("user", prompt),) if settings.prompt_style == "chat" else ())
        self.seed = secrets.randbits(48) if seed is None else seed
        self.text = Text(splitter(key.splitter if key else DEFAULT_SPLITTER))
        self.ended: Ended | None = None
        self.error: LLMError | None = None
        """Why the model cannot continue this text; it is not asked again."""
        self.seconds = 0.0
        self._progress = progress
        self._ending = ending or Ending()
        self._started: float | None = None
        self.rule: Rule = UnmarkedRule()
        if key is not None:
            if rule is None:
                raise AlimarkError("a text under a key needs the selection rule of the key's scheme")
            self.rule = rule(key, settings, TextOrigin(f"{self.seed}/{prompt}", prompt, self._turns, self.text.cutter))
        # Found out once: to ask whether a rule follows a protocol takes as long as to weigh its candidates.
        self._adaptive = self.rule if isinstance(self.rule, AdaptiveRule) else None
        self._reads_texts = self.rule if isinstance(self.rule, TextRule) else None
        self._directed = self.rule if isinstance(self.rule, DirectedRule) and settings.steering else None
        self._seen: dict[str, Floats] = {}  # for each embedded unit its features, such as its projections
        self._matches: list[int] = []
        self._unmet = 0
        self._cost: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._code_waves = 0
        self._reported = 0  # characters of the text that `progress` was called with
        self._probably_over = False  # the model ended its text in the draw that was chosen last
        self._begin_sentence()

    def _begin_sentence(self) -> None:
        self._drawn: list[Candidate] = []
        self._weights: dict[str, Weight] = {}
        self._bias: TokenBias | None = None

    @property
    def _may_end(self) -> bool:
        return self.settings.sampling.may_end

    @property
    def context_text(self) -> str:
        """The text so far as the model continues it."""
        # Tokens such as " The" begin with a blank; after a context that ends in one the model could not use them.
        return str(self.text) if self.text.in_code else str(self.text).rstrip(" \t")

    @property
    def context(self) -> str:
        """What the model continues: the text so far, behind the prompt unless that is a turn of a chat."""
        text = str(self.text)
        if self.settings.prompt_style == "continue":
            gap = "" if not text or not self.prompt or self.prompt[-1].isspace() else " "
            text = self.prompt + gap + text
        return text if self.text.in_code else text.rstrip(" \t")

    def request(self, llm: LLM) -> Request:
        """The request to a model for the next wave: the candidates that are sampled together."""
        if self._started is None:
            self._started = time.perf_counter()
        number = len(self.text.units)
        digest = hashlib.sha256(f"alimark/{self.seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:6], "big")
        if self.text.in_code:
            # A draw number that no candidate has, and another for each wave of the code block.
            number, bias = 2**20 + self._code_waves, self._steering_bias(llm)
            return Request(self.context, 1, seed, first=number, messages=self._turns, bias=bias)
        count = min(self.rule.wave(self.settings), self._most_candidates() - len(self._drawn))
        if self._probably_over and not self._drawn:
            count = 1  # the first draw decides whether the text goes on; the others are sampled only if it does
        return Request(
            self.context, count, seed, first=len(self._drawn), messages=self._turns, bias=self._steering_bias(llm)
        )

    def _steering_bias(self, llm: LLM) -> TokenBias | None:
        """What steers the model towards the next block: nothing in code, quotations and tables, whose words are given."""
        if self._directed is None or self.key is None:
            return None
        if self.text.in_given_words:
            return _NO_BIAS
        if self._bias is None:
            vectors = token_vectors(llm, self.key)
            self._bias = vectors.bias(self._directed.direction(), self.settings.steering)
        return self._bias

    def parse(self, draws: Sequence[Draw]) -> list[str]:
        """Turns a wave of draws into candidates, and returns the units that have to be embedded."""
        self._cost.update(waves=1, candidates=len(draws), tokens=sum(draw.tokens for draw in draws))
        if self.text.in_code:
            self._continue_code(draws[0])
            return []
        wave = [self._candidate(draw) for draw in draws]
        if wave and not self._drawn and self._decided_by_first(wave[0], draws[0]):
            return []
        self._drawn += wave
        self._rejected.update(candidate.flaw for candidate in wave if candidate.flaw)
        if not self.rule.embeds:
            return []
        wanted = [candidate.unit for candidate in wave if not candidate.flaw]
        if len(self._drawn) >= self.settings.candidates and all(candidate.flaw for candidate in self._drawn):
            wanted = [candidate.unit for candidate in self._drawn if candidate.flaw == "unfinished"]
        return [unit for unit in dict.fromkeys(wanted) if unit not in self._seen]

    def _candidate(self, draw: Draw) -> Candidate:
        """Parses a draw; a stop sequence in its first sentence ends the draw there."""
        if self._ending.stops and not aside_opens(draw.text):
            written = self.context_text
            place = self._ending.stop_in(written + draw.text, len(written))
            first_end = next((end for _, end in self.text.cutter.spans(draw.text)), 1)  # whether it is complete or not
            if place is not None and place - len(written) < first_end:
                stopped = Draw(draw.text[: max(0, place - len(written))], draw.tokens, "model")
                candidate = self.text.candidate(stopped, stopped=True)
                return replace(candidate, last="stop sequence") if candidate.flaw == "blank" else candidate
        return self.text.candidate(draw, may_end=self._may_end)

    def _decided_by_first(self, first: Candidate, draw: Draw) -> bool:
        """Ends the text or adds a code block where the first draw of a sentence does so; whether it did.

        Draws are independent. If the first one decides, texts end and code blocks follow as often as the model wants it; if any
        draw that goes on were enough, a text would hardly ever end.
        """
        if first.flaw == "blank" and first.last:
            self.ended = "stop sequence"
            self._cut_at_stop(draw)
            return True
        if first.flaw == "blank" and self._may_end and draw.ended == "model":
            self.ended = "model ended"
            return True
        if first.flaw == "code" and self._code_waves < _MAX_CODE_WAVES:
            opens = draw.ended == "sentence" and not self.text.in_aside
            self.text.add_code(first.piece + "\n" * (opens or draw.ended == "model"))
            self._code_waves += 1
            self._probably_over = self._may_end and draw.ended == "model"
            self._apply_ending()
            return True
        return False

    def _cut_at_stop(self, draw: Draw) -> None:
        """Cuts the text off before a stop sequence that begins in it and ends in a draw."""
        written = self.context_text
        place = self._ending.stop_in(written + draw.text, len(written))
        if place is not None and place < len(written):
            self._shorten(place)

    def _apply_ending(self) -> None:
        """Ends the text where it holds a stop sequence, has reached its number of tokens or has taken its time."""
        if (cut := self._ending.cut(str(self.text))) is not None:
            length, self.ended = cut
            self._shorten(length)
        elif self.ended is None and time.monotonic() > self._ending.until:
            self.ended = "time limit"

    def _shorten(self, length: int) -> None:
        self.text.shorten(length)
        del self._matches[len(self.text.units) :]

    def _continue_code(self, draw: Draw) -> None:
        self._code_waves += 1
        self._probably_over = self._may_end and draw.ended == "model"
        self.text.add_code(draw.text + "\n" * (draw.ended == "model"))
        if self.text.in_code and (draw.ended == "model" or self._code_waves >= _MAX_CODE_WAVES):
            self.ended = "model ended"
        self._apply_ending()

    def choose(self, seen: dict[str, Floats]) -> Candidate | None:
        """Chooses the next sentence among the candidates so far; None where another wave is needed or the text has ended.

        A rule that stops takes the first candidate that meets it. Otherwise, once all candidates are drawn, a random one of
        the best is taken; a sentence that was drawn twice counts twice. `seen` has the features of each unit that `parse`
        returned, as the rule computes them from its embedding (for AliMark, its projections).
        """
        self._seen |= seen
        self._cost["embedded"] += len(seen)
        if self.ended or not self._drawn:
            return None
        self._weigh()
        if self.rule.stops:
            meeting = [candidate for candidate in self._usable() if self._weights[candidate.unit].met]
            if (chosen := self._first_kept_by_splitter(meeting)) is not None:
                return chosen
        if not self._enough():
            return None
        chosen = self._best() or self._flawed()
        if chosen is None:
            self.ended = _why_none(self._drawn)
        return chosen

    def _most_candidates(self) -> int:
        """The most candidates for this sentence. Where none is usable, an adaptive rule cannot tell what more would bring."""
        first = None if self.text.pieces else self.settings.first_candidates
        if first is not None and (len(self._drawn) < first or self._usable()):
            return min(first, self.settings.candidates)
        if self._adaptive and self._usable():
            return self._adaptive.most(self.settings, self._cost["candidates"] - len(self._drawn))
        return self.settings.candidates

    def _enough(self) -> bool:
        """Whether the best of the candidates so far is taken."""
        if len(self._drawn) >= self._most_candidates():
            return True
        usable = self._usable()
        return self._adaptive is not None and bool(usable) and self._adaptive.enough(list(map(self._worth, usable)))

    def _weigh(self) -> None:
        """Rates the candidates by the rule."""
        units = [
            candidate.unit
            for candidate in self._drawn
            if candidate.flaw in _RATED and (candidate.unit in self._seen or not self.rule.embeds)
        ]
        if units:
            rows = np.stack([self._seen[unit] for unit in units]) if self.rule.embeds else np.empty((len(units), 0))
            weights = self._reads_texts.weigh_texts(rows, units) if self._reads_texts else self.rule.weigh(rows)
            # A rule may add noise to each draw. A sentence that was drawn twice has two chances, so its better weight counts.
            by_worth = sorted(zip(units, weights, strict=True), key=lambda rated: rated[1].worth)
            self._weights = dict(by_worth)

    def _worth(self, candidate: Candidate) -> float:
        return self._weights[candidate.unit].worth

    def _usable(self) -> list[Candidate]:
        return [candidate for candidate in self._drawn if not candidate.flaw]

    def _first_kept_by_splitter(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The first candidate that the splitter finds again once it stands in the text; a detector must find it, too.

        Splitting is slow, so only as many candidates as needed are tested.
        """
        for candidate in candidates:
            if self.text.kept_by_splitter(candidate):
                return candidate
            self._drawn[self._drawn.index(candidate)] = replace(candidate, flaw="resplit")
            self._rejected["resplit"] += 1
        return None

    def _best(self) -> Candidate | None:
        """The candidate with the highest worth that the splitter finds again; equal ones come in random order."""
        return self._first_kept_by_splitter(self._best_first(self._usable()))

    def _best_first(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates by falling worth, equal ones in random order."""
        shuffled = list(candidates)
        random.Random(f"{self.seed}/{len(self.text.units)}").shuffle(shuffled)
        return sorted(shuffled, key=self._worth, reverse=True)

    def _flawed(self) -> Candidate | None:
        """The best candidate with another sentence boundary or cut off, so that the text goes on where there is no other."""
        for flaw in ("resplit", "unfinished"):
            if flawed := [candidate for candidate in self._drawn if candidate.flaw == flaw]:
                return self._best_first(flawed)[0]
        return None

    def append(self, chosen: Candidate) -> None:
        """Adds the chosen sentence to the text and reports it to `progress`."""
        weight = self._weights[chosen.unit]
        if self.rule.size:
            self._matches.append(weight.matches)
        self._unmet += not weight.met
        if self._reads_texts:
            self._reads_texts.chose_text(self._seen[chosen.unit], chosen.unit)
        elif self.rule.embeds:
            self.rule.chose(self._seen[chosen.unit])
        self.text.add(chosen)
        self._begin_sentence()
        self._code_waves = 0
        self._probably_over = chosen.ended
        number = len(self.text.units)
        if chosen.last:
            self.ended = chosen.last
        elif number == self.settings.sentences:
            self.ended = "complete"
        self._apply_ending()
        if self._progress and number == len(self.text.units):
            matches = self._matches[-1] if self._matches else 0
            text, unit, cost = str(self.text), self.text.units[-1], self._cost
            piece, self._reported = text[self._reported :], len(text)
            self._progress(MarkedSentence(number, unit, piece, matches, cost["candidates"], cost["tokens"]))

    def generation(self, llm: LLM) -> Generation:
        """The finished text with its cost."""
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
            payload=self.key.payload if self.key else None,
        )


def _why_none(drawn: Sequence[Candidate]) -> Ended:
    """Why no candidate could be chosen."""
    flaws = Counter(candidate.flaw for candidate in drawn)
    return "model repeats itself" if flaws["repeat"] + flaws["degenerate"] > flaws["blank"] else "model ended"
