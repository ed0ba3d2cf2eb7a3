"""The GPU's kernels against plain products, by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = [(3, 3, 64, None), (1, 4, 256, None), (2, 1, 32, None), (3, 3, 64, 20), (2, 2, 32, 5), (1, 16, 16, None)]
"""Heads, groups, width, window."""


def check() -> None:
    import numpy as np
    import torch

    from alimark.core.llm.base import Sampling
    from alimark.gpu import continuous_batch, kernels, sampling
    from alimark.gpu.attention import AttentionCall, KVLayout

    torch.manual_seed(0)
    slots, context_of = 11, np.array([0, 0, 1, 0, -1, 1, 0, 0, 1, 0, 0])  # the fifth slot is empty
    live = context_of >= 0
    for heads, groups, width, window in CASES:
        batch = continuous_batch.ContinuousBatch(
            None,
            KVLayout(1, heads, groups, width, torch.float32, torch.device("cpu")),
            slots=slots,
            contexts=2,
            context_tokens=70,
            sampling=Sampling(max_tokens=32),
            control=torch.tensor([], dtype=torch.long),
            stream=None,
            steps_per_call=1,
        )
        batch.context_kv.normal_()
        batch._own_kv.normal_()
        batch._context_lengths.copy_(torch.tensor([66, 17]))
        batch._step.copy_(torch.tensor([0, 1, 2, 8, 0, 20, 20, 31, 5, 9, 7]))
        batch._context_of.copy_(torch.tensor(context_of.clip(0)))
        batch.arrange(slots, context_of)
        query = torch.randn(slots, heads * groups, 1, width)
        key = torch.randn(slots, 1, heads, width).transpose(1, 2)  # in the order in which a model gives it
        value = torch.randn(slots, heads, 1, width)
        angles = torch.randn(slots, width // 2).repeat(1, 2)
        per = kernels.QUERIES // groups
        table = torch.from_numpy(continuous_batch.attention_blocks(context_of, per, slots // per + 2))
        for rope in (None, (angles.cos(), angles.sin())):
            own, out = batch._own_kv[0].clone(), torch.zeros(slots, heads * groups, width)
            fast = kernels.attend(
                query[:, :, 0], key[:, :, 0], value[:, :, 0], rope, batch.context_kv[0], own,
                table, batch._context_of, batch._context_lengths, batch._step, 0.3, window, out,
            )  # fmt: skip
            q, k = (query, key) if rope is None else (rotated(query, *rope), rotated(key, *rope))
            plain = batch.attend(AttentionCall(0, q, k, value, 0.3, window))
            torch.testing.assert_close(fast[live], plain[live, 0], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(own[:, live], batch._own_kv[0][:, live], atol=1e-6, rtol=1e-6)
    for spread, size in ((1.0, 5000), (4.0, 9000)):
        scores, numbers = torch.randn(12, size) * spread, torch.rand(12, 4, dtype=torch.float64)
        scores[:, 7] = -torch.inf
        same = kernels.choose(scores, 0.9, numbers) == sampling.choose(scores.softmax(dim=1), 0.9, numbers)
        assert same.sum() >= 11  # one at the very edge of two tokens may fall on either side
    both = torch.randn(5, 1, 2 * 1030)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(kernels.gated(both, gelu=False), torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(kernels.gated(both, gelu=True), torch.nn.functional.gelu(gate, approximate="tanh") * up)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return apply_rotary_pos_emb(x, x, cos[:, None], sin[:, None])[0]


def test_the_kernels_give_what_plain_products_give() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    # In a process of its own: Triton decides at import whether it interprets.
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", "from test_kernel import check; check()"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
