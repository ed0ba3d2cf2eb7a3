"""The sampling loop of token-level schemes: texts are generated token by token in batches, and a marker chooses the tokens.

An engine returns the candidate tokens and their probabilities. A marker gets the tokens of the text, never those of the
prompt. Every random number is a hash of the text's seed and the step, so that a text does not depend on its batch, except for
rounding errors of the model's logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from alimark.core.frozen.text.splitting import Splitter
from alimark.lab.rivals import _prf

if TYPE_CHECKING:
    import torch

    from alimark.core.generation.settings import Ended, GenerationSettings
    from alimark.lab.rivals._token_engines import Bias, TokenEngine


_STEPS_BETWEEN_SPLITS = 8  # splitting at every token would take longer than sampling
_COMPACT_BELOW = 0.75
_CONTEXT_IDS = 8  # decoded together with a text, because a tokenizer may drop the space before a first word


@dataclass(frozen=True)
class TokenStep:
    """What a marker chooses the next tokens from; one row for each text of the batch."""

    tokens: torch.Tensor  # the tokens of the nucleus, likeliest first
    logs: torch.Tensor  # their log-probabilities; -inf after the last token of a row
    text_ids: torch.Tensor  # the tokens that the text has so far
    uniform: torch.Tensor  # a uniform random number for each row

    @property
    def number(self) -> int:
        """The number of tokens that each text has so far."""
        return self.text_ids.shape[1]

    def sampled(self, logs: torch.Tensor) -> torch.Tensor:
        """Samples a token for each row by these log-probabilities, which need not be normalised."""
        import torch

        sums = torch.softmax(logs.double(), dim=1).cumsum(dim=1)
        places = (sums < self.uniform[:, None] * sums[:, -1:]).sum(dim=1, keepdim=True)
        return self.tokens.gather(1, places.clamp(max=logs.shape[1] - 1))[:, 0]


class Marker:
    """The part of a watermark that chooses tokens. Every batch of texts has its own marker."""

    def bias(self, text_ids: torch.Tensor) -> Bias | None:
        """What is added to the logits before temperature and top-p, if anything. Called once for each step, before `choose`."""
        return None

    def choose(self, step: TokenStep) -> torch.Tensor:
        """Chooses a token for each row."""
        raise NotImplementedError

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only these rows, because the other texts are finished; for markers that remember something of each row."""


class AddedBias(Marker):
    """A marker that adds numbers to the logits, before temperature and top-p ("logits") or after both ("nucleus")."""

    def __init__(self, place: str) -> None:
        self._place = place

    def added(self, text_ids: torch.Tensor) -> Bias | None:
        """What is added to the tokens after these texts."""
        raise NotImplementedError

    def bias(self, text_ids: torch.Tensor) -> Bias | None:
        return self.added(text_ids) if self._place == "logits" else None

    def choose(self, step: TokenStep) -> torch.Tensor:
        return step.sampled(self.biased(step))

    def biased(self, step: TokenStep) -> torch.Tensor:
        """The biased log-probabilities, not normalised. Those of a key that adds to the logits are biased already."""
        added = self.added(step.text_ids) if self._place == "nucleus" else None
        return step.logs if added is None else step.logs + added(step.tokens)


class PerKey(Marker):
    """The marker of a batch with several keys: each row goes to the marker of its key."""

    def __init__(self, parts: Sequence[tuple[list[int], Marker]], device: torch.device) -> None:
        import torch

        self._parts = [(torch.tensor(rows, device=device), marker) for rows, marker in parts]

    def bias(self, text_ids: torch.Tensor) -> Bias | None:
        every = [(rows, marker.bias(text_ids[rows])) for rows, marker in self._parts]
        parts = [(rows, bias) for rows, bias in every if bias is not None]

        def together(tokens: torch.Tensor) -> torch.Tensor:
            added = tokens.new_zeros(tokens.shape).float()
            for rows, bias in parts:
                added[rows] = bias(tokens[rows])
            return added

        return together if parts else None

    def choose(self, step: TokenStep) -> torch.Tensor:
        chosen = step.tokens[:, 0].clone()
        for rows, marker in self._parts:
            part = TokenStep(step.tokens[rows], step.logs[rows], step.text_ids[rows], step.uniform[rows])
            chosen[rows] = marker.choose(part)
        return chosen

    def keep(self, rows: torch.Tensor) -> None:
        kept = []
        for marker_rows, marker in self._parts:
            # Pairs of the place of a kept row among this marker's rows and its new place in the batch.
            pairs = (marker_rows[:, None] == rows[None, :]).nonzero()
            if len(pairs):
                marker.keep(pairs[:, 0])
                kept.append((pairs[:, 1], marker))
        self._parts = kept


