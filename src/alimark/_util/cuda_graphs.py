"""Recording GPU work as a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

_recording = threading.Lock()


def record(work: Callable[[], None], stream: torch.cuda.Stream | None = None, pool: Any = None) -> torch.cuda.CUDAGraph:
    """What `work` does, without doing it. What it works on must be there again at every replay."""
    graph = torch.cuda.CUDAGraph()
    with (
        _recording,  # two at a time disturb each other
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        work()
    return graph
