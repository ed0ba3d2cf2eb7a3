"""alimark detect on a corpus: progress, what went wrong on the way, and what was found."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from alimark.cli import show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.detection.stats.p_values import RandomKeys
    from alimark.keys.key import Key
    from alimark.scale.corpus import Outcome

_MOST_FAULTS = 5


@dataclass(frozen=True)
class Options:
    """What the command line says of an audit."""

    engine: str
    address: str | None
    workers: int | None
    worker_cpus: int
    device: str | None
    first_pass: float | None
    text_field: str
    by: str
    block_bytes: int
    max_document: int
    time_limit: float
    cache: int
    draws: int | None
    fpr: float
    fdr: float
    as_json: bool
    llm: str | None


def audit(keys: list[Key], inputs: list[str], output: str, settings: RandomKeys, options: Options) -> None:
    from alimark.audit.auditor import FirstPass
    from alimark.keys.key import Sealed
    from alimark.scale import corpus
    from alimark.scale.pool import Cluster
    from alimark.scale.worker import Task

    if options.llm is not None:
        raise AlimarkError("no chat model is asked about a corpus; audit a JSONL file into another one for that")
    if options.engine == "plain" and (options.address or options.workers):
        raise AlimarkError("--address and --workers go with --engine ray")
    draws = max(options.draws or corpus.FIRST_DRAWS, settings.draws)
    settings = replace(settings, draws=draws, stop_after=settings.stop_after or corpus.STOP_AFTER)
    first = None if options.first_pass is None else FirstPass(options.first_pass)
    # On a cluster every machine fetches for itself, behind a lock.
    show.fetch_models(*sorted({key.embedder for key in keys if key.embedder}))
    task = Task(
        tuple(map(Sealed, keys)), settings, inputs[0], output, options.text_field, options.by, options.max_document,
        options.time_limit, options.cache, first, options.device,
    )  # fmt: skip
    cluster = None
    if options.engine == "ray":
        gpus = None if options.device and options.device != "cpu" else 0.0
        cluster = Cluster(options.address, options.workers, options.worker_cpus, gpus)
    try:
        with show.progress() as bar, show.only_ours():
            found, outcome = corpus.run(
                inputs,
                task,
                cluster=cluster,
                fpr=options.fpr,
                fdr=options.fdr,
                block_bytes=options.block_bytes,
                progress=_Bar(bar),
            )
    except KeyboardInterrupt:
        show.note("stopped; every finished block is kept, and the same command goes on from there")
        raise
    found |= _rates(outcome)
    if options.as_json:
        show.print_json(found)
    else:
        _print(found)


class _Bar:
    """Blocks done, documents and their rate."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._ticker = bar, show.Ticker()
        self._task: Any = None
        self._documents = self._faults = 0
        self._blocks = self._blocks_done = 0
        self._started = time.perf_counter()

    def planned(self, blocks: int, done: int) -> None:
        self._blocks, self._blocks_done = blocks, done
        self._task = self._bar.add_task("blocks", total=blocks, completed=done)
        if done:
            show.note(f"{done} of {blocks} blocks were done before")
        self._started = time.perf_counter()

    def step(self, documents: int) -> None:
        self._documents += documents
        rate = self._documents / (time.perf_counter() - self._started)
        self._bar.update(self._task, description=f"blocks ({self._documents:,} documents, {rate:.1f}/s)")
        self._ticker.tick(
            f"{self._documents:,} documents, {rate:.1f} a second, {self._blocks_done} of {self._blocks} blocks"
        )

    def block(self) -> None:
        self._blocks_done += 1
        self._bar.advance(self._task)

    def fault(self, message: str) -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            show.note(f"note: {message}")
        elif self._faults == _MOST_FAULTS + 1:
            show.note("note: further faults of this kind are only counted")


def _rates(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    spent = sum(report.times.values()) or 1.0
    rates: dict[str, Any] = {
        "documents_now": report.documents,
        "seconds": round(outcome.seconds, 2),
        "seconds_at_work": round(outcome.at_work, 2),
        "documents_per_second": round(report.documents / max(outcome.at_work, 1e-9), 2),
        "worker_seconds": {name: round(value, 2) for name, value in report.times.most_common()},
        "time_shares": {name: round(value / spent, 3) for name, value in report.times.most_common()},
        "units_asked": report.units["asked"],
        "units_embedded": report.units["embedded"],
        "workers_lost": outcome.deaths,
        "asked_again_with_more_random_keys": outcome.deepened,
    }
    if report.looks:
        rates["first_pass"] = {"documents": report.looks["first"], "suspicious": report.looks["full"]}
    return rates


def _print(found: dict[str, Any]) -> None:
    sound = found["documents"] - found["failed"]
    at = f" (p <= {found['fdr_threshold']:.3g})" if found["found_at_fdr"] else ""
    lines = [
        f"{found['documents']:,} documents, {found['failed']:,} failed",
        *(f"  {count:,}: {why}" for why, count in found["failures"].items()),
        f"{found['found_at_fpr']:,} with p <= {found['fpr']:g} (about {found['fpr'] * sound:,.1f} expected were none marked)",
        f"{found['found_at_fdr']:,} found at a false discovery rate of {found['fdr']:g}{at}",
        *(f"  {count:,} under key {key}" for key, count in found["found_by_key"].items()),
        *(
            f"  {one['found']:,} of {one['documents']:,} in {name}"
            for name, one in list(found["found_by_source"].items())[:10]
            if one["found"] and found["sources"] > 1
        ),
    ]
    if "first_pass" in found:
        looks = found["first_pass"]
        lines.append(
            f"first pass: {looks['suspicious']:,} of {looks['documents']:,} documents went on to the full test"
        )
    if found["documents_now"]:
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in found["time_shares"].items())
        lines.append(
            f"{found['documents_now']:,} documents in {found['seconds']} s, {found['documents_per_second']} a second at work; "
            f"{found['units_embedded']:,} of {found['units_asked']:,} units embedded; workers' time: {shares}"
        )
    if found["workers_lost"]:
        lines.append(f"{found['workers_lost']} workers were lost on the way and replaced")
    show.stdout().print("\n".join(lines), markup=False)
