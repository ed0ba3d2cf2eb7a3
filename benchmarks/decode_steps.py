"""How long a decode step of the GPU engine takes, by the number of sequences, without everything around it.

    python benchmarks/decode_steps.py --llm transformers:smollm2-135m --device cuda
    python benchmarks/decode_steps.py --sizes 8 --calls 1 --steps 1                     # small, on the CPU

A step computes one token of every sequence, sampling included. On a GPU it replays the CUDA graphs that the engine replays. The
last column is the rate that a batch of this size would have if it was always full and no token was thrown away; what
benchmarks/generation.py prints is lower, because sentences end at different times and because Python has to keep up.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from alimark import load_llm
from alimark.core.llm.base import Request, Sampling
from marked_texts import PROMPTS

_CONTEXT_TOKENS = 512


def seconds_a_step(llm: Any, size: int, calls: int, steps: int) -> float:
    """The mean time of a step, of `calls` calls of `steps` steps each."""
    import torch

    from alimark.gpu.continuous_batch import ContinuousBatch

    prompts = [llm._ids(Request(prompt, 1, 1)) for prompt in PROMPTS[: max(1, min(len(PROMPTS), size))]]
    stream: Any = torch.cuda.Stream() if llm._device.type == "cuda" else None  # type: ignore[no-untyped-call]
    with torch.inference_mode(), torch.cuda.stream(stream):
        batch = ContinuousBatch(
            llm._model, llm._layout, slots=size, contexts=len(prompts), context_tokens=_CONTEXT_TOKENS, sampling=Sampling(),
            control=llm._control, stream=stream, steps_per_call=steps,
        )  # fmt: skip
        batch.prefill(range(len(prompts)), prompts, [0] * len(prompts))
        context_of = np.sort(np.arange(size) % len(prompts))
        batch.start(range(size), context_of.tolist(), range(size))
        batch.advance(size, context_of).wait()  # records the graph
        started = time.perf_counter()
        pending = [batch.advance(size, context_of) for _ in range(calls)]
        pending[-1].wait()
        return (time.perf_counter() - started) / (calls * steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="transformers:smollm2-135m")
    parser.add_argument("--device", default="cpu", help="cuda or cpu")
    parser.add_argument("--sizes", default="256,768,1024,2048,4096", help="numbers of sequences")
    parser.add_argument("--calls", type=int, default=6, help="calls that are timed")
    parser.add_argument("--steps", type=int, default=4, help="steps of a call")
    options = parser.parse_args()
    llm = load_llm(options.llm, device=options.device)
    print(f"{llm!r}\nsequences   ms a step   tokens/s")
    for size in map(int, options.sizes.split(",")):
        seconds = seconds_a_step(llm, size, options.calls, options.steps)
        print(f"{size:>9} {1000 * seconds:>11.3f} {size / seconds:>10,.0f}", flush=True)


if __name__ == "__main__":
    main()
