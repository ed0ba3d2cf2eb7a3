"""AliMark and the rivals on the same prompts: what each finds before and after deletion and reordering, and what each
costs.

    python benchmarks/rivals.py fit      --data booksum.jsonl --output rivals      # what some of them learn
    python benchmarks/rivals.py generate --data booksum.jsonl --output rivals --texts 40 [--device cuda]
    python benchmarks/rivals.py score    --data booksum.jsonl --output rivals [--attacked more.jsonl]

`--data` is a JSONL file of `prompt` and `natural_text`, or a name that the bench knows. The first texts of it are continued,
human texts from the start on are the negatives, and learning sees the last ones alone, which are never scored. Every text has
a key of its own, which follows from its method, its prompt and `--seed`: an experiment's keys protect nothing. `generate`
appends to rivals/texts.jsonl and goes on where it stopped; the token-level methods write with `--llm transformers:NAME` alone.
`score` needs no language model. A method's statistic is the z of its own paper, of soft AliMark, EXP and SIR the score.
`--attacked` takes what `alimark attack --input rivals/texts.jsonl` wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from alimark import load, load_embedder, load_llm
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.detection.results import Detection
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.schemes.registry import scheme
from alimark.errors import AlimarkError, AttackError
from alimark.lab.attacks import load_attack, seed_for
from alimark.lab.bench.data import DataSet
from alimark.lab.bench.data import load as load_data
from alimark.lab.bench.metrics import auroc_interval, tpr_at
from alimark.lab.bench.vectors import KeptVectors

METHODS: dict[str, dict[str, Any]] = {
    "AliMark": {"decision": "hard"},
    "AliMark soft": {"decision": "soft"},
    "SemStamp": {"scheme": "semstamp"},
    "k-SemStamp": {"scheme": "k-semstamp"},
    "SimMark": {"scheme": "simmark"},
    "PMark": {"scheme": "pmark"},
    "SAMark": {"scheme": "samark"},
    "KGW": {"scheme": "kgw"},
    "EXP": {"scheme": "exp"},
    "SynthID": {"scheme": "synthid"},
    "SIR": {"scheme": "sir"},
}
LEARN = ("k-semstamp", "simmark", "sir")


@dataclass(frozen=True)
class Job:
    options: argparse.Namespace
    embedder: Embedder
    data: DataSet

    @property
    def folder(self) -> Path:
        folder: Path = self.options.output
        return folder

    def key(self, method: str, text: str) -> Key:
        wanted = METHODS[method]
        name = wanted.get("scheme", "alimark")
        secret = hashlib.sha256(f"rivals/{self.options.seed}/{method}/{text}".encode("utf-8", "surrogatepass")).digest()
        more: dict[str, Any] = {"fitted": learned(self.folder / f"{name}.npz")} if name in LEARN else {}
        return Key.generate(**wanted, **more, embedder=self.embedder, secret=secret)

    @property
    def learning(self) -> list[str]:
        """The last human texts, beyond those that are continued or scored."""
        options = self.options
        used = max(options.texts, options.negatives)
        texts = self.data.human[used:][-options.learn :]
        if len(texts) < 20:
            raise AlimarkError(
                f"only {len(texts)} of {len(self.data.human)} texts are left to learn from; score fewer (--negatives)"
            )
        return texts


@cache
def learned(path: Path) -> Fitted:
    return Fitted.load(path)


def fit(job: Job) -> None:
    """What the methods that are asked for learn, where it was not learned before."""
    asked = {METHODS[method].get("scheme") for method in job.options.methods}
    for name in LEARN:
        path = job.folder / f"{name}.npz"
        if name in asked and not path.exists():
            made = scheme(name).fit(job.learning, job.embedder)  # type: ignore[attr-defined]
            made.save(path)
            print(f"{name}: {dict(made.origin)}")


def generate(job: Job) -> None:
    options = job.options
    fit(job)
    llm = load_llm(options.llm) if options.device is None else load_llm(options.llm, device=options.device)
    prompts = [item.prompt for item in job.data.items[: options.texts]]
    with JsonlWriter(job.folder / "texts.jsonl") as writer:
        for method in options.methods:
            left = [n for n in range(len(prompts)) if f"{method}/{n}" not in writer.done]
            if not left:
                continue
            jobs = [Prompt(prompts[n], options.seed + n, job.key(method, prompts[n])) for n in left]
            first = jobs[0].key
            assert first is not None
            mark = load(first, embedder=job.embedder)
            settings = GenerationSettings(options.sentences, mark.candidates)
            started = time.perf_counter()
            for place, made in mark.generate_many(jobs, llm, settings):
                if isinstance(made, AlimarkError):
                    raise made
                writer.write(made.record(f"{method}/{left[place]}") | {"method": method})
            print(f"{method}: {len(left)} texts in {time.perf_counter() - started:.0f} s", flush=True)


def every_fifth_deleted(text: str, own: str) -> str:
    units = splitter().sentences(text)
    return " ".join(unit for i, unit in enumerate(units, 1) if i % 5)


def attack(name: str, rate: float) -> Callable[[str, str], str]:
    made = load_attack(name, rate=rate)

    def run(text: str, own: str) -> str:
        return made(text, seed=seed_for(name, 1, own))

    return run


ATTACKS: dict[str, Callable[[str, str], str]] = {
    "none": lambda text, own: text,
    "every fifth sentence deleted": every_fifth_deleted,
    "reordered at 0.2": attack("reorder", 0.2),
    "reordered at 0.5": attack("reorder", 0.5),
}


def score(job: Job) -> None:
    options = job.options
    records = [record for _, record in read_jsonl(job.folder / "texts.jsonl") if isinstance(record, dict)]
    own = {str(record["id"]): record for record in records}
    attacked: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records:
        for name, change in ATTACKS.items():
            with suppress(AttackError):  # one sentence cannot be reordered; the table counts the texts of each row
                attacked[name][str(record["id"])] = change(record["text"], str(record["id"]))
    for path in options.attacked or []:
        for _, made in read_jsonl(path):
            if isinstance(made, dict) and not made.get("failed") and made.get("parent_id") in own:
                attacked[f"{made['attack']['name']} ({path.stem})"][str(made["parent_id"])] = made["text"]
    human = job.data.human[: options.negatives]
    there = {record["method"] for record in records}
    methods = [method for method in METHODS if method in there and method in options.methods]
    print(
        f"{'method':13} {'attack':30} {'texts':>5} {'AUROC':>22} {'TPR@5%':>22} {'TPR@1%':>22} {'p <= 5%':>8} {'p <= 1%':>8}"
    )
    for method in methods:
        mark = load(job.key(method, ""), embedder=job.embedder)
        mine = [text for some in attacked.values() for parent, text in some.items() if own[parent]["method"] == method]
        every = [*human, *mine]
        for start in range(0, len(every), 32):  # once, in full batches
            job.embedder.embed(list(dict.fromkeys(mark.units(every[start : start + 32]))))
        negatives = [detect(job, method, text, text) for text in human]
        row(method, f"human ({len(human)} texts)", negatives, None)
        for name, texts in attacked.items():
            some = [(text, own[parent]["prompt"]) for parent, text in texts.items() if own[parent]["method"] == method]
            if some:
                row(method, name, [detect(job, method, text, prompt) for text, prompt in some], negatives)
    costs(methods, records)


def detect(job: Job, method: str, text: str, secret: str) -> Detection:
    mark = load(job.key(method, secret), embedder=job.embedder)
    kind: Any = type(mark).settings
    settings: RandomKeys = kind(draws=job.options.draws)
    [found] = mark.detect_batch([text], settings)
    if isinstance(found, AlimarkError):
        raise found
    return found


def statistics(found: Sequence[Detection]) -> list[float]:
    return [one.score if one.z is None else one.z for one in found]


def row(method: str, attack: str, found: Sequence[Detection], negatives: Sequence[Detection] | None) -> None:
    nominal = [f"{100 * np.mean([one.p_value <= p for one in found]):7.1f}%" for p in (0.05, 0.01)]
    rates = ["", "", ""]
    if negatives is not None:
        ours, theirs = statistics(found), statistics(negatives)
        for i, one in enumerate([auroc_interval(ours, theirs), tpr_at(ours, theirs, 0.05), tpr_at(ours, theirs, 0.01)]):
            rates[i] = (
                "too few" if one is None else f"{100 * one.value:5.1f} [{100 * one.low:5.1f}, {100 * one.high:5.1f}]"
            )
    print(
        f"{method:13} {attack:30} {len(found):5} {rates[0]:>22} {rates[1]:>22} {rates[2]:>22} {' '.join(nominal)}",
        flush=True,
    )


def costs(methods: Sequence[str], records: Sequence[Record]) -> None:
    print(
        f"\n{'method':13} {'sentences':>9} {'candidates each':>16} {'tokens each':>12} {'calls each':>11} {'rule not met':>13}"
    )
    for method in methods:
        some = [record for record in records if record["method"] == method]
        count = sum(len(record["sentences"]) for record in some)
        candidates, tokens, waves = (
            sum(one["cost"][name] for one in some) / count for name in ("candidates", "tokens", "waves")
        )
        unmet = [record["unmet"] for record in some if "unmet" in record]
        told = f"{sum(unmet)} of {count}" if unmet else "-"
        print(f"{method:13} {count:9} {candidates:16.1f} {tokens:12.0f} {waves:11.2f} {told:>13}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("fit", "generate", "score"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder of texts.jsonl and of what was learned")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS), help="comma-separated")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--negatives", type=int, default=200)
    parser.add_argument("--learn", type=int, default=100, help="human texts to learn from")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda: language model and embedder on the GPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attacked", type=Path, nargs="*", help="further attacked records of the same texts")
    options = parser.parse_args()
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}; known: {', '.join(METHODS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    backend: Any = "auto" if options.device is None else "torch"
    embedder = load_embedder(options.embedder, backend=backend, device=options.device)
    with KeptVectors(embedder, options.output / "vectors") as vectors:
        job = Job(options, vectors if options.step == "score" else embedder, load_data(options.data, options.sentences))
        {"fit": fit, "generate": generate, "score": score}[options.step](job)


if __name__ == "__main__":
    main()