def most_tokens(settings: GenerationSettings) -> int:
    """The most tokens that a text may have."""
    return settings.tokens or settings.sentences * settings.sampling.max_tokens


@dataclass(frozen=True)
class Written:
    """A finished text."""

    text: str
    ids: tuple[int, ...]
    """The sampled tokens. Their end is missing from the text where it was cut after its last sentence."""
    ended: Ended


def seeded(seed: int) -> _prf.Words:
    """The words that a text's random numbers are hashed from."""
    drawn: _prf.Words = _prf.words(hashlib.blake2b(f"alimark/tokens/{seed}".encode(), digest_size=16).digest())[0]
    return drawn


class Batch:
    """Texts that are generated together, one after each prompt, a list of tokens. Row i of the tensors is text `live[i]`."""

    def __init__(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], engine: TokenEngine, marker: Marker,
        settings: GenerationSettings, cut: Splitter,
    ) -> None:  # fmt: skip
        import torch

        self._engine, self._marker, self._settings, self._cut = engine, marker, settings, cut
        self._steps = most_tokens(settings)
        self._prompts = prompts
        self._written: dict[int, Written] = {}
        self._source = engine.source(prompts, settings.sampling)
        self._text_ids = torch.zeros((len(prompts), 0), dtype=torch.long, device=engine.device)
        self._words = _prf.on(engine.device, np.stack([seeded(seed) for seed in seeds]))
        self.live = list(range(len(prompts)))

    def run(self) -> list[Written]:
        """Generates the texts."""
        import torch

        with self._engine.lock, torch.inference_mode():
            while going := [row for row, text in enumerate(self.live) if text not in self._written]:
                if len(going) < _COMPACT_BELOW * len(self.live):
                    self._compact(going)
                chosen = self._marker.choose(self._sample())
                self._text_ids = torch.cat([self._text_ids, chosen[:, None]], dim=1)
                self._source.take(chosen)
                self._end_finished(chosen.tolist())
        return [self._written[i] for i in sorted(self._written)]

    def _sample(self) -> TokenStep:
        import torch

        tokens, logs = self._source.candidates(self._marker.bias(self._text_ids))
        number = torch.full((len(tokens),), self._text_ids.shape[1], device=self._text_ids.device)
        return TokenStep(tokens, logs, self._text_ids, _prf.torch_unit(_prf.torch_hashed(self._words, number)))

    def _end_finished(self, tokens: list[int]) -> None:
        """Ends the texts that are long enough, and those that the model has ended."""
        done = self._text_ids.shape[1]
        split = self._settings.tokens is None and (done % _STEPS_BETWEEN_SPLITS == 0 or done == self._steps)
        for row, text in enumerate(self.live):
            if text in self._written:
                continue
            if tokens[row] in self._engine.ends:
                self._end(text, self._text_ids[row, :-1].tolist(), "model ended")
            elif split:
                self._end_if_complete(row, text)
            if done == self._steps and text not in self._written:
                self._end(text, self._text_ids[row].tolist(), "complete" if self._settings.tokens else "token limit")

    def _end_if_complete(self, row: int, text: int) -> None:
        """Ends a text that has enough sentences. The start of a further sentence shows that the last one is complete."""
        sentences = self._settings.sentences
        ids = self._text_ids[row].tolist()
        decoded = self._decoded(text, ids)
        spans = self._cut.spans(decoded)
        if len(spans) > sentences and spans[sentences][1] - spans[sentences][0] >= 2:
            self._end(text, ids, "complete", decoded[: spans[sentences - 1][1]])

    def _end(self, text: int, ids: list[int], ended: Ended, decoded: str | None = None) -> None:
        content = self._decoded(text, ids) if decoded is None else decoded
        self._written[text] = Written(content.strip(), tuple(ids), ended)

    def _decoded(self, text: int, ids: list[int]) -> str:
        return self._engine.text(self._prompts[text][-_CONTEXT_IDS:], ids)

    def _compact(self, going: list[int]) -> None:
        """Drops the rows of finished texts."""
        import torch

        rows = torch.tensor(going, device=self._text_ids.device)
        self._source.keep(rows)
        self._marker.keep(rows)
        self._text_ids, self._words = self._text_ids[rows], self._words[rows]
        self.live = [self.live[row] for row in going]
