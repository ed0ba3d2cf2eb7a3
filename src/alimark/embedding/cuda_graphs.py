"""Recordings of what a GPU does, as CUDA graphs: one replay takes the place of hundreds of launches.

Every launch from Python waits for the interpreter, which other threads use too, often for longer than the kernel takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from alimark._util.cuda_graphs import record

_ROWS = 256
_TOKENS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class NotRecordable(RuntimeError):
    """The work leaves the GPU on its way."""


class RecordedEncoder:
    """A sentence encoder on a GPU, recorded for each of a few lengths. Safe to share by threads.

    `encode` takes tokens and a mask of the same shape, (rows, tokens), and gives vectors, (rows, dimension).
    """

    def __init__(
        self,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        device: torch.device,
        padding: int,
        longest: int,
    ) -> None:
        self._encode, self._device, self._padding = encode, device, padding
        self._lengths = [*(n for n in _TOKENS if n < longest), longest]
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._lock = threading.Lock()

    def __call__(self, rows: Sequence[list[int]]) -> torch.Tensor:
        """The vectors of texts given as tokens, at most 256, on the CPU."""
        length = next(n for n in self._lengths if n >= max(map(len, rows)))
        given = torch.zeros((2, _ROWS, length), dtype=torch.long, pin_memory=True)
        ids, mask = given.numpy()
        ids[:] = self._padding
        mask[:, 0] = 1  # a row without tokens would divide by none
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        filled = np.arange(length) < sizes[:, None]
        ids[: len(rows)][filled] = np.concatenate([np.asarray(row) for row in rows])
        mask[: len(rows)][filled] = 1
        with self._lock:
            if length not in self._recorded:
                self._recorded[length] = self._record(length, given)
            graph, kept, out = self._recorded[length]
            kept.copy_(given, non_blocking=True)
            graph.replay()
            return out[: len(rows)].cpu()

    def _record(self, length: int, given: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        kept = given.to(self._device)
        out = self._encode(kept[0], kept[1]).clone()  # libraries set themselves up the first time

        def work() -> None:
            out.copy_(self._encode(kept[0], kept[1]))

        try:
            return record(work), kept, out
        except RuntimeError as error:
            raise NotRecordable(str(error)) from error
