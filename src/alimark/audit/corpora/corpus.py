"""Runs an audit over a corpus, block by block. A run that was stopped can be resumed.

    OUTPUT/manifest.json            the question: ids of the keys, settings, files
    OUTPUT/results/part-*.parquet   one file per block, with one row per document
    OUTPUT/summary.json             what was found

A block is done when its file exists. If the driver is killed, the blocks that its workers were processing are lost. Documents
whose p-value may be smaller than their random keys can show are tested again with more random keys.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from alimark.audit.corpora import summary
from alimark.audit.corpora.files import BLOCK_BYTES, Block, Source, arrow, file_system, find, passed_over_message, plan
from alimark.audit.corpora.pool import Cluster, Died, Ended, LocalPool, RayPool
from alimark.audit.corpora.worker import Begun, Report, Task, Work, Worker, result_path
from alimark.audit.run import check_rate
from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import Record
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

VERSION = 3
FIRST_DRAWS = 9_999
"""Random keys per document in the first round, with early stopping; more follow for documents that none of them matches."""
STOP_AFTER = 20
"""A document's test ends early when so many random keys score as high as its key."""
_DEATHS = 8
"""The run ends when so many workers have died with the same block and no single document explains it."""
_ROUNDS = 6
"""The most rounds of testing again with more random keys."""


class Progress(Protocol):
    """Receives what is done; the command line shows it."""

    def planned(self, blocks: int, done: int) -> None: ...
    def step(self, documents: int) -> None: ...
    def block(self) -> None: ...
    def fault(self, message: str) -> None: ...


class Silent:
    """A progress that shows nothing."""

    def planned(self, blocks: int, done: int) -> None: ...
    def step(self, documents: int) -> None: ...
    def block(self) -> None: ...
    def fault(self, message: str) -> None: ...


@dataclass
class Outcome:
    """What this run did; the summary describes all results, also those of earlier runs."""

    report: Report = field(default_factory=Report)
    seconds: float = 0.0
    at_work: float = 0.0
    """Seconds from the first document to the last, without starting the cluster and loading models."""
    deaths: int = 0
    """Workers that died."""
    blocks: int = 0
    deepened: int = 0
    """Documents that were tested again with more random keys."""


def run(
    inputs: Sequence[str],
    task: Task,
    *,
    cluster: Cluster | None = None,
    fpr: float = 0.01,
    fdr: float = 0.05,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> tuple[Record, Outcome]:
    """Test every document of the inputs and sum up the results. Without a cluster, this process does all of it."""
    check_rate(fdr)
    if block_bytes < 1:
        raise AlimarkError(f"a block has at least one byte, but {block_bytes} was given")
    progress = progress or Silent()
    started = time.perf_counter()
    fs, sources, passed_over = find(inputs)
    if passed_over:
        progress.fault(passed_over_message(passed_over))
    outcome = Outcome()
    with _output(task, sources, block_bytes, progress) as (out, folder):
        blocks = list(plan(fs, sources, block_bytes))
        finished = _finished(out, folder)
        left = [block for block in blocks if result_path("", block).rpartition("/")[2] not in finished]
        progress.planned(len(blocks), len(blocks) - len(left))
        with ExitStack() as stack:

            @cache  # made on first use, so that no models are loaded if there is nothing to do; kept for both steps
            def pool() -> Pool:
                opened = _pool(task, cluster)
                stack.enter_context(opened)
                return opened

            _work_through([Work(block) for block in left], pool, outcome, progress)
            _deepen(out, folder, blocks, task, fdr, pool, outcome, progress)
        outcome.seconds = time.perf_counter() - started
        summary.finish(out, folder, blocks, fdr)
        totals = summary.summarise(out, folder, blocks, fpr, fdr)
        _write(out, f"{folder}/summary.json", totals)
    return totals, outcome


Pool = LocalPool[Work] | RayPool[Work]


def _pool(task: Task, cluster: Cluster | None) -> Pool:
    build = partial(Worker, task)
    return LocalPool(build) if cluster is None else RayPool([build], cluster)


# The output folder


@contextmanager
def _output(
    task: Task, sources: Sequence[Source], block_bytes: int, progress: Progress
) -> Iterator[tuple[FileSystem, str]]:
    """The output folder, new or of an earlier run. A local folder is locked against other runs."""
    fs, folder = file_system(task.output)
    with ExitStack() as stack:
        if fs.type_name == "local":
            Path(folder).mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(Path(folder)))
        _check_manifest(fs, folder, _manifest(task, sources, block_bytes), progress)
        fs.create_dir(f"{folder}/results", recursive=True)
        yield fs, folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise AlimarkError(f"another run is writing to {folder}; wait for it, or choose another folder") from None


def _manifest(task: Task, sources: Sequence[Source], block_bytes: int) -> Record:
    settings = asdict(task.settings)
    return {
        "version": VERSION,
        "keys": sorted(key.id for key in task.keys),
        "settings": json.loads(json.dumps(settings, default=str)),
        "first_pass": task.first_pass and asdict(task.first_pass),
        "text_field": task.text_field,
        "by": task.by,
        "max_document": task.max_document,
        "block_bytes": block_bytes,
        "files": {source.path: source.size for source in sources},
    }


