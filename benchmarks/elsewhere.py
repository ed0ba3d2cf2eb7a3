"""What of a bench recipe needs a GPU, done on a machine that has one and little else, and brought back.

    python benchmarks/elsewhere.py jobs RECIPE work --set ... --output jobs.jsonl      # here
    python benchmarks/elsewhere.py do jobs.jsonl made --device cuda                     # there: no pydantic, no typer, no data
    python benchmarks/elsewhere.py take made work                                       # here again; then `alimark bench run`

The jobs are the recipe's texts, its attacks by chat models and those that need neither a model nor other texts (also in
chains), the detections of its sentence-level watermarks and the perplexities it asks for, as far as the workspace lacks them,
with their ids, seeds and keys, so that the bench takes the records for its own. `do` writes each record as soon as it is made
and goes on where it was stopped. A job whose parent failed is left out. Texts that are there already travel with the jobs; all
other attacks are for the bench itself, and come first. The keys are the bench's, which protect nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.embedding.base import Embedder
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM
    from alimark.lab.bench.jobs import Cell, Job, TextToAttack
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.vectors import KeptVectors

STAGES = ("generate", "attack", "detect", "quality")
_CHAT_ATTACKS = ("chat", "chat-sentences")
_ATTACKS_THERE = (*_CHAT_ATTACKS, "delete", "reorder", "merge", "split", "truncate")
_READ_TOGETHER = 32
_EMBEDDED_TOGETHER = 2000  # texts: a GPU wants full batches
_RESTRUCTURED_TOGETHER = 64


# Here


def jobs(args: argparse.Namespace) -> None:
    from alimark.lab.bench.models import LEARNED
    from alimark.lab.bench.recipe_files import load
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    run = Run(load(args.recipe, args.overrides, args.profiles), Workspace(args.workspace))
    run.fit()
    of_stage = {"generate": _texts_to_write, "attack": _attacks, "detect": _detections, "quality": _readings}
    found = [job for stage in args.stages for job in of_stage[stage](run)]
    learned = {name: run.models.fitted(f"{LEARNED}{name}").public() for name in run.lessons}
    known = run.texts(list(dict.fromkeys(job["source"] for job in found if "source" in job)))
    there: list[Record] = [{"id": _name(own), "stage": "text", "text": text} for own, text in known.items()]
    there += [{"id": name, "stage": "fitted", "fitted": content} for name, content in learned.items()]
    lines = [json.dumps(job | ({"source": _name(job["source"])} if "source" in job else {}), ensure_ascii=False)
             for job in there + found]  # fmt: skip
    write_whole(args.output, ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
    print({stage: sum(job["stage"] == stage for job in found) for stage in args.stages})


def _name(source: str) -> str:
    """A human text is its own source, and is scored under many keys: it travels once, and goes by its hash."""
    return (
        hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest() if source.startswith("human:") else source
    )


def _sent(run: Run, cell: Cell, own: bytes) -> Record:
    """A key's parameters and its secret. What the run learned travels once, and a key names its file."""
    from alimark.lab.bench.models import LEARNED, key_for

    key = key_for(cell.watermark, own, run.models)
    public = key.public() | ({} if key.payload is None else {"payload": key.payload})
    learned = str(cell.watermark.key.get("fitted", "")).removeprefix(LEARNED)
    if learned in run.lessons:
        public["fitted"] = learned
    return {name: public[name] for name in public if name not in ("version", "fingerprint")} | {"secret": own.hex()}


def _texts_to_write(run: Run) -> Iterator[Record]:
    from alimark.lab.bench.models import secret
    from alimark.lab.bench.run import text_seed

    for job in run.missing("generate", run.generate_jobs()):
        cell, item, settings, marked, _ = job.content
        key = _sent(run, cell, secret(cell.recipe.seed, item.prompt)) if marked else None
        yield {"id": job.id, "stage": "generate", "llm": cell.recipe.llm.name, "prompt": item.prompt,
               "seed": text_seed(job.id), "settings": asdict(settings), "key": key}  # fmt: skip


