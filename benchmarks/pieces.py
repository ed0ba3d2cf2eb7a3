"""Is a text found that a client asks for in pieces? Under keys that follow conversations, and under keys that do not.

    python benchmarks/pieces.py --llm stand-in --texts 40                               # stand-in models, in minutes
    python benchmarks/pieces.py --texts 12 --candidates 16                              # small, on a CPU
    python benchmarks/pieces.py --llm transformers:smollm2-135m --device cuda --texts 100 --candidates 64 --data c4.jsonl.gz

Every text is fetched as so many sentences (1s) or tokens (25t) a request until it has the sentences asked for; "whole" is one
request. As one conversation, each request continues the prompt and all that was written so far. As unrelated prompts, each
request has a prompt of its own. Each text has a key of its own. Percent found at p <= 0.01 / p <= 0.05 with 95% intervals, the
difference to one request at 0.05 (same prompts, same keys, in points), and the mean number of requests. `--save` keeps the
p-values: a second run goes on where the first stopped, and runs with other prompts (`--skip`) join them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from alimark import AliMark, Key
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import Ending, GenerationSettings, Scheduler, Session
from alimark.core.llm import load_llm
from alimark.core.llm.base import LLM, Request, Sampling, count_tokens
from alimark.core.schemes.registry import rule_for
from alimark.lab.bench.data import MANUAL, load
from alimark.lab.bench.metrics import Estimate, mean_interval, share
from alimark.lab.bench.models import secret
from alimark.testing import StandInEmbedder, StandInLLM

MOST_REQUESTS = 60
SEED = 23


class Fetcher:
    """Fetches texts in pieces, all of them side by side."""

    def __init__(self, llm: LLM, embedder: Embedder, sentences: int, candidates: int) -> None:
        self.llm, self.embedder, self.sentences, self.candidates = llm, embedder, sentences, candidates
        self.cutter = splitter()

    def _session(self, prompt: str, key: Key, piece: str, seed: int) -> Session:
        size = int(piece[:-1]) if piece != "whole" else self.sentences
        tokens = size if piece.endswith("t") else None
        read = count_tokens(self.llm, Request(prompt.rstrip(), 1, 0)) if tokens else 0

        def count(text: str) -> int:
            return count_tokens(self.llm, Request(f"{prompt.rstrip()} {text}".rstrip(" \t"), 1, 0)) - read

        settings = GenerationSettings(self.sentences if tokens else size, self.candidates, Sampling())
        return Session(prompt, key, settings, rule=rule_for, seed=seed, ending=Ending((), tokens, count))

    def _finished(self, text: str) -> bool:
        spans = self.cutter.spans(text)
        return len(spans) > self.sentences or (len(spans) == self.sentences and text.rstrip()[-1:] in '.!?"')

    def fetch(self, prompts: Sequence[str], keys: Sequence[Key], piece: str, related: bool) -> tuple[list[str], float]:
        """The texts, cut to the number of sentences, and the mean number of requests."""
        texts, requests = [""] * len(prompts), 0
        for number in range(MOST_REQUESTS):
            left = [i for i, text in enumerate(texts) if not self._finished(text)]
            if not left:
                break
            sessions = []
            for i in left:
                other = prompts[(i + number + 1) % len(prompts)]
                prompt = f"{prompts[i]} {texts[i]}".strip() if related else other
                sessions.append((i, self._session(prompt, keys[i], piece, 1000 * i + number)))
            requests += len(sessions)
            with Scheduler(self.llm, self.embedder, batch=len(sessions)) as scheduler:
                for i, generation in scheduler.run(iter(sessions)):
                    if isinstance(generation, Exception):
                        raise generation
                    texts[i] = f"{texts[i]} {generation.text}".strip()
        return [self._cut(text) for text in texts], requests / len(prompts)

    def _cut(self, text: str) -> str:
        spans = self.cutter.spans(text)
        return text[: spans[min(len(spans), self.sentences) - 1][1]] if spans else text


def p_values(texts: Sequence[str], keys: Sequence[Key], embedder: Embedder) -> list[float]:
    """The p-value of each text under its key."""
    marks = (AliMark(key, embedder=embedder) for key in keys)
    return [mark.detect(text, draws=199).p_value for mark, text in zip(marks, texts, strict=True)]


def found(values: Sequence[float]) -> str:
    """The shares found at both rates, each with its interval."""
    estimates = (share(sum(p <= rate for p in values), len(values)) for rate in (0.01, 0.05))
    return " / ".join(_percent(estimate) for estimate in estimates)


def lost(whole: Sequence[float], pieces: Sequence[float]) -> str:
    """The share found in pieces less the share found of one request, at 0.05."""
    return _percent(mean_interval((np.array(pieces) <= 0.05) - 1.0 * (np.array(whole) <= 0.05)))


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} ({100 * estimate.low:.0f} to {100 * estimate.high:.0f})"


class Results:
    """The p-values of the texts of each row, in a file where one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def add(self, **row: object) -> None:
        self.rows.append(row)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def has(self, **fields: object) -> bool:
        return any(all(row[name] == value for name, value in fields.items()) for row in self.rows)

    def values(self, starts: str, piece: str, related: bool, skips: set[int] | None = None) -> list[float]:
        """The p-values of a row over all runs, or over the runs with these prompts, in the order of the prompts."""
        rows = [
            row for row in self.rows if (row["starts"], row["piece"], row["related"]) == (starts, piece, related)
            and (skips is None or row["skip"] in skips)
        ]  # fmt: skip
        return [p for row in sorted(rows, key=lambda row: row["skip"]) for p in row["p"]]

    def line(self, starts: str, piece: str) -> str:
        """One row of the table, as Markdown."""
        rows = [row for row in self.rows if (row["starts"], row["piece"]) == (starts, piece)]
        together = self.values(starts, piece, True)
        apart = self.values(starts, piece, False)
        skips = {row["skip"] for row in rows if row["related"]}
        whole = self.values(starts, "whole", True, skips)
        requests = np.average([row["requests"] for row in rows if row["related"]])
        difference = lost(whole, together) if piece != "whole" and len(whole) == len(together) else ""
        return (
            f"| {starts} | {piece} | {len(together)} | {found(together)} | {difference} | {requests:.1f} | "
            f"{found(apart) if apart else ''} | {sum(row['seconds'] for row in rows):.0f} |"
        )


