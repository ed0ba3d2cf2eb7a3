"""The GPU's kernel against the plain products of _lanes, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [(3, 3, 64, None), (1, 4, 256, None), (2, 1, 32, None), (3, 3, 64, 20), (2, 2, 32, 5)]
"""Heads, groups, width, window."""


def check() -> None:
    import torch

    from alimark.llm import _kernel, _lanes

    torch.manual_seed(0)
    contexts, rows = 2, 10
    for heads, groups, width, window in CASES:
        for step in (1, 2, 9, 21):
            shape = _lanes.Shape(1, heads, width, torch.float32, torch.device("cpu"))
            lanes = _lanes.Lanes(None, shape, contexts, rows, 70, 32)
            lanes.memory.normal_()
            lanes._own.normal_()
            lanes._counts, lanes._live, lanes._longest, lanes._done = [5, 5], rows, 66, step
            lanes._lengths.copy_(torch.tensor([66, 17]))
            lanes._step.fill_(step)
            lanes._text.copy_(torch.arange(contexts).repeat_interleave(5))
            query = torch.randn(rows, heads * groups, 1, width)
            key = torch.randn(rows, 1, heads, width).transpose(1, 2)  # in the order in which a model gives it
            value = torch.randn(rows, heads, 1, width)
            own = lanes._own[0].clone()
            plain = lanes.attend(0, query, key, value, 0.3, window, None)
            fast = _kernel.attend(query, key, value, lanes.memory[0], own, lanes._lengths, lanes._step, 0.3, window)
            torch.testing.assert_close(fast, plain, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(own, lanes._own[0], atol=0, rtol=0)


def test_the_kernel_gives_what_the_plain_products_give() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    # In a process of its own: Triton decides at import whether it interprets.
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", "from test_kernel import check; check()"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
