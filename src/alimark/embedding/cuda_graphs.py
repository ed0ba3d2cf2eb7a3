"""A sentence encoder as CUDA graphs: one replay takes the place of hundreds of kernel launches.

Every launch from Python needs the interpreter lock, for which it often waits longer than the kernel takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from alimark._util.cuda_graphs import record

_MAX_TEXTS = 256
_LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class NotRecordable(RuntimeError):
    """The encoder cannot be recorded as a CUDA graph, because it needs the CPU on the way."""


class RecordedEncoder:
    """A sentence encoder on a GPU, recorded for each of a few text lengths. Safe to share by threads.

    encode: takes token ids and a mask of the same shape, (texts, tokens), and returns vectors, (texts, dimension). padding: the
    token id that fills up short texts. longest: the most tokens of a text.
    """

    def __init__(
        self,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        device: torch.device,
        padding: int,
        longest: int,
    ) -> None:
        self._encode, self._device, self._padding = encode, device, padding
        self._lengths = [*(n for n in _LENGTHS if n < longest), longest]
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[list[int]]) -> torch.Tensor:
        """The vectors, on the CPU, of at most 256 texts given as token ids."""
        length = next(n for n in self._lengths if n >= max(map(len, texts)))
        given = torch.zeros((2, _MAX_TEXTS, length), dtype=torch.long, pin_memory=True)
        ids, mask = given.numpy()
        ids[:] = self._padding
        mask[:, 0] = 1  # a text without tokens would lead to a division by zero
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        filled = np.arange(length) < sizes[:, None]
        ids[: len(texts)][filled] = np.concatenate([np.asarray(text) for text in texts])
        mask[: len(texts)][filled] = 1
        with self._lock:
            if length not in self._recorded:
                self._recorded[length] = self._record(length, given)
            graph, inputs, vectors = self._recorded[length]
            inputs.copy_(given, non_blocking=True)
            graph.replay()
            return vectors[: len(texts)].cpu()

    def _record(self, length: int, given: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        inputs = given.to(self._device)
        # This first run initialises libraries, which a recording does not allow.
        vectors = self._encode(inputs[0], inputs[1]).clone()

        def work() -> None:
            vectors.copy_(self._encode(inputs[0], inputs[1]))

        try:
            return record(work), inputs, vectors
        except RuntimeError as error:
            raise NotRecordable(str(error)) from error
