"""Runs an audit: blocks of documents, workers that answer them, more random keys where they decide, and the summary.

One machine is a pool of one worker. A run that was stopped can be continued, see `alimark.audit.sinks`. Documents whose p-value
may be smaller than their random keys can show are tested again with more random keys.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from alimark.audit import summary
from alimark.audit.answers import least_p_value
from alimark.audit.files import find, is_folder, passed_over_message, plan
from alimark.audit.pool import Cluster, Died, LocalPool, RayPool, WorkEnded
from alimark.audit.sinks import JsonlSink, ParquetSink, Sink, WorkBlocks
from alimark.audit.worker import Audit, Begun, Report, Work, Worker
from alimark.core._util.jsonl import Record
from alimark.core.detection.stats.p_values import MAX_DRAWS
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.llm.base import LLM

_DEATHS = 8
"""The run ends when so many workers have died with the same block and no single document explains it."""
_ROUNDS = 6  # the most rounds of testing again with more random keys


class AuditProgress(Protocol):
    """Receives what an audit does; the command line shows it."""

    def planned(self, works: int, done: int) -> None:
        """Called once, with the units of work and those that an earlier run finished."""
        return

    def step(self, documents: int, share: float) -> None:
        """Called with the documents that were answered, and the share of a unit of work that is done with them."""
        return

    def fault(self, message: str) -> None:
        """Called with a fault, such as a lost worker."""
        return


class _Silent(AuditProgress):
    """Shows nothing."""


@dataclass
class Outcome:
    """What a run found, and what it did; the summary describes all answers, also those of earlier runs."""

    summary: Record = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    seconds: float = 0.0
    at_work: float = 0.0
    """Seconds from the first document to the last, without starting the cluster and loading models."""
    deaths: int = 0  # workers that died
    deepened: int = 0  # documents that were tested again with more random keys

    def record(self) -> Record:
        """The summary with the rates of this run, ready for JSON."""
        report, spent = self.report, sum(self.report.times.values()) or 1.0
        rates: Record = {
            "documents_now": report.documents,
            "seconds": round(self.seconds, 2),
            "seconds_at_work": round(self.at_work, 2),
            "documents_per_second": round(report.documents / max(self.at_work, 1e-9), 2),
            "worker_seconds": {name: round(value, 2) for name, value in report.times.most_common()},
            "time_shares": {name: round(value / spent, 3) for name, value in report.times.most_common()},
            "units_asked": report.units["asked"],
            "units_embedded": report.units["embedded"],
            "workers_lost": self.deaths,
            "asked_again_with_more_random_keys": self.deepened,
        }
        if report.tested:
            rates["first_pass"] = {"documents": report.tested["first"], "suspicious": report.tested["full"]}
        return self.summary | rates


def run(
    audit: Audit, *, cluster: Cluster | None = None, llm: LLM | None = None, progress: AuditProgress | None = None
) -> Outcome:
    """Answers every document and sums up the answers.

    Args:
        audit: The keys, the documents, the output and the settings.
        cluster: The Ray cluster whose workers answer; by default this process does.
        llm: The chat model of learned restructuring, in this process only.
        progress: Told what is done.

    Returns:
        The summary and what the run did.

    Raises:
        AlimarkError: The inputs cannot be read, or the output belongs to another audit.
    """
    progress = progress or _Silent()
    started = time.perf_counter()
    into_folder = is_folder(audit.output)
    if cluster is not None and (llm is not None or not into_folder):
        raise AlimarkError(
            "workers of Ray write into a folder and ask no chat model; give a folder as output, without a model"
        )
    fs, sources, passed_over = find(audit.inputs)
    for name in audit.inputs:
        if not into_folder and "://" not in name and Path(audit.output).resolve().is_relative_to(Path(name).resolve()):
            raise AlimarkError(f"{audit.output} lies in {name}, among the documents; choose another --output")
    if passed_over:
        progress.fault(passed_over_message(passed_over))
    sink: Sink = ParquetSink(audit) if into_folder else JsonlSink(audit)
    outcome = Outcome()
    try:
        sink.begin(audit, sources, progress.fault)
        works = sink.works(list(plan(fs, sources, audit.block_bytes)))
        left = sink.left(works)
        progress.planned(len(works), len(works) - len(left))
        with ExitStack() as stack:
            running = _AuditRun(audit, sink, cluster, llm, progress, stack)
            running.work_through([Work(work) for work in left], outcome)
            running.deepen(works, outcome)
            summary.finish(sink, works, audit.fdr)
            shared = summary.check_groups(sink, works, audit, lambda: running.worker.auditor)
        counts = summary.summarise(sink, works, audit.fpr, audit.fdr)
        read = counts["documents"] if into_folder else outcome.report.documents + outcome.report.skipped
        outcome.summary = counts | {"documents_read": read, "shared_text": shared}
        outcome.seconds = time.perf_counter() - started
    finally:
        sink.close(outcome.summary or None)
    return outcome


@dataclass
class _Attempts:
    """What is known about the attempts at some work."""

    last: Begun | None = None
    done: int = 0
    share: float = 0.0
    alone: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often a worker died with a document alone, by batch and number in the batch."""
    unexplained: int = 0  # how often a worker died otherwise


