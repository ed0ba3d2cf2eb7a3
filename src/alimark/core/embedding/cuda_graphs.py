"""A sentence encoder as CUDA graphs: one replay takes the place of hundreds of kernel launches.

Every launch from Python needs the interpreter lock, for which it often waits longer than the kernel takes. Batches have one
of a few shapes, and a graph is recorded for each shape when it first occurs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_TEXTS = (8, 16, 32, 64, 128, 256, 512)
_TOKENS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)  # the fast attention kernels want multiples of 8
_MAX_TOKENS = 32768  # most tokens of a batch, padding included, which bounds its memory

_recording = threading.Lock()


def record(
    work: Callable[[], None], stream: torch.cuda.Stream | None = None, shared: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """Record the GPU work of `work` as a CUDA graph without running it.

    Every replay reads and writes the same tensors, so they must stay alive. shared: a graph whose memory pool is shared.
    """
    graph = torch.cuda.CUDAGraph()
    pool = None if shared is None else shared.pool()
    with (
        _recording,  # two recordings at a time disturb each other
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        work()
    return graph


class NotRecordable(RuntimeError):
    """The encoder cannot be recorded as a CUDA graph, because it needs the CPU on the way."""


class Shape(NamedTuple):
    """The size that a batch is padded to."""

    texts: int
    tokens: int


def plan_batches(lengths: Sequence[int], longest: int) -> Iterator[tuple[Shape, NDArray[np.intp]]]:
    """Yields batches of texts of similar length, longest first, each with its shape and the numbers of its texts.

    lengths: the tokens of each text. longest: the most tokens that a text may have.
    """
    order = np.argsort([-length for length in lengths], kind="stable")
    sizes = [*(size for size in _TOKENS if size < longest), longest]
    start = 0
    while start < len(order):
        fit = next(i for i, size in enumerate(sizes) if size >= lengths[order[start]])
        shorter = sizes[fit - 1] if fit else 0
        rows = [count for count in _TEXTS if count * sizes[fit] <= max(_MAX_TOKENS, _TEXTS[0] * longest)]
        alike = sum(1 for i in order[start : start + rows[-1]] if lengths[i] > shorter)
        # Rows that texts of this length leave free are filled with shorter ones, which costs nothing.
        count = next(count for count in rows if count >= alike)
        yield Shape(count, sizes[fit]), order[start : start + count]
        start += count


class RecordedEncoder:
    """A sentence encoder on a GPU, recorded for each of a few shapes of batches. Safe to share by threads.

    `encode` takes token ids and a mask of the same shape, (texts, tokens), and returns vectors. On a CPU nothing is recorded.
    """

    def __init__(
        self,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        device: torch.device,
        padding: int,
        longest: int,
    ) -> None:
        self._encode, self._device, self._padding, self._longest = encode, device, padding, longest
        self._recorded: dict[Shape, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[list[int]]) -> torch.Tensor:
        """The vectors of texts given as token ids, on the device. The GPU may still be at work when it returns."""
        parts, places = [], []
        with self._lock:
            for shape, numbers in plan_batches(list(map(len, texts)), self._longest):
                parts.append(self._run(self._padded([texts[i] for i in numbers], shape), shape)[: len(numbers)])
                places.append(numbers)
            where = torch.from_numpy(np.argsort(np.concatenate(places))).to(self._device, non_blocking=True)
            return torch.cat(parts)[where]

    def _padded(self, texts: Sequence[list[int]], shape: Shape) -> torch.Tensor:
        """Token ids and mask, (2, texts, tokens)."""
        given = torch.zeros((2, *shape), dtype=torch.long, pin_memory=self._device.type == "cuda")
        ids, mask = given.numpy()
        ids[:] = self._padding
        mask[:, 0] = 1  # a text without tokens would lead to a division by zero
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        filled = np.arange(shape.tokens) < sizes[:, None]
        ids[: len(texts)][filled] = np.concatenate([np.asarray(text, np.int64) for text in texts])
        mask[: len(texts)][filled] = 1
        return given

    def _run(self, given: torch.Tensor, shape: Shape) -> torch.Tensor:
        if self._device.type != "cuda":
            return self._encode(given[0], given[1])
        if shape not in self._recorded:
            self._recorded[shape] = self._record(given)
        graph, inputs, vectors = self._recorded[shape]
        inputs.copy_(given, non_blocking=True)
        graph.replay()
        return vectors.clone()  # the next replay of this graph overwrites the vectors

    def _record(self, given: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        inputs = given.to(self._device)
        # This first run initialises libraries, which a recording does not allow.
        vectors = self._encode(inputs[0], inputs[1]).clone()

        def work() -> None:
            vectors.copy_(self._encode(inputs[0], inputs[1]))

        # Graphs run one after the other, so that they can share the memory of what they compute on the way.
        shared = next((graph for graph, _, _ in self._recorded.values()), None)
        try:
            return record(work, shared=shared), inputs, vectors
        except RuntimeError as error:
            raise NotRecordable(str(error)) from error
