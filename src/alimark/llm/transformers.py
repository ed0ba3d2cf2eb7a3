"""safetensors weights (or GGUF ones, converted once) on transformers and torch, sampled by our own loop.

The prompt is evaluated once and its cache repeated for every draw. The uniform numbers of a draw depend on the
seed and the draw's number alone, so draws do not depend on how many are made at a time, up to the rounding of a
batch's logits. A draw whose sentence is over leaves the batch.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import ContextFull, LLMError, MissingExtra
from alimark.llm.base import Draw, Ended, Over, Request, Sampling
from alimark.text import STOPS

if TYPE_CHECKING:
    import torch

ROWS = 256
"""Draws in one batch; more are sampled in turns."""

# Below this share of live rows the batch is made smaller, which copies the cache.
_COMPACT_BELOW = 0.75

# A token without one of these cannot bring a sentence to its end; a broken character might be one of them in part.
_MARKS = frozenset("".join(STOPS)) - {" "} | {"\ufffd"}

# Tokens of the prompt decoded along with a draw: a tokenizer may write a first word without its space.
_CONTEXT_IDS = 8


class Transformers:
    """A causal language model from a safetensors folder, a hub id or a GGUF file. One call at a time runs.

    Neither pickled weights nor code that comes with a model is ever loaded.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str | None = None,
        name: str | None = None,
        dtype: str | None = None,
        add_bos: int | None = None,
    ) -> None:
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError:
            raise MissingExtra("transformers", "transformers") from None
        self._name = name or Path(source).stem
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        if str(source).endswith(".gguf"):
            source = _converted(Path(source))
        self._tokenizer, self._model = _load(source, {"dtype": getattr(torch, kind)})
        self._model.to(self._device).eval()
        self._add_bos = add_bos
        self._ends = _end_ids(self._tokenizer, self._model)
        # A model kept from ending its turn would open the next one: no control token is text.
        control = sorted(self._ends | set(self._tokenizer.all_special_ids))
        self._control = torch.tensor(control, dtype=torch.long, device=self._device)
        self._marks: dict[int, bool] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<Transformers {self.name} on {self._device}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        import torch

        with self._lock, torch.inference_mode():
            prompts = [self._prompt(request.context, sampling) for request in requests]
            return [
                self._draw(request, prompt, sampling, over) for request, prompt in zip(requests, prompts, strict=True)
            ]

    def _prompt(self, context: str, sampling: Sampling) -> list[int]:
        ids: list[int] = self._tokenizer(context, verbose=False)["input_ids"]
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
        if not ids:
            raise LLMError("the context is empty; give the model a prompt to continue")
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and len(ids) + sampling.max_tokens > most:
            raise ContextFull(
                f"{len(ids)} tokens of context leave no room for {sampling.max_tokens} more in the {most} "
                "that this model takes; write fewer sentences, or use a model with a longer context"
            )
        return ids

    def _draw(self, request: Request, prompt: list[int], sampling: Sampling, over: Over) -> list[Draw]:
        import torch
        from transformers import DynamicCache

        ids = torch.tensor([prompt], device=self._device)
        cache = DynamicCache(config=self._model.config)
        logits = self._model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        draws: list[Draw] = []
        while len(draws) < request.count:
            n = min(ROWS, request.count - len(draws))
            first = request.first + len(draws)
            last = len(draws) + n == request.count
            rows = [_Row(self, number, prompt, over) for number in range(first, first + n)]
            own = cache if last else copy.deepcopy(cache)
            own.batch_repeat_interleave(n)
            seen = torch.zeros((n, logits.shape[1]), dtype=torch.bool, device=self._device)
            seen[:, prompt] = True
            uniforms = uniform_numbers(request.seed, first, n, sampling.max_tokens)
            batch = _Batch(own, logits.repeat_interleave(n, dim=0), seen, torch.from_numpy(uniforms).to(self._device))
            self._run(rows, batch, sampling)
            draws += [row.draw() for row in rows]
        return draws

    def _run(self, rows: list[_Row], batch: _Batch, sampling: Sampling) -> None:
        """Sample until every row has ended; rows and batch shrink together."""
        import torch

        for step in range(sampling.max_tokens):
            logits = batch.logits if sampling.may_end else batch.logits.index_fill(1, self._control, -torch.inf)
            tokens = sample(logits, batch.seen, sampling, batch.uniforms[:, step])
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.take(token)
            live = [i for i, row in enumerate(rows) if row.ended is None]
            if not live or step + 1 == sampling.max_tokens:
                break
            batch.seen.scatter_(1, tokens[:, None], True)
            if len(live) < _COMPACT_BELOW * len(rows):
                kept = torch.tensor(live, device=self._device)
                batch.keep(kept)
                rows, tokens = [rows[i] for i in live], tokens[kept]
            batch.logits = self._model(tokens[:, None], past_key_values=batch.cache).logits[:, -1]

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _marks_end(self, token: int) -> bool:
        """Whether a token's text holds a sign that sentences end with."""
        if token not in self._marks:
            self._marks[token] = not _MARKS.isdisjoint(self._text([token]))
        return self._marks[token]


