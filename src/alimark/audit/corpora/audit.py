"""Audits a corpus (Parquet, JSONL, text files, folders, addresses) in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from alimark.audit.auditor import Document, FirstPass
from alimark.audit.corpora import corpus
from alimark.audit.corpora.files import BLOCK_BYTES, MAX_DOCUMENT, find, plan, read
from alimark.audit.corpora.pool import Cluster
from alimark.audit.corpora.worker import Task
from alimark.audit.run import first_pass_counts
from alimark.core._util.jsonl import Record, unique_id
from alimark.core.keys.sealed import Sealed
from alimark.errors import RecordError

if TYPE_CHECKING:
    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.keys.key import Key


@dataclass(frozen=True)
class CorpusOptions:
    """How a corpus is read, and which processes audit it."""

    engine: Literal["plain", "ray"] = "plain"
    """"plain": this process; "ray": workers on this machine or on a cluster."""
    address: str | None = None
    """Of a running Ray cluster; by default workers run on this machine."""
    workers: int | None = None
    worker_cpus: int = 1
    device: str | None = None
    """Where workers embed, e.g. "cuda"; by default the CPU."""
    first_pass: float | None = None
    """Only documents with a p-value of at most this in a cheap test are tested in full."""
    text_field: str = "text"
    by: str = ""
    """The field that names a document's source; by default its file does."""
    block_bytes: int = BLOCK_BYTES
    max_document: int = MAX_DOCUMENT
    time_limit: float = 120.0
    cache: int = 256
    """Megabytes of embeddings that each worker keeps."""

    def cluster(self) -> Cluster | None:
        """The Ray cluster to use, or None where this process audits."""
        if self.engine == "plain":
            return None
        gpus = None if self.device and self.device != "cpu" else 0.0
        return Cluster(self.address, self.workers, self.worker_cpus, gpus)


def audit_corpus(
    keys: Sequence[Key],
    inputs: Sequence[str],
    output: str,
    settings: RandomKeys,
    options: CorpusOptions,
    *,
    fpr: float = 0.01,
    fdr: float = 0.05,
    draws: int | None = None,
    progress: corpus.Progress | None = None,
) -> Record:
    """Answers every document of the inputs into a folder of Parquet files and returns the summary and the run's rates.

    `draws` is the number of random keys that the user asked for, if any; documents that none of them matches are tested
    again with more.
    """
    draws = max(draws or corpus.FIRST_DRAWS, settings.draws)
    task = Task(
        keys=tuple(map(Sealed, keys)),
        settings=replace(settings, draws=draws, stop_after=settings.stop_after or corpus.STOP_AFTER),
        input=inputs[0],
        output=output,
        text_field=options.text_field,
        by=options.by,
        max_document=options.max_document,
        time_limit=options.time_limit,
        cache=options.cache,
        first_pass=None if options.first_pass is None else FirstPass(options.first_pass),
        check_level=max(fpr, fdr),
        device=options.device,
        fpr=fpr,
    )
    summary, outcome = corpus.run(
        inputs, task, cluster=options.cluster(), fpr=fpr, fdr=fdr, block_bytes=options.block_bytes, progress=progress
    )
    return summary | _rates(outcome)


def _rates(outcome: corpus.Outcome) -> Record:
    """What a run did, in time and numbers, beside the summary of all results."""
    report = outcome.report
    spent = sum(report.times.values()) or 1.0
    rates: Record = {
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
    return rates | first_pass_counts(report.tested)


class CorpusDocuments:
    """The documents of files, folders, patterns and addresses, each with an id that no other has; may be read several times.

    A text file, PDF or other file of prose is one document, with its path as id. `passed_over` names the files of unknown
    kind.
    """

    def __init__(self, inputs: Sequence[str], field: str = "text", limit: int = MAX_DOCUMENT) -> None:
        self._field, self._limit = field, limit
        self._fs, self._sources, self.passed_over = find(inputs)

    def __iter__(self) -> Iterator[Document]:
        seen: set[str] = set()
        blocks = plan(self._fs, self._sources)
        documents = (
            document for block in blocks for document in read(self._fs, block, [self._field, "id"], self._limit)
        )
        for number, document in enumerate(documents, 1):
            record = document.record
            named = {"id": f"{document.file}@{document.place}"} if isinstance(record, RecordError) else record
            yield unique_id(named, number, seen, field=self._field), record
