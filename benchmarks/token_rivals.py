"""The token-level rivals with real weights: are p-values of human text uniform, is marked text found, what do attacks leave?

    python benchmarks/token_rivals.py fit      --data c4.jsonl.gz --output rivals                  # SIR's network
    python benchmarks/token_rivals.py generate --data booksum.jsonl.gz --output rivals [--device cuda]
    python benchmarks/token_rivals.py attack   --output rivals                                     # synonyms
    python benchmarks/token_rivals.py null     --data booksum.jsonl.gz c4.jsonl.gz --output rivals
    python benchmarks/token_rivals.py score    --data booksum.jsonl.gz --output rivals [--attacked more.jsonl]

`--data`: JSONL files of `prompt` and `natural_text`. The first distinct prompts are continued by `--tokens` tokens, human texts
cut to as many are the negatives, and SIR learns from the last texts alone, which nothing else sees. Every text has a key of its
own, which follows from its method, its prompt and `--seed`: an experiment's keys protect nothing. `generate` appends to
rivals/texts.jsonl and goes on where it stopped; all other steps need no language model. `null` prints a Kolmogorov-Smirnov test
of the p-values, ties broken at random. `--attacked` takes what `alimark attack NAME --input rivals/texts.jsonl` wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from alimark import load, load_embedder, load_llm
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.detection.results import Detection
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError
from alimark.lab.attacks import Target, load_attack, seed_for
from alimark.lab.bench.metrics import auroc_interval, tpr_at
from alimark.lab.rivals.sir import SIR
from alimark.lab.rivals.tokens import load_tokenizer

METHODS = {"KGW": "kgw", "EXP": "exp", "SynthID": "synthid", "SIR": "sir"}
DRAWS = {"EXP": 100}


@dataclass(frozen=True)
class Job:
    options: argparse.Namespace

    @property
    def folder(self) -> Path:
        folder: Path = self.options.output
        return folder

    @cached_property
    def records(self) -> list[Record]:
        """Of the data, each prompt and each text once."""
        seen: dict[str, Record] = {}
        for path in self.options.data:
            for _, record in read_jsonl(path):
                if not isinstance(record, dict):
                    raise record
                seen.setdefault(record["natural_text"], record)
        return list({record["prompt"]: record for record in reversed(seen.values())}.values())[::-1]

    @cached_property
    def embedder(self) -> Embedder:
        backend: Any = "auto" if self.options.device is None else "torch"
        return load_embedder("all-MiniLM-L6-v2", backend=backend, device=self.options.device)

    @cached_property
    def network(self) -> Fitted:
        return Fitted.load(self.folder / "sir.safetensors")

    def key(self, method: str, text: str) -> Key:
        secret = hashlib.sha256(f"rivals/{self.options.seed}/{method}/{text}".encode("utf-8", "surrogatepass")).digest()
        more: dict[str, Any] = {"embedder": self.embedder, "fitted": self.network} if method == "SIR" else {}
        return Key.generate(scheme=METHODS[method], secret=secret, **more)

    def mark(self, method: str, text: str) -> Any:
        return load(self.key(method, text), embedder=self.embedder if method == "SIR" else None)

    def detect(self, method: str, text: str, secret: str) -> Detection:
        found: Detection = self.mark(method, secret).detect(text, draws=DRAWS.get(method, self.options.draws))
        return found

    def human(self, count: int) -> list[str]:
        """Human texts, cut to the length of the marked ones; shorter ones are passed over."""
        tokenizer, tokens = load_tokenizer("smollm2-135m"), self.options.tokens
        found: list[str] = []
        for record in self.records:
            ids = tokenizer.ids(record["natural_text"])
            if len(ids) >= tokens:
                found.append(tokenizer.text(ids[:tokens]))
            if len(found) == count:
                break
        return found


def fit(job: Job) -> None:
    texts = [record["natural_text"] for record in job.records[-job.options.learn :]]
    started = time.perf_counter()
    made = SIR.fit(texts, job.embedder)
    made.save(job.folder / "sir.safetensors")
    print(f"SIR: {dict(made.origin)}, {time.perf_counter() - started:.0f} s")


def generate(job: Job) -> None:
    options = job.options
    llm = load_llm(options.llm) if options.device is None else load_llm(options.llm, device=options.device)
    prompts = [record["prompt"] for record in job.records[: options.texts]]
    with JsonlWriter(job.folder / "texts.jsonl") as writer:
        for method in options.methods:
            left = [n for n in range(len(prompts)) if f"{method}/{n}" not in writer.done]
            if not left:
                continue
            jobs = [Prompt(prompts[n], options.seed + n, job.key(method, prompts[n])) for n in left]
            settings = GenerationSettings(tokens=options.tokens, candidates=1)
            started = time.perf_counter()
            mark = job.mark(method, prompts[left[0]])
            for place, made in mark.generate_many(jobs, llm, settings, batch=options.batch):
                if isinstance(made, AlimarkError):
                    raise made
                writer.write(made.record(f"{method}/{left[place]}") | {"method": method})
            print(f"{method}: {len(left)} texts in {time.perf_counter() - started:.0f} s", flush=True)


def attack(job: Job) -> None:
    records = list(written(job.folder / "texts.jsonl"))
    for rate in (0.3, 1.0):
        made = load_attack("synonyms", rate=rate)
        with JsonlWriter(job.folder / f"synonyms-{rate}.jsonl") as writer:
            left = [record for record in records if str(record["id"]) not in writer.done]
            targets = (Target(one["text"], seed_for("synonyms", 1, str(one["id"]))) for one in left)
            for place, done in made.run(targets):
                own = str(left[place]["id"])
                writer.write({"id": own, "parent_id": own, "text": done.text, "attack": f"synonyms {rate}",
                              "failed": done.failed})  # fmt: skip

        print(
            f"synonyms {rate}: {100 * changed(records, job.folder / f'synonyms-{rate}.jsonl'):.0f}% of the words changed"
        )


def changed(records: Sequence[Record], path: Path) -> float:
    """The share of the words of the texts that an attack did not keep in their order."""
    texts = {str(record["id"]): record["text"].split() for record in records}
    shares = []
    for record in written(path):
        if not record.get("failed"):
            before, after = texts[record["parent_id"]], record["text"].split()
            kept = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
            shares.append(1 - sum(block.size for block in kept) / max(1, len(before)))
    return float(np.mean(shares))


def written(path: Path) -> Iterator[Record]:
    for _, record in read_jsonl(path):
        if not isinstance(record, dict):
            raise record
        yield record


def null(job: Job) -> None:
    from scipy import stats

    human = job.human(job.options.negatives)
    print(f"{len(human)} human texts of {job.options.tokens} tokens, a key each; p-values with ties broken at random")
    for method in job.options.methods:
        started = time.perf_counter()
        found = [job.detect(method, text, text) for text in human]
        seconds = (time.perf_counter() - started) / len(found)
        test = stats.kstest([one.p_randomised for one in found], "uniform")
        rates = ", ".join(f"{100 * np.mean([one.p_value <= p for one in found]):.1f}% at {p:g}" for p in (0.01, 0.05))
        print(f"{method:8} Kolmogorov-Smirnov D {test.statistic:.4f}, p {test.pvalue:.3f}; found: {rates}; "
              f"{seconds:.2f} s a text{closed(found)}", flush=True)  # fmt: skip


def closed(found: Sequence[Detection]) -> str:
    """The same test of the tails that a scheme knows in closed form; a count has steps, so its tail is not quite uniform."""
    from scipy import stats

    names = [name for name in ("p_binomial", "p_normal") if name in found[0].evidence]
    tests = {name: stats.kstest([one.evidence[name] for one in found], "uniform") for name in names}
    return "".join(f"; {name}: D {test.statistic:.4f}" for name, test in tests.items())


def score(job: Job) -> None:
    options = job.options
    records = {str(record["id"]): record for record in written(job.folder / "texts.jsonl")}
    attacked: dict[str, dict[str, str]] = defaultdict(dict)
    attacked["none"] = {own: record["text"] for own, record in records.items()}
    for path in [*sorted(job.folder.glob("synonyms-*.jsonl")), *options.attacked]:
        for record in written(path):
            if not record.get("failed") and record.get("parent_id") in records:
                made = record["attack"]
                attacked[made if isinstance(made, str) else made["name"]][record["parent_id"]] = record["text"]
    human = job.human(options.negatives)
    print(
        f"{'method':8} {'attack':14} {'texts':>5} {'AUROC':>22} {'TPR@5%':>22} {'TPR@1%':>22} {'p <= 5%':>8} {'p <= 1%':>8}"
    )
    for method in options.methods:
        negatives = [job.detect(method, text, text).score for text in human]
        for name, texts in attacked.items():
            some = [(text, records[own]) for own, text in texts.items() if records[own]["method"] == method]
            if some:
                row(method, name, [job.detect(method, text, record["prompt"]) for text, record in some], negatives)


def row(method: str, name: str, found: Sequence[Detection], negatives: Sequence[float]) -> None:
    ours = [one.score for one in found]
    intervals = [auroc_interval(ours, negatives), tpr_at(ours, negatives, 0.05), tpr_at(ours, negatives, 0.01)]
    rates = [
        "too few" if one is None else f"{100 * one.value:5.1f} [{100 * one.low:5.1f}, {100 * one.high:5.1f}]"
        for one in intervals
    ]
    nominal = [f"{100 * np.mean([one.p_value <= p for one in found]):7.1f}%" for p in (0.05, 0.01)]
    print(
        f"{method:8} {name:14} {len(found):5} {' '.join(f'{one:>22}' for one in rates)} {' '.join(nominal)}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("fit", "generate", "attack", "null", "score"))
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    parser.add_argument("--output", type=Path, required=True, help="folder of texts.jsonl and of SIR's network")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS), help="comma-separated")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--negatives", type=int, default=500)
    parser.add_argument("--learn", type=int, default=200, help="human texts that SIR learns from")
    parser.add_argument("--draws", type=int, default=1000, help="random keys behind a p-value; EXP has 100")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--llm", default="transformers:smollm2-135m")
    parser.add_argument("--device", help="cuda: language model and embedder on the GPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--attacked", type=Path, nargs="*", default=[], help="further attacked records of the same texts"
    )
    options = parser.parse_args()
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}; known: {', '.join(METHODS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    {"fit": fit, "generate": generate, "attack": attack, "null": null, "score": score}[options.step](Job(options))


if __name__ == "__main__":
    main()