@dataclass
class _AuditRun:
    """The workers of a run and the work that they are given."""

    audit: Audit
    sink: Sink
    cluster: Cluster | None
    llm: LLM | None
    progress: AuditProgress
    stack: ExitStack

    @cached_property
    def worker(self) -> Worker:
        """The worker of this process, made on first use, so that no models are loaded if there is nothing to do.

        Beside a cluster it looks for shared text alone.
        """
        if self.cluster is None:
            return Worker(self.audit, self.sink, self.llm)
        return Worker(replace(self.audit, device=None))

    @cached_property
    def pool(self) -> LocalPool[Work] | RayPool[Work]:
        """The workers; they are kept for all steps of the run."""
        if self.cluster is None:
            return LocalPool(self.worker.work)
        pool: RayPool[Work] = RayPool([partial(Worker, self.audit)], self.cluster)
        self.stack.callback(pool.close)
        return pool

    def work_through(self, works: Sequence[Work], outcome: Outcome, *, quiet: bool = False) -> None:
        """Does some work; that of a worker that died goes back into the queue. A `quiet` run tells faults alone."""
        attempts: dict[WorkBlocks, _Attempts] = {}
        for work in works:
            self.pool.give(work)
        started = 0.0
        for work, message in self.pool.run() if works else ():
            started = started or time.perf_counter()
            of_work = attempts.setdefault(work.blocks, _Attempts())
            documents, share = of_work.done, of_work.share
            if isinstance(message, Begun):
                of_work.last = message
                # Documents that a second attempt repeats are not counted again.
                of_work.done, of_work.share = max(documents, message.done), max(share, message.share)
            elif isinstance(message, Report):
                outcome.report.add(message)
                of_work.done = max(documents, message.documents)
            elif isinstance(message, WorkEnded):
                of_work.share = 1.0
                del attempts[work.blocks]
            elif isinstance(message, Died):
                outcome.deaths += 1
                self.pool.give(self._next_attempt(work, of_work, message))
            if not quiet:
                self.progress.step(of_work.done - documents, of_work.share - share)
        outcome.at_work = time.perf_counter() - (started or time.perf_counter())

    def _next_attempt(self, work: Work, attempts: _Attempts, died: Died) -> Work:
        """The work for the next worker. A document is skipped only after two workers have died with it alone."""
        begun, attempts.last = attempts.last, None
        path = work.blocks[0].paths[0]
        self.progress.fault(f"a worker has died ({died.why}); its block is processed again")
        if begun is None or begun.batch not in work.careful:
            attempts.unexplained += 1
            if attempts.unexplained > _DEATHS:
                raise AlimarkError(
                    f"workers died {attempts.unexplained} times with a block of {path}, the last one: {died.why}; finished "
                    "blocks are kept, so the same command continues"
                )
            return work if begun is None else replace(work, careful=work.careful | {begun.batch})
        document = (begun.batch, begun.document)
        attempts.alone[document] += 1
        if attempts.alone[document] < 2:
            return work
        self.progress.fault(f"document {begun.document + 1} of batch {begun.batch + 1} in {path} is skipped")
        return replace(work, poison=work.poison | {document})

    def deepen(self, works: Sequence[WorkBlocks], outcome: Outcome) -> None:
        """Tests documents that no random key has matched with more random keys, until their p-values can be discoveries.

        The draws that are needed (documents times keys, divided by the rate) are shared by all of these documents. The p-values
        stay valid: only p-values at the smallest possible value are computed again, and below that value only the new draws
        count.
        """
        before = 0
        for _ in range(_ROUNDS):
            tests, floor = self._at_the_floor(works)
            if not floor:
                return
            wanted = math.ceil(tests * len(self.audit.keys) / self.audit.fdr / len(floor))
            if wanted <= max(draws for _, _, draws in floor) or before == (wanted := min(wanted, MAX_DRAWS)):
                return
            before = wanted
            only: dict[WorkBlocks, set[Hashable]] = {}
            for work, identity, draws in floor:
                if draws < wanted:
                    only.setdefault(work, set()).add(identity)
            outcome.deepened += sum(map(len, only.values()))
            again = [Work(work, deepen=wanted, only=frozenset(some)) for work, some in only.items()]
            self.work_through(again, Outcome(), quiet=True)

    def _at_the_floor(self, works: Sequence[WorkBlocks]) -> tuple[int, list[tuple[WorkBlocks, Hashable, int]]]:
        """The number of documents tested, and those whose p-value is the smallest that their random keys allow.

        Each is its unit of work, its identity and its number of random keys.
        """
        tests = 0
        floor: list[tuple[WorkBlocks, Hashable, int]] = []
        names = ["id", "file", "place", "p_value", "draws", "keys_tried", "readings", "searches", "failed", "full"]
        for work, row in self.sink.rows(works, names):
            if row["failed"]:
                continue
            tests += 1
            if row["full"] and row["p_value"] <= least_p_value(row):
                floor.append((work, self.sink.identity(row), row["draws"]))
        return tests, floor
