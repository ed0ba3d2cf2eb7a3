"""Recording of CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

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
