"""Text written token by token in batches, with a watermark choosing the tokens.

An engine gives the tokens that may come next and their probabilities. A marker sees the text's own tokens and never the
prompt's, and every random number is a hash of the text's own seed and the step, so that a text does not depend on the batch
it is written in, up to the rounding of a batch's logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from alimark.llm.base import Sampling
from alimark.schemes import _prf
from alimark.text.splitting import DEFAULT_SPLITTER, Splitter, splitter

if TYPE_CHECKING:
    import torch

    from alimark.schemes._engines import Engine

Ended = Literal["complete", "model ended", "token limit"]

_STEPS_A_LOOK = 8  # splitting at every token would take longer than sampling
_COMPACT_BELOW = 0.75
_CONTEXT_IDS = 8  # decoded along with a text: a tokenizer may write a first word without its space


@dataclass(frozen=True)
class Step:
    """What a marker chooses from: of each row the tokens of the nucleus, likeliest first, and their log-probabilities,
    -inf behind the last; the row's own tokens so far; a uniform number for each row."""

    tokens: torch.Tensor
    logs: torch.Tensor
    own: torch.Tensor
    uniform: torch.Tensor

    @property
    def number(self) -> int:
        return self.own.shape[1]

    def sampled(self, logs: torch.Tensor) -> torch.Tensor:
        """A token of each row by these log-probabilities, which need not add up to one."""
        import torch

        sums = torch.softmax(logs.double(), dim=1).cumsum(dim=1)
        at = (sums < self.uniform[:, None] * sums[:, -1:]).sum(dim=1, keepdim=True)
        return self.tokens.gather(1, at.clamp(max=logs.shape[1] - 1))[:, 0]


class Marker(Protocol):
    """The part of a watermark that chooses tokens, for one batch of texts: made anew for each."""

    def choose(self, step: Step) -> torch.Tensor:
        """A token for each row."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """From now on the batch has these of its rows."""
        ...


class Unmarked:
    """Chooses by the model's probabilities alone, to compare with."""

    def choose(self, step: Step) -> torch.Tensor:
        return step.sampled(step.logs)

    def keep(self, rows: torch.Tensor) -> None:
        pass


class PerKey:
    """Texts under several keys in one batch: each key's rows go to its own marker."""

    def __init__(self, parts: Sequence[tuple[list[int], Marker]], device: Any) -> None:
        import torch

        self._parts = [(torch.tensor(rows, device=device), marker) for rows, marker in parts]

    def choose(self, step: Step) -> torch.Tensor:
        chosen = step.tokens[:, 0].clone()
        for rows, marker in self._parts:
            part = Step(step.tokens[rows], step.logs[rows], step.own[rows], step.uniform[rows])
            chosen[rows] = marker.choose(part)
        return chosen

    def keep(self, rows: torch.Tensor) -> None:
        import torch

        left = []
        for own, marker in self._parts:
            # Where each kept row was among this marker's own, and where it is now.
            was = (own[:, None] == rows[None, :]).nonzero()
            if len(was):
                marker.keep(was[:, 0])
                left.append((was[:, 1], marker))
        self._parts = left
        assert sum(len(own) for own, _ in left) == len(torch.unique(rows))


@dataclass(frozen=True)
class Length:
    """How much is written: so many sentences, or so many tokens."""

    sentences: int | None = 12
    tokens: int | None = None
    splitter: str = DEFAULT_SPLITTER

    def most(self, sampling: Sampling) -> int:
        if self.tokens is not None:
            return self.tokens
        assert self.sentences is not None
        return self.sentences * sampling.max_tokens


@dataclass(frozen=True)
class Written:
    text: str
    ids: tuple[int, ...]
    """The sampled tokens, of which the text may have been cut behind its last sentence."""
    ended: Ended


def seeded(seed: int) -> _prf.Words:
    """The words behind a text's random numbers."""
    drawn: _prf.Words = _prf.words(hashlib.blake2b(f"alimark/tokens/{seed}".encode(), digest_size=16).digest())[0]
    return drawn


def write(
    prompts: Sequence[list[int]],
    seeds: Sequence[int],
    engine: Engine,
    marker: Marker,
    length: Length,
    sampling: Sampling,
) -> list[Written]:
    """A text behind each prompt, all in one batch."""
    import torch

    with engine.lock, torch.inference_mode():
        return _Batch(prompts, seeds, engine, marker, length, sampling).run()


class _Batch:
    """Row i of the tensors is text `live[i]`."""

    def __init__(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], engine: Engine, marker: Marker, length: Length,
        sampling: Sampling,
    ) -> None:  # fmt: skip
        import torch

        self._engine, self._marker, self._length = engine, marker, length
        self._steps = length.most(sampling)
        self._prompts = prompts
        self._cut: Splitter = splitter(length.splitter)
        self._written: dict[int, Written] = {}
        self._source = engine.source(prompts, sampling)
        self._own = torch.zeros((len(prompts), 0), dtype=torch.long, device=engine.device)
        self._words = _prf.on(engine.device, np.stack([seeded(seed) for seed in seeds]))
        self.live = list(range(len(prompts)))

    def run(self) -> list[Written]:
        import torch

        while True:
            tokens, logs = self._source.candidates()
            number = torch.full((len(tokens),), self._own.shape[1], device=self._own.device)
            uniform = _prf.torch_unit(_prf.torch_hashed(self._words, number))
            chosen = self._marker.choose(Step(tokens, logs, self._own, uniform))
            self._own = torch.cat([self._own, chosen[:, None]], dim=1)
            self._source.take(chosen)
            self._judge(chosen.tolist())
            if not (going := [row for row, text in enumerate(self.live) if text not in self._written]):
                return [self._written[i] for i in sorted(self._written)]
            if len(going) < _COMPACT_BELOW * len(self.live):
                self._compact(going)

    def _judge(self, tokens: list[int]) -> None:
        """Ends the texts that are long enough, and those that the model has ended."""
        done = self._own.shape[1]
        look = self._length.tokens is None and (done % _STEPS_A_LOOK == 0 or done == self._steps)
        for row, text in enumerate(self.live):
            if text in self._written:
                continue
            if tokens[row] in self._engine.ends:
                self._end(text, self._own[row, :-1].tolist(), "model ended")
            elif look:
                self._look(row, text)
            if done == self._steps and text not in self._written:
                self._end(text, self._own[row].tolist(), "complete" if self._length.tokens else "token limit")

    def _look(self, row: int, text: int) -> None:
        """Ends a text whose last sentence is certainly over: the one behind it has begun."""
        wanted = self._length.sentences
        assert wanted is not None
        ids = self._own[row].tolist()
        found = self._engine.text(self._prompts[text][-_CONTEXT_IDS:], ids)
        spans = self._cut.spans(found)
        if len(spans) > wanted and spans[wanted][1] - spans[wanted][0] >= 2:
            self._end(text, ids, "complete", found[: spans[wanted - 1][1]])

    def _end(self, text: int, ids: list[int], ended: Ended, found: str | None = None) -> None:
        if found is None:
            found = self._engine.text(self._prompts[text][-_CONTEXT_IDS:], ids)
        self._written[text] = Written(found.strip(), tuple(ids), ended)

    def _compact(self, going: list[int]) -> None:
        import torch

        rows = torch.tensor(going, device=self._own.device)
        self._source.keep(rows)
        self._marker.keep(rows)
        self._own, self._words = self._own[rows], self._words[rows]
        self.live = [self.live[row] for row in going]