def _attacks(run: Run) -> Iterator[Record]:
    """Of a chain, the steps up to the first one that is for the bench itself."""
    wanted: list[Job[TextToAttack]] = []
    for cell, attack, item in run.attacked_items():
        chain = run.attack_job(cell, item, attack).chain
        wanted += itertools.takewhile(lambda step: step.content.attack.name in _ATTACKS_THERE, chain)
    for job in run.missing("attack", wanted):
        _, _, attack, parent, seed = job.content
        yield {"id": job.id, "stage": "attack", "source": parent, "attack": attack.name, "settings": attack.settings,
               "seed": seed, **({} if parent.startswith("human:") else {"parent_id": parent})}  # fmt: skip


def _detections(run: Run) -> Iterator[Record]:
    """All that need an embedder alone or with a chat model that restructures; PMark's online form asks the text's writer."""
    from alimark.core.parameters import parameters_class
    from alimark.core.schemes.registry import asks_llm
    from alimark.lab.bench.models import key_for, secret

    for job in run.missing("detect", run.detect_jobs()):
        cell, detection, source, secret_text, number = job.content
        embeds = parameters_class(cell.watermark.scheme).embeds
        if embeds and not asks_llm(key_for(cell.watermark, bytes(32), run.models)):
            key = _sent(run, cell, secret(cell.recipe.seed, secret_text, number))
            yield {"id": job.id, "stage": "detect", "source": source, "key": key, "options": detection.options,
                   "llm": detection.llm}  # fmt: skip


def _readings(run: Run) -> Iterator[Record]:
    from quality import readings

    for job in run.missing("quality", readings(run)):
        yield {"id": job.id, "stage": "quality", "source": job.content[1], "prompt": job.content[0],
               "oracle": job.group[0]}  # fmt: skip


def take(args: argparse.Namespace) -> None:
    """Adds what was made to the workspace's records, once each."""
    for stage in STAGES:
        if (args.made / f"{stage}.jsonl").exists() and (made := _records(args.made / f"{stage}.jsonl")):
            with JsonlWriter(args.workspace / "records" / f"{stage}.jsonl") as writer:
                new = [one for one in made if one["id"] not in writer.done]
                for record in new:
                    writer.write(record)
            print(f"{stage}: {len(new)}")


Step: TypeAlias = "Callable[[list[Record], dict[str, str], argparse.Namespace], Iterator[Record]]"


# There: nothing below imports more of the bench than its oracle, its kept vectors and the form of its records


def do(args: argparse.Namespace) -> None:
    args.made.mkdir(parents=True, exist_ok=True)
    every = _records(args.jobs)
    texts = {job["id"]: job["text"] for job in every if job["stage"] == "text"}
    for stage in ("generate", "attack"):
        if (args.made / f"{stage}.jsonl").exists():
            texts |= {record["id"]: record.get("text", "") for record in _records(args.made / f"{stage}.jsonl")}
    _fitted.update({job["id"]: job["fitted"] for job in every if job["stage"] == "fitted"})
    steps: dict[str, Step] = {
        "generate": _generate, "attack": _attack, "detect": _detect, "quality": _quality,
    }  # fmt: skip
    for stage in args.stages:
        jobs_left = [job for job in every if job["stage"] == stage]
        while ready := _do_ready(stage, jobs_left, texts, args, steps[stage]):
            # An attack may be on the result of another attack, which was made just now. No job is tried twice in a run.
            jobs_left = [job for job in jobs_left if job["id"] not in ready]


