"""DIPPER: a T5 of 11 billion parameters that paraphrases a window of a text in sight of what was written before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from alimark.attacks._seq2seq import Network, one_line, writer
from alimark.attacks.base import Attack, Attacked, Target
from alimark.attacks.checks import text_flaw
from alimark.attacks.settings import DipperSettings
from alimark.errors import AttackError
from alimark.text.splitting import DEFAULT_SPLITTER, Piece, join, pieces, splitter

if TYPE_CHECKING:
    import torch

_DIVERSITIES = range(0, 101, 20)  # what the model was trained with


@dataclass(slots=True)
class _Job:
    """A text on its way."""

    place: int
    target: Target
    windows: list[Piece]
    tail: str
    rejected: list[str] = field(default_factory=list)
    flaw: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class Dipper(DipperSettings, Attack):
    """Have DIPPER paraphrase the text, window by window.

    What it samples is a function of the text and its seed, up to the rounding of a batch. On a GPU the
    model is bfloat16, where that rounding moves a token now and then.
    """

    name: ClassVar[str] = "dipper"
    by_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for setting, value in (("lexical", self.lexical), ("order", self.order)):
            if value not in _DIVERSITIES:
                raise AttackError(f"{setting} diversity is one of 0, 20, 40, 60, 80 and 100, not {value}")
        if min(self.sentences, self.max_tokens, self.tries, self.batch) < 1:
            raise AttackError("sentences, max_tokens, tries and batch are at least 1")
        if not 0 < self.top_p <= 1:
            raise AttackError(f"top_p is above 0 and at most 1, not {self.top_p}")

    @cached_property
    def _network(self) -> Network:
        return writer(self.model, self.device, tokenizer=self.tokenizer, half=True)

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        waiting = enumerate(targets)
        while some := list(islice(waiting, self.batch)):
            yield from self._finish([self._job(place, target) for place, target in some])

    def _job(self, place: int, target: Target) -> _Job:
        row, tail = pieces(target.text, splitter(DEFAULT_SPLITTER))
        return _Job(place, target, _windows(row, self.sentences), tail)

    def _finish(self, jobs: list[_Job]) -> Iterator[tuple[int, Attacked]]:
        """All texts of a batch; those whose rewrite is flawed once more, together."""
        for job in jobs:
            if not job.windows:
                yield job.place, Attacked("", "the text holds no sentence")
        jobs = [job for job in jobs if job.windows]
        for attempt in range(self.tries):
            for job, made in zip(jobs, self._write(jobs, attempt), strict=True):
                text = join(made, job.tail)
                job.flaw = "empty" if not all(piece.body for piece in made) else text_flaw(text, job.target.text)
                if job.flaw:
                    job.rejected.append(f"{job.flaw}: {text[:80]}")
                else:
                    yield job.place, Attacked(text, "", attempt + 1, tuple(job.rejected), tokens=job.tokens)
            jobs = [job for job in jobs if job.flaw]
        for job in jobs:
            why = f"{job.flaw} after {self.tries} tries"
            yield job.place, Attacked("", why, self.tries, tuple(job.rejected), tokens=job.tokens)

    def _write(self, jobs: Sequence[_Job], attempt: int) -> list[list[Piece]]:
        """The rewritten windows of each text: the first of all texts at once, then the second of those that have one."""
        made: list[list[Piece]] = [[] for _ in jobs]
        for number in range(max((len(job.windows) for job in jobs), default=0)):
            live = [i for i, job in enumerate(jobs) if number < len(job.windows)]
            inputs = [self._input(made[i], jobs[i].windows[number].body) for i in live]
            seeds = [_seed(jobs[i].target.seed, attempt, number) for i in live]
            for i, (said, tokens) in zip(live, self._sample(inputs, seeds), strict=True):
                made[i].append(Piece(jobs[i].windows[number].lead, said))
                jobs[i].tokens += tokens
        return made

    def _input(self, made: Sequence[Piece], window: str) -> str:
        """What the model reads, at most `max_tokens` of it: the farthest of what was written before goes first."""
        # A word is a token at least, so no more of them can matter.
        before = " ".join(piece.body for piece in made).split()[-self.max_tokens :]
        text = self.prompt(" ".join(before), window)
        excess = self._count([text], special=True)[0] - self.max_tokens
        if excess <= 0:
            return text
        start = 0
        for size in self._count(before) if before else []:
            if excess <= 0:
                break
            start, excess = start + 1, excess - size
        return self.prompt(" ".join(before[start:]), window)

    def prompt(self, before: str, window: str) -> str:
        """In the words the model was trained with, which give similarities where the settings give diversities."""
        return one_line(f"lexical = {100 - self.lexical}, order = {100 - self.order} {before} <sent> {window} </sent>")

    def _count(self, texts: Sequence[str], special: bool = False) -> list[int]:
        read = self._network.tokenizer(list(texts), add_special_tokens=special, verbose=False)
        return [len(ids) for ids in read["input_ids"]]

    def _sample(self, inputs: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
        """What the model says to each input, and in how many tokens."""
        import torch
        from transformers import LogitsProcessorList

        network = self._network
        with torch.inference_mode():
            rows = network.model.generate(
                **network.encode(inputs, self.max_tokens),
                do_sample=False,
                num_beams=1,
                max_new_tokens=self.max_tokens,
                logits_processor=LogitsProcessorList([_Nucleus(self.top_p, seeds)]),
            )
        padding = network.model.generation_config.pad_token_id
        lengths = (rows[:, 1:] != padding).sum(1).tolist()
        return list(zip(network.decode(rows), lengths, strict=True))


class _Nucleus:
    """Sampling with each row's own random numbers, so that a row does not depend on the others.

    The likeliest token, once Gumbel noise is added to the logits of the nucleus, is a draw from it.
    """

    def __init__(self, top_p: float, seeds: Sequence[int]) -> None:
        import torch

        self._top_p = top_p
        self._sources = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        import torch

        size = scores.shape[1]
        numbers = torch.stack([torch.rand(size, dtype=torch.float64, generator=one) for one in self._sources])
        noise = -(-numbers.clamp_min_(1e-300).log()).log()
        return nucleus(scores.float(), self._top_p) + noise.to(scores.device, torch.float32)


def nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The scores of the likeliest tokens that together have the probability `top_p`; minus infinity for the others."""
    ordered, order = scores.sort(dim=-1, descending=True)
    chances = ordered.softmax(-1)
    beyond = chances.cumsum(-1) - chances >= top_p
    return scores.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))


def _windows(row: Sequence[Piece], size: int) -> list[Piece]:
    """`size` sentences as one. A window ends with its line, too: what stands between lines is layout and code, which stays."""
    found: list[list[Piece]] = []
    for piece in row:
        if found and len(found[-1]) < size and not piece.lead.strip(" \t"):
            found[-1].append(piece)
        else:
            found.append([piece])
    return [Piece(window[0].lead, one_line(" ".join(piece.body for piece in window))) for window in found]


def _seed(seed: int, attempt: int, window: int) -> int:
    return int.from_bytes(hashlib.sha256(f"alimark/dipper/{seed}/{attempt}/{window}".encode()).digest()[:6], "big")
