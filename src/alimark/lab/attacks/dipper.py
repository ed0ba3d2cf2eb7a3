"""DIPPER: a T5 of 11 billion parameters that paraphrases a text window by window, with the text written so far as context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Piece, pieces, splitter
from alimark.errors import AttackError
from alimark.lab.attacks import base
from alimark.lab.attacks._seq2seq import Network, NetworkAttack, load_network, one_line
from alimark.lab.attacks.checks import text_flaw

if TYPE_CHECKING:
    import torch

_DIVERSITIES = range(0, 101, 20)  # the values in the model's training


@dataclass(slots=True)
class _Windows:
    """A text, and the state of the attack on it."""

    index: int
    target: base.Target
    windows: list[Piece]
    tail: str
    rejected: list[str] = field(default_factory=list)
    flaw: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class Dipper(NetworkAttack):
    """Have DIPPER paraphrase the text, window by window.

    The result depends on the text and its seed only, up to rounding in a batch. On a
    GPU the model is bfloat16, and there rounding sometimes changes a token.

    With --preset paper, any rewrite that is not empty is used.
    """

    name: ClassVar[str] = "dipper"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"max_new_tokens": 100, "tries": 5}}
    model: str = base.setting(
        "kalpeshk2011/dipper-paraphraser-xxl", "DIPPER (11 billion parameters): a hub id or a folder."
    )
    tokenizer: str = base.setting("google/t5-v1_1-xxl", "The tokenizer to use where the folder of the model has none.")
    lexical: int = base.setting(60, "Lexical diversity, 0 to 100 in steps of 20: how many words change.")
    order: int = base.setting(0, "Order diversity, 0 to 100 in steps of 20: how much the order changes.")
    sentences: int = base.setting(1, "The number of sentences in a window (sent_interval).")
    top_p: float = base.top_p_setting(0.75)
    max_tokens: int = base.max_tokens_setting(512, "of a window and its context")
    tries: int = base.setting(3, "How often a text is generated before the attack on it counts as failed.")
    batch: int = base.batch_setting(8, "Texts")
    device: str = base.device_setting()
    max_new_tokens: int = base.setting(0, "The maximum number of tokens of a window's rewrite; 0 for max_tokens.")
    preset: str = base.preset_setting()

    def __post_init__(self) -> None:
        for name, value in (("lexical", self.lexical), ("order", self.order)):
            if value not in _DIVERSITIES:
                raise AttackError(f"{name} diversity must be one of 0, 20, 40, 60, 80 and 100, not {value}")
        if min(self.sentences, self.max_tokens, self.tries, self.batch) < 1:
            raise AttackError("sentences, max_tokens, tries and batch must be at least 1")
        if self.max_new_tokens < 0:
            raise AttackError(f"max_new_tokens must be at least 0, not {self.max_new_tokens}")
        if not 0 < self.top_p <= 1:
            raise AttackError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @cached_property
    def _network(self) -> Network:
        return load_network(self.model, self.device, tokenizer=self.tokenizer, bfloat16=True)

    def run(self, targets: Iterable[base.Target]) -> Iterator[tuple[int, base.Attacked]]:
        waiting = enumerate(targets)
        while batch := list(islice(waiting, self.batch)):
            yield from self._finish([self._job(index, target) for index, target in batch])

    def _job(self, index: int, target: base.Target) -> _Windows:
        sentences, tail = pieces(target.text, splitter(DEFAULT_SPLITTER))
        return _Windows(index, target, _windows(sentences, self.sentences), tail)

    def _finish(self, jobs: list[_Windows]) -> Iterator[tuple[int, base.Attacked]]:
        """Rewrites the texts of a batch, then those again whose rewrite did not pass the checks, up to `tries` times."""
        for job in jobs:
            if not job.windows:
                yield job.index, base.Attacked("", "the text holds no sentence")
        jobs = [job for job in jobs if job.windows]
        for attempt in range(self.tries):
            for job, windows in zip(jobs, self._rewrite(jobs, attempt), strict=True):
                lost = {i for i, piece in enumerate(windows) if not piece.body}
                text = base.join_without(windows, job.tail, lost)
                job.flaw = self._flaw(windows, text, job.target.text)
                if job.flaw:
                    job.rejected.append(f"{job.flaw}: {text[:80]}" if len(lost) < len(windows) else job.flaw)
                else:
                    job.rejected += ["empty"] * len(lost)  # with the paper's preset these windows are left out
                    yield job.index, base.Attacked(text, "", attempt + 1, tuple(job.rejected), tokens=job.tokens)
            jobs = [job for job in jobs if job.flaw]
        for job in jobs:
            error = f"{job.flaw} after {self.tries} tries"
            yield job.index, base.Attacked("", error, self.tries, tuple(job.rejected), tokens=job.tokens)

    def _flaw(self, windows: Sequence[Piece], text: str, original: str) -> str:
        """Why the rewritten windows are no rewrite of the text; empty where they are."""
        rewritten = [bool(piece.body) for piece in windows]
        if self.follows_public_code:
            return "" if any(rewritten) else "empty"
        return text_flaw(text, original) if all(rewritten) else "empty"

    def _rewrite(self, jobs: Sequence[_Windows], attempt: int) -> list[list[Piece]]:
        """The rewritten windows of each text. The first windows of all texts form a batch, then the second windows."""
        rewritten: list[list[Piece]] = [[] for _ in jobs]
        for number in range(max((len(job.windows) for job in jobs), default=0)):
            batch = [i for i, job in enumerate(jobs) if number < len(job.windows)]
            inputs = [self._input(rewritten[i], jobs[i].windows[number].body) for i in batch]
            seeds = [base.hashed_seed(f"alimark/dipper/{jobs[i].target.seed}/{attempt}/{number}") for i in batch]
            for i, (text, tokens) in zip(batch, self._sample(inputs, seeds), strict=True):
                rewritten[i].append(Piece(jobs[i].windows[number].lead, text))
                jobs[i].tokens += tokens
        return rewritten

    def _input(self, rewritten: Sequence[Piece], window: str) -> str:
        """The model's input, of at most `max_tokens`: where it is longer, the start of the context is cut off."""
        before: list[str] = []
        for piece in reversed(rewritten):
            if len(before) >= self.max_tokens:  # a word is at least one token, so words further back cannot fit
                break
            before = piece.body.split() + before
        before = before[-self.max_tokens :]
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
        """The input in the form of the model's training, which names similarities (100 minus the diversity)."""
        return one_line(f"lexical = {100 - self.lexical}, order = {100 - self.order} {before} <sent> {window} </sent>")

    def _count(self, texts: Sequence[str], special: bool = False) -> list[int]:
        encoded = self._network.tokenizer(list(texts), add_special_tokens=special, verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _sample(self, inputs: list[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
        """The model's output for each input, and its number of tokens."""
        from transformers import LogitsProcessorList

        rows = self._network.generate(
            inputs, self.max_tokens, do_sample=False, num_beams=1, max_new_tokens=self.max_new_tokens or self.max_tokens,
            logits_processor=LogitsProcessorList([_Nucleus(self.top_p, seeds)]),
        )  # fmt: skip
        return list(zip(self._network.decode(rows), self._network.lengths(rows), strict=True))


class _Nucleus:
    """Nucleus sampling with separate random numbers for each row, so that a row does not depend on the others.

    It adds Gumbel noise to the logits of the nucleus; the token with the largest sum is then a sample.
    """

    def __init__(self, top_p: float, seeds: Sequence[int]) -> None:
        import torch

        self._top_p = top_p
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        import torch

        size = scores.shape[1]
        numbers = torch.stack(
            [torch.rand(size, dtype=torch.float64, generator=generator) for generator in self._generators]
        )
        noise = -(-numbers.clamp_min_(1e-300).log()).log()
        return nucleus(scores.float(), self._top_p) + noise.to(scores.device, torch.float32)


def nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The scores of the most probable tokens that together have the probability `top_p`, and minus infinity for the others."""
    ordered, order = scores.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(-1)
    beyond = probabilities.cumsum(-1) - probabilities >= top_p
    return scores.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))


def _windows(sentences: Sequence[Piece], size: int) -> list[Piece]:
    """The text in windows of `size` sentences. A window also ends at the end of a line, so that layout and code stay."""
    windows: list[list[Piece]] = []
    for piece in sentences:
        if windows and len(windows[-1]) < size and not piece.lead.strip(" \t"):
            windows[-1].append(piece)
        else:
            windows.append([piece])
    return [Piece(window[0].lead, one_line(" ".join(piece.body for piece in window))) for window in windows]