def models(name: str, device: str | None, threads: int | None) -> tuple[LLM, Embedder]:
    if name == "stand-in":
        return StandInLLM(), StandInEmbedder()
    if device:
        return load_llm(name, device=device), load_embedder("all-MiniLM-L6-v2", backend="torch", device=device)
    return load_llm(name, threads=threads) if threads else load_llm(name), load_embedder("all-MiniLM-L6-v2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--device", help="cuda: the models on the GPU")
    parser.add_argument("--data", default=MANUAL, help="a data set of the bench, whose prompts are used")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--skip", type=int, default=0, help="prompts left out")
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--pieces", nargs="+", default=["whole", "1s", "2s", "3s", "4s", "25t", "50t", "100t"])
    parser.add_argument("--starts", nargs="+", default=["conversation", "text"])
    parser.add_argument("--unrelated", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--threads", type=int, help="CPU threads of a llama.cpp model")
    parser.add_argument("--save", type=Path, help="JSONL of p-values, which is continued where it exists")
    args = parser.parse_args()
    llm, embedder = models(args.llm, args.device, args.threads)
    prompts = [item.prompt for item in load(args.data, 4, most=args.texts, skip=args.skip).items]
    fetcher, results = Fetcher(llm, embedder, args.sentences, args.candidates), Results(args.save)
    print(
        "| keys | a request gives | texts | as one conversation | less one request, points | requests | as unrelated prompts "
        "| seconds |\n" + "| --- " * 8 + "|"
    )
    for starts in args.starts:
        keys = [Key.generate(secret=secret(SEED, prompt), embedder=embedder, starts=starts) for prompt in prompts]
        for piece in args.pieces:
            for related in (True, False) if args.unrelated and piece != "whole" else (True,):
                row = {"starts": starts, "piece": piece, "related": related, "skip": args.skip}
                if not results.has(**row):
                    started = time.perf_counter()
                    texts, requests = fetcher.fetch(prompts, keys, piece, related)
                    p = p_values(texts, keys, embedder)
                    results.add(**row, p=p, requests=requests, seconds=round(time.perf_counter() - started, 1))
            print(results.line(starts, piece), flush=True)


if __name__ == "__main__":
    main()