def _check_manifest(fs: FileSystem, folder: str, wanted: Record, progress: Progress) -> None:
    """Write the manifest of a new folder, or raise an error if the folder belongs to a run with other settings."""
    path = f"{folder}/manifest.json"
    if not fs.get_file_info([path])[0].is_file:
        if fs.type_name == "local" and any(path.name != ".lock" for path in Path(folder).iterdir()):
            raise AlimarkError(f"{folder} holds other files; choose a folder that is empty or does not exist")
        _write(fs, path, wanted)
        return
    with fs.open_input_stream(path) as file:
        try:
            before = json.loads(file.read())
        except ValueError:
            raise AlimarkError(f"{path} is not the manifest of a run; choose another folder") from None
    for name, value in wanted.items():
        if name != "files" and before.get(name) != value:
            raise AlimarkError(
                f"{folder} belongs to a run with other settings ({name.replace('_', ' ')}); use the same settings, or choose "
                "another folder"
            )
    changed = [file for file, size in before["files"].items() if wanted["files"].get(file, size) != size]
    if changed:
        raise AlimarkError(f"{changed[0]} has changed since the first run into {folder}; choose another folder")
    if gone := before["files"].keys() - wanted["files"].keys():
        progress.fault(
            f"{len(gone)} files of the earlier run are not among the inputs; the summary leaves their results out"
        )
    if new := wanted["files"].keys() - before["files"].keys():
        progress.fault(f"{len(new)} files were not part of the earlier run and are added")
        _write(fs, path, wanted | {"files": before["files"] | wanted["files"]})


def _write(fs: FileSystem, path: str, content: Record) -> None:
    data = (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "surrogatepass")
    if fs.type_name == "local":
        write_whole(path, data)
        return
    with fs.open_output_stream(f"{path}.part") as file:
        file.write(data)
    fs.move(f"{path}.part", path)


def _finished(fs: FileSystem, folder: str) -> set[str]:
    """The names of the complete result files; partial files of killed workers are removed."""
    names = set()
    for info in fs.get_file_info(arrow().fs.FileSelector(f"{folder}/results")):
        if info.base_name.endswith(".part"):
            with suppress(OSError):
                fs.delete_file(info.path)
        elif info.is_file:
            names.add(info.base_name)
    return names


# Blocks and lost workers


@dataclass
class _Attempts:
    """What is known about the attempts to process a block."""

    last: Begun | None = None
    done: int = 0
    alone: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often a worker died with a document alone, by batch and number in the batch."""
    unexplained: int = 0
    """How often a worker died otherwise."""


def _work_through(works: Sequence[Work], pool: Callable[[], Pool], outcome: Outcome, progress: Progress) -> None:
    """Process blocks until all are done; a block whose worker died goes back into the queue."""
    if not works:
        return
    attempts: dict[str, _Attempts] = {}
    for work in works:
        pool().give(work)
    started = 0.0
    for work, message in pool().run():
        started = started or time.perf_counter()
        of_block = attempts.setdefault(work.block.name, _Attempts())
        if isinstance(message, Begun):
            of_block.last = message
            # Documents that a second attempt repeats are not counted again.
            progress.step(max(0, message.done - of_block.done))
            of_block.done = max(of_block.done, message.done)
        elif isinstance(message, Report):
            outcome.report.add(message)
            progress.step(max(0, message.documents - of_block.done))
        elif isinstance(message, Ended):
            outcome.blocks += 1
            progress.block()
            del attempts[work.block.name]
        elif isinstance(message, Died):
            outcome.deaths += 1
            pool().give(_next_attempt(work, of_block, message, progress))
    outcome.at_work = time.perf_counter() - started


def _next_attempt(work: Work, attempts: _Attempts, died: Died, progress: Progress) -> Work:
    """The work for the next worker. A document is skipped only after two workers have died with it alone."""
    begun, attempts.last = attempts.last, None
    progress.fault(f"a worker has died ({died.why}); its block is processed again")
    if begun is None or begun.batch not in work.careful:
        attempts.unexplained += 1
        if attempts.unexplained > _DEATHS:
            raise AlimarkError(
                f"workers died {attempts.unexplained} times with a block of {work.block.paths[0]}, the last one: {died.why}; "
                "finished blocks are kept, so the same command continues"
            )
        return work if begun is None else replace(work, careful=work.careful | {begun.batch})
    document = (begun.batch, begun.document)
    attempts.alone[document] += 1
    if attempts.alone[document] < 2:
        return work
    progress.fault(f"document {begun.document + 1} of batch {begun.batch + 1} in {work.block.paths[0]} is skipped")
    return replace(work, poison=work.poison | {document})


# More random keys


def _deepen(
    out: FileSystem,
    folder: str,
    blocks: Sequence[Block],
    task: Task,
    fdr: float,
    pool: Callable[[], Pool],
    outcome: Outcome,
    progress: Progress,
) -> None:
    """Test documents that no random key has matched with more random keys, until their p-values can be discoveries.

    The draws that are needed (documents times keys, divided by the rate) are shared by all of these documents. The p-values
    stay valid: only p-values at the smallest possible value are computed again, and below that value only the new draws
    count.
    """
    from alimark.core.detection.stats.p_values import MAX_DRAWS

    before = 0
    for _ in range(_ROUNDS):
        tests, floor = summary.at_the_floor(out, folder, blocks)
        if not floor:
            return
        draws = max(document.draws for document in floor)
        wanted = math.ceil(tests * len(task.keys) / fdr / len(floor))
        if wanted <= draws or before == (wanted := min(wanted, MAX_DRAWS)):
            return
        before = wanted
        works = []
        for block in blocks:
            if only := frozenset(
                (document.file, document.place)
                for document in floor
                if document.block == block.name and document.draws < wanted
            ):
                works.append(Work(block, deepen=wanted, only=only))
        outcome.deepened += sum(len(work.only) for work in works)
        _work_through(works, pool, Outcome(), _FaultsOnly(progress))


class _FaultsOnly(Silent):
    """A progress that shows faults only, because the documents have been counted before."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def fault(self, message: str) -> None:
        self._progress.fault(message)
