"""Time to the first sentence and seconds a text, marked by the service and unmarked by the same engine.

    python benchmarks/latency.py                                                         # one and eight users on this CPU
    python benchmarks/latency.py --llm transformers:smollm2-135m --device cuda --users 1,8,64

Every user sends one streamed chat request; all users of a row begin at the same time. Unmarked, the engine gets the same
prompts in one call: first until their first sentences are over, then for whole texts of as many tokens as the marked ones
have. The goal for the first sentence is twice the unmarked time plus one second. Rows are measured one after the other on the
same machine, so only their ratios should be compared with those of other machines. A first round without figures warms up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.candidates import FirstSentence
from alimark.core.llm.base import Message, Request, Sampling, never
from local_service import Running, add_options, running_service

QUESTIONS = (
    "Tell me a story about a lighthouse keeper.", "Describe a walk through an old town.", "Explain how bread is made.",
    "Tell me about the life of a whale.", "Describe a day at a small railway station.", "Explain why we have seasons.",
    "Tell me a story about two brothers.", "Describe a storm at sea.",
)  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """The seconds of one request, and its tokens."""

    first: float
    """Seconds to the first sentence."""
    whole: float
    tokens: int
    sampled: int


def ask(running: Running, number: int, options: argparse.Namespace) -> Timing:
    """Sends one streamed request to the service."""
    body = {
        "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}], "seed": options.seed + number,
        "sentences": options.sentences, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    started, first, sampled, tokens = time.perf_counter(), None, 0, 0
    with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if first is None and any(choice["delta"].get("content") for choice in event["choices"]):
                first = time.perf_counter() - started
            sampled += sum(event["alimark"].get("tokens_sampled") or [])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    whole = time.perf_counter() - started
    return Timing(whole if first is None else first, whole, tokens, sampled)


def marked(running: Running, users: int, options: argparse.Namespace) -> tuple[list[Timing], float]:
    """The timings of users who all ask at once, and the seconds until the last has its answer."""
    started = time.perf_counter()
    with ThreadPoolExecutor(users) as pool:
        timings = list(pool.map(lambda number: ask(running, number, options), range(users)))
    return timings, time.perf_counter() - started


def unmarked(running: Running, users: int, tokens: int, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the engine for the first sentences of all users, and for whole texts of so many tokens."""
    requests = [
        Request("", 1, options.seed + i, messages=(Message("user", QUESTIONS[i % len(QUESTIONS)]),))
        for i in range(users)
    ]

    def seconds(sampling: Sampling, stop: object) -> float:
        # An engine that takes several callers gets a request from each, as it would from as many users.
        callers = min(users, running.llm.single_draw_batching[0])
        parts = [requests[i::callers] for i in range(callers)]
        started = time.perf_counter()
        with ThreadPoolExecutor(callers) as pool:
            list(pool.map(lambda part: running.llm.draw(part, sampling, stop), parts))  # type: ignore[arg-type]
        return time.perf_counter() - started

    first = seconds(Sampling(max_tokens=128), FirstSentence(splitter(running.key.splitter)))
    return first, seconds(Sampling(max_tokens=tokens), never)


def row(users: int, timings: Sequence[Timing], total: float, first: float, whole: float) -> str:
    """A row of the table."""
    firsts = [timing.first for timing in timings]
    tokens = float(np.mean([timing.tokens for timing in timings]))
    sampled = sum(timing.sampled for timing in timings) / total
    goal = 2 * first + 1
    return (
        f"| {users} | {np.median(firsts):.2f} | {max(firsts):.2f} | {first:.2f} | {goal:.2f} | {np.median(firsts) - goal:+.2f} "
        f"| {total:.1f} | {whole:.1f} | {total / whole:.1f} | {tokens:.0f} | {sampled:,.0f} | {users * tokens / whole:,.0f} |"
    )


COLUMNS = (
    "users", "first sentence, median s", "slowest s", "unmarked s", "goal s", "distance s", "texts s", "unmarked s", "ratio",
    "tokens a text", "sampled tokens/s", "unmarked tokens/s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--users", default="1,8", help="numbers of users at once, with commas")
    parser.add_argument("--sentences", type=int, default=12)
    options = parser.parse_args()
    with running_service(options) as running:
        counts = [int(number) for number in options.users.split(",")]
        marked(running, 1, argparse.Namespace(**vars(options) | {"sentences": 2, "seed": options.seed + 10_000}))
        if options.device == "cuda":  # the first round at a size records the GPU's graphs
            for users in counts:
                marked(running, users, argparse.Namespace(**vars(options) | {"seed": options.seed + 20_000}))
                unmarked(running, users, 64, options)
        print(f"{options.llm}, {options.candidates} candidates, {options.sentences} sentences, {options.embedder}\n")
        print(f"| {' | '.join(COLUMNS)} |\n|{' ---: |' * len(COLUMNS)}", flush=True)
        for users in counts:
            timings, total = marked(running, users, options)
            tokens = round(float(np.mean([timing.tokens for timing in timings])))
            print(row(users, timings, total, *unmarked(running, users, max(2, tokens), options)), flush=True)


if __name__ == "__main__":
    main()