def _do_ready(stage: str, jobs: list[Record], texts: dict[str, str], args: argparse.Namespace, make: Step) -> set[str]:
    """Makes the records of the jobs whose texts exist, adds the new texts to `texts`, and returns the ids of these jobs."""
    path = args.made / f"{stage}.jsonl"
    with JsonlWriter(path) as writer:
        left = [job for job in jobs if job["id"] not in writer.done]
        ready = [job for job in left if "source" not in job or texts.get(job["source"])]
        print(f"{stage}: {len(ready)} to do, {len(left) - len(ready)} without a text", flush=True)
        for number, record in enumerate(make(ready, texts, args), 1):
            writer.write(record)
            if number % 20 == 0:
                print(f"{stage}: {number} of {len(ready)}", flush=True)
    texts |= {record["id"]: record.get("text", "") for record in _records(path)}
    return {job["id"] for job in ready}


def _records(path: Path) -> list[Record]:
    return [record for _, record in read_jsonl(path) if isinstance(record, dict)]


def _groups(jobs: Iterable[Record], same: Callable[[Record], Any]) -> Iterator[list[Record]]:
    """Jobs that one model does in one go."""
    groups: dict[str, list[Record]] = {}
    for job in jobs:
        groups.setdefault(json.dumps(same(job), sort_keys=True), []).append(job)
    yield from groups.values()


def _alike(job: Record) -> Any:
    public = {name: value for name, value in (job["key"] or {}).items() if name not in ("secret", "payload")}
    return job["llm"], public, job["settings"]


def _embedder(name: str, args: argparse.Namespace) -> Embedder:
    from alimark.core.embedding.loading import load_embedder

    on_device: Any = {"backend": "torch", "device": args.device} if args.device else {}
    return load_embedder(name, precision=args.precision, **on_device)


_fitted: dict[str, Record] = {}
"""What was learned from text, by the name of its file."""


def _key(sent: Record, embedder: Embedder | None) -> Key:
    from alimark.core.frozen.parameters import AliMarkParameters
    from alimark.core.keys.fitted import Fitted
    from alimark.core.keys.key import Key
    from alimark.core.parameters import parameters_class

    kind = parameters_class(sent["scheme"])
    parameters = kind.of(sent["parameters"]) if "parameters" in sent else AliMarkParameters.parse(sent)
    learned = sent.get("fitted")
    return Key(
        bytes.fromhex(sent["secret"]),
        parameters=parameters,
        embedder=embedder.name if embedder else "",
        fingerprint=embedder.fingerprint if embedder else "",
        splitter=sent["splitter"],
        fitted=None if learned is None else Fitted.parse(_fitted[learned] if isinstance(learned, str) else learned),
    ).carrying(sent.get("payload"))


def _generate(jobs: list[Record], texts: dict[str, str], args: argparse.Namespace) -> Iterator[Record]:
    from alimark.core.generation.api import GenerationSettings, Prompt
    from alimark.core.llm import load_llm
    from alimark.core.llm.base import Sampling
    from alimark.core.schemes.api import generate_many, load
    from alimark.errors import AlimarkError

    device = {"device": args.device} if args.device else {}
    llms: dict[str, Any] = {}
    for some in _groups(jobs, _alike):
        first = some[0]
        if first["llm"] not in llms:
            llms = {first["llm"]: load_llm(first["llm"], **device)}
        settings = dict(first["settings"])
        settings["sampling"] = Sampling(**settings["sampling"])
        embedder_name = (first["key"] or {}).get("embedder")
        embedder, prompts = _embedder(embedder_name, args) if embedder_name else None, []
        for job in some:
            prompts.append(Prompt(job["prompt"], job["seed"], _key(job["key"], embedder) if job["key"] else None))
        chosen = GenerationSettings(**settings)
        key = prompts[0].key
        mark = None if key is None else load(key, embedder=embedder)
        made = generate_many(mark, prompts, llms[first["llm"]], chosen)
        for place, one in made:
            if isinstance(one, AlimarkError):
                print(f"generate: {one}", file=sys.stderr)  # for another run to try again
            else:
                yield one.record(some[place]["id"])