@dataclass(slots=True)
class _Batch:
    """What the rows of a batch hold on the device."""

    cache: Any
    logits: torch.Tensor  # of the token to come
    seen: torch.Tensor  # which tokens a row's context and text hold
    uniforms: torch.Tensor  # one number for each token to come

    def keep(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.seen, self.uniforms = self.seen[rows], self.uniforms[rows]


class _Row:
    """A draw in progress. Its text is made only once a mark has been sampled, and before that no end is possible."""

    def __init__(self, llm: Transformers, number: int, prompt: list[int], over: Over) -> None:
        self.number = number
        self.ended: Ended | None = None
        self._llm = llm
        self._over = over
        self._before = prompt[-_CONTEXT_IDS:]
        self._ids: list[int] = []
        self._text = ""
        self._marked = False

    def take(self, token: int) -> None:
        if self.ended is not None:  # rows that have ended sample on until the batch is made smaller
            return
        self._ids.append(token)
        if token in self._llm._ends:
            self._text, self.ended = self._read(self._ids[:-1]), "model"
            return
        self._marked = self._marked or self._llm._marks_end(token)
        if not self._marked:
            return
        before, self._text = self._text, self._read(self._ids)
        end = _first_stop_end(self._text, len(before))
        # A sentence may be over at the mark while the start of the next word, unfinished, would leave it open.
        if end is not None and self._over(self._text[:end]):
            self._text, self.ended = self._text[:end], "sentence"
        elif self._text.strip() and self._over(self._text):
            self.ended = "sentence"

    def draw(self) -> Draw:
        if self.ended is None:
            self._text = self._read(self._ids)
        return Draw(self._text, len(self._ids), self.ended or "length")

    def _read(self, ids: list[int]) -> str:
        before = self._llm._text(self._before)
        # A character cut in two by the last token is no part of the text yet.
        return self._llm._text(self._before + ids)[len(before) :].rstrip("\ufffd")


def _first_stop_end(text: str, known: int) -> int | None:
    """Where the first stop ends that reaches beyond the `known` characters, leading white space aside."""
    start = len(text) - len(text.lstrip())
    longest = max(map(len, STOPS))
    ends = (
        at + len(stop)
        for stop in STOPS
        if (at := text.find(stop, max(start, known - longest))) >= 0 and at + len(stop) > known
    )
    return min(ends, default=None)


def uniform_numbers(seed: int, first: int, count: int, steps: int) -> NDArray[np.float64]:
    """Row i: the numbers of draw `first + i`, a function of (seed, first + i) whatever the other arguments are."""
    rows = np.empty((count, steps))
    for i in range(count):
        digest = hashlib.blake2b(f"{seed} {first + i}".encode(), digest_size=16).digest()
        rows[i] = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big"))).random(steps)
    return rows


def sample(logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor) -> torch.Tensor:
    """One token a row: the inverse of the filtered distribution's cumulative sum at the row's uniform number."""
    import torch

    weights, ids = filtered(logits, seen, sampling)
    cumulative = weights.double().cumsum(dim=1)
    target = uniforms[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True).clamp_(max=weights.shape[1] - 1)
    return ids.gather(1, index)[:, 0]


def filtered(logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens of each row, best first: their probabilities, zero outside top-p, and their ids.

    Repetition penalty on `seen` tokens, then temperature, then top-p: the order and the rules of transformers.
    """
    import torch

    scores = logits.float()
    penalty = sampling.repetition_penalty
    scores = torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    weights = torch.softmax(scores / sampling.temperature, dim=1)
    # All tokens below this together weigh less than what top-p drops, so none of them stays: sorting can leave them out.
    least = (1 - sampling.top_p) / weights.shape[1]
    most = int((weights > least).sum(dim=1).max())
    weights, ids = weights.topk(max(1, most), dim=1)
    above = weights.cumsum(dim=1) - weights
    weights = weights.masked_fill(above >= sampling.top_p, 0) if sampling.top_p < 1 else weights
    return weights, ids


def _end_ids(tokenizer: Any, model: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)


def _load(source: str | Path, model_options: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"trust_remote_code": False, **options}
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source), **safe)
            model = AutoModelForCausalLM.from_pretrained(str(source), use_safetensors=True, **safe, **model_options)
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"transformers cannot load {source}: {reason}") from error
    return tokenizer, model


def _converted(path: Path) -> Path:
    """The folder of safetensors made from a GGUF file; transformers takes minutes to read one, so it is done once."""
    from filelock import FileLock

    from alimark.models import store

    if not path.is_file():
        raise LLMError(f"there is no GGUF file at {path}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    root = store.home() / "converted"
    folder = root / f"{path.stem}-{digest[:16]}"
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{folder.name}.lock"):
        if folder.is_dir():
            return folder
        staging = Path(tempfile.mkdtemp(dir=root, prefix=".staging-"))
        try:
            _convert(path, staging)
            os.replace(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _convert(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):  # its progress bar heeds no setting
        # Half precision holds what was made of a few bits a weight, in half the space.
        tokenizer, read = _load(path.parent, {"dtype": torch.float16}, gguf_file=path.name)
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):  # the numbers are plain by now, yet it would not be saved with that
        del config.quantization_config
    with _quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice on stderr."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