def _attack(jobs: list[Record], texts: dict[str, str], args: argparse.Namespace) -> Iterator[Record]:
    from alimark.core.llm import load_llm
    from alimark.lab.attacks import Target, load_attack

    llms: dict[str, Any] = {}
    for some in _groups(jobs, lambda job: (job["attack"], job["settings"])):
        name, settings = some[0]["attack"], dict(some[0]["settings"])
        if args.chat_llm and name in _CHAT_ATTACKS:
            settings["llm"] = args.chat_llm
        attack = load_attack(name, **settings)
        if name in _CHAT_ATTACKS:  # attacks of different settings share a model
            llm = str(attack.settings["llm"])
            if llm not in llms:
                llms = {llm: load_llm(llm)}
            attack = load_attack(name, **settings, engine=llms[llm])
        for place, made in attack.run([Target(texts[job["source"]], job["seed"]) for job in some]):
            record: Record = {name: some[place][name] for name in ("id", "parent_id") if name in some[place]}
            record |= {"attack": {"name": attack.name, "settings": attack.settings}}
            record |= {"failed": True, "error": made.error} if made.failed else {"text": made.text}
            yield record | {"tries": made.tries, "tokens": made.tokens, "left": made.left,
                            "rejected": len(made.rejected)}  # fmt: skip


def _detect(jobs: list[Record], texts: dict[str, str], args: argparse.Namespace) -> Iterator[Record]:
    """First all units are embedded, then the texts are scored by as many processes as there are cores.

    Texts that a chat model restructures come last, and are scored here.
    """
    from alimark.lab.bench.vectors import KeptVectors

    for group in _groups((job for job in jobs if not job["llm"]), lambda job: job["key"]["embedder"]):
        embedder = _embedder(group[0]["key"]["embedder"], args)
        with KeptVectors(embedder, args.made / "vectors") as vectors:
            _embed(group, texts, vectors)
        about = _Known(
            embedder.name,
            embedder.dimension,
            embedder.fingerprint,
            embedder.backend,
            embedder.languages,
            vectors.precision,
        )
        work = [(job, texts[job["source"]]) for job in group]
        with multiprocessing.get_context("spawn").Pool(args.processes, _begin, (about, args.made / "vectors")) as pool:
            yield from pool.imap_unordered(_score, work, chunksize=8)
    yield from _detect_restructured([job for job in jobs if job["llm"]], texts, args)


def _detect_restructured(jobs: list[Record], texts: dict[str, str], args: argparse.Namespace) -> Iterator[Record]:
    """Many texts at a time, so that the requests to the chat model share its batches."""
    from alimark.core.llm import load_llm
    from alimark.core.schemes.api import load
    from alimark.lab.bench.workspace import scored

    for same in _groups(jobs, lambda job: (job["llm"], job["key"]["embedder"])):
        llm = load_llm(args.chat_llm or same[0]["llm"], **({"device": args.device} if args.device else {}))
        embedder = _embedder(same[0]["key"]["embedder"], args)

        def score(job: Record, llm: LLM = llm, embedder: Embedder = embedder) -> Record:
            mark = load(_key(job["key"], embedder), embedder=embedder)
            [answer] = mark.detect_batch([texts[job["source"]]], _settings(job), llm=llm)
            return {"id": job["id"], **scored(answer)}

        with ThreadPoolExecutor(_RESTRUCTURED_TOGETHER) as pool:
            for finished in as_completed([pool.submit(score, job) for job in same]):
                yield finished.result()


def _embed(jobs: list[Record], texts: dict[str, str], vectors: KeptVectors) -> None:
    from alimark.core.schemes.api import load

    for some in _groups(jobs, lambda job: (job["key"] | {"secret": "", "payload": None}, job["options"])):
        mark, settings = load(_key(some[0]["key"], vectors), embedder=vectors), _settings(some[0])
        sources = list(dict.fromkeys(job["source"] for job in some))
        for start in range(0, len(sources), _EMBEDDED_TOGETHER):
            these = [texts[source] for source in sources[start : start + _EMBEDDED_TOGETHER]]
            vectors.embed(list(dict.fromkeys(mark.units(these, settings))))
            print(f"detect: {start + len(these)} of {len(sources)} texts embedded", flush=True)


def _settings(job: Record) -> RandomKeys:
    """The detection settings of the key's scheme: the recipe's options that the scheme has."""
    from alimark.core.schemes.registry import scheme

    kind = scheme(job["key"]["scheme"]).settings
    options: Any = {n: tuple(v) if isinstance(v, list) else v for n, v in job["options"].items()}
    settings: RandomKeys = kind(**{n: v for n, v in options.items() if n in kind.__dataclass_fields__})
    return settings


@dataclass(frozen=True)
class _Known:
    """An embedder by its marks alone, for a process that finds every vector on disk."""

    name: str
    dimension: int
    fingerprint: str
    backend: str
    languages: frozenset[str]
    precision: str

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(f"not embedded before: {texts[0]!r}")


_vectors: list[KeptVectors] = []


def _begin(about: _Known, folder: Path) -> None:
    import numba

    from alimark.lab.bench.vectors import KeptVectors

    numba.set_num_threads(1)  # there is a process for each core
    _vectors[:] = [KeptVectors(about, folder, os.getpid())]


def _score(work: tuple[Record, str]) -> Record:
    from alimark.core.schemes.api import load
    from alimark.lab.bench.workspace import scored

    job, text = work
    mark = load(_key(job["key"], _vectors[0]), embedder=_vectors[0])
    [answer] = mark.detect_batch([text], _settings(job))
    return {"id": job["id"], **scored(answer)}


def _quality(jobs: list[Record], texts: dict[str, str], args: argparse.Namespace) -> Iterator[Record]:
    from alimark.lab.bench.quality import Oracle, distinct, repetition

    for group in _groups(jobs, lambda job: job["oracle"]):
        oracle = Oracle(group[0]["oracle"], args.device or "")
        for start in range(0, len(group), _READ_TOGETHER):
            some = group[start : start + _READ_TOGETHER]
            pairs = [(job["prompt"], texts[job["source"]]) for job in some]
            for job, (_, text), found in zip(some, pairs, oracle.perplexities(pairs), strict=True):
                if math.isfinite(found):
                    yield {"id": job["id"], "perplexity": found, "distinct": distinct(text),
                           "repetition": repetition(text)}  # fmt: skip
                else:
                    yield {"id": job["id"], "failed": True, "error": "there is no text to read"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("jobs", help="what the workspace lacks")
    one.add_argument("recipe", type=Path)
    one.add_argument("workspace", type=Path)
    one.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    one.add_argument("--profile", action="append", default=[], dest="profiles", metavar="NAME")
    one.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="those of them; all unless told")
    one.add_argument("--output", type=Path, required=True)
    one.set_defaults(verb=jobs)
    one = verbs.add_parser("do", help="make the records")
    one.add_argument("jobs", type=Path)
    one.add_argument("made", type=Path, help="folder for the records")
    one.add_argument("--device", help="cuda: all models on the GPU")
    one.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="those of them; all unless told")
    one.add_argument("--precision", default="auto", help="of the embedder, such as tf32 on a GPU")
    one.add_argument("--chat-llm", help="the chat attacks' model by another name, such as transformers:...")
    one.add_argument("--processes", type=int, default=os.cpu_count(), help="that score texts")
    one.set_defaults(verb=do)
    one = verbs.add_parser("take", help="add the records to a workspace")
    one.add_argument("made", type=Path)
    one.add_argument("workspace", type=Path)
    one.set_defaults(verb=take)
    args = parser.parse_args()
    args.verb(args)


if __name__ == "__main__":
    main()
