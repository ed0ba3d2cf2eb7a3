"""A run over a corpus: planned in blocks, resumed by what is there, deepened where the p-values are too coarse.

    OUTPUT/manifest.json            what was asked: keys by id, settings, files
    OUTPUT/results/part-*.parquet   one row a document, a file a block, written whole
    OUTPUT/summary.json             what was found

A block is done when its file is there. A driver that is killed loses what its workers had in hand, a block each.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from alimark._util.files import write_whole
from alimark.errors import AlimarkError
from alimark.scale import summary
from alimark.scale.files import BLOCK_BYTES, Block, Source, arrow, file_system, find, plan
from alimark.scale.pool import Cluster, Died, Ended, LocalPool, RayPool
from alimark.scale.worker import Begun, Report, Task, Work, Worker, result_path

VERSION = 1
FIRST_DRAWS = 9_999
"""Random keys for each document at first, with early stopping; those that none of them matches are asked again."""
STOP_AFTER = 20
_DEATHS = 8
"""Of workers with one block, none of which could be laid at a document's door: then it is not chance."""
_ROUNDS = 6


class Progress(Protocol):
    """Told what is done; the command line shows it."""

    def planned(self, blocks: int, done: int) -> None: ...
    def step(self, documents: int) -> None: ...
    def block(self) -> None: ...
    def fault(self, message: str) -> None: ...


class Silent:
    def planned(self, blocks: int, done: int) -> None: ...
    def step(self, documents: int) -> None: ...
    def block(self) -> None: ...
    def fault(self, message: str) -> None: ...


@dataclass
class Outcome:
    """What a run did, beside what the summary says of all that is there."""

    report: Report = field(default_factory=Report)
    seconds: float = 0.0
    at_work: float = 0.0
    """Seconds from the first document to the last: without the start of the cluster and the loading of models."""
    deaths: int = 0
    blocks: int = 0
    deepened: int = 0


def run(
    inputs: Sequence[str],
    task: Task,
    *,
    cluster: Cluster | None = None,
    fpr: float = 0.01,
    fdr: float = 0.05,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], Outcome]:
    """Answers every document of the inputs and sums up. Without a cluster this process does it all."""
    if not 0 < fdr < 1:
        raise AlimarkError(f"a false discovery rate lies between 0 and 1, not at {fdr}")
    if block_bytes < 1:
        raise AlimarkError("a block has at least one byte")
    progress = progress or Silent()
    started = time.perf_counter()
    fs, sources, unknown = find(inputs)
    if unknown:
        progress.fault(f"{unknown} files of no known kind are passed over")
    outcome = Outcome()
    with _output(task, sources, block_bytes, progress) as (out, folder):
        blocks = list(plan(fs, sources, block_bytes))
        there = _there(out, folder)
        left = [block for block in blocks if result_path("", block).rpartition("/")[2] not in there]
        progress.planned(len(blocks), len(blocks) - len(left))
        with ExitStack() as opened:
            # Nothing is loaded where nothing is left to do; the workers stay for what is deepened.
            pool = _Once(lambda: opened.enter_context(_pool(task, cluster)))
            _work_through([Work(block) for block in left], pool, outcome, progress)
            _deepen(out, folder, blocks, task, fdr, pool, outcome, progress)
        outcome.seconds = time.perf_counter() - started
        found = summary.summarise(out, folder, blocks, fpr, fdr)
        write_summary(out, folder, found)
    return found, outcome


class _Once:
    """Made when it is first asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._made = make, None

    def __call__(self) -> Any:
        self._made = self._made or self._make()
        return self._made


def _pool(task: Task, cluster: Cluster | None) -> LocalPool[Work] | RayPool[Work]:
    build = partial(Worker, task)
    return LocalPool(build) if cluster is None else RayPool([build], cluster)


# The output folder


@contextmanager
def _output(task: Task, sources: Sequence[Source], block_bytes: int, progress: Progress) -> Iterator[tuple[Any, str]]:
    """The folder, ours alone where it is a local one, begun or taken up again."""
    fs, folder = file_system(task.output)
    with ExitStack() as held:
        if fs.type_name == "local":
            Path(folder).mkdir(parents=True, exist_ok=True)
            held.enter_context(_locked(Path(folder)))
        _take_up(fs, folder, _manifest(task, sources, block_bytes), progress)
        fs.create_dir(f"{folder}/results", recursive=True)
        yield fs, folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise AlimarkError(f"another run writes to {folder}; wait for it, or choose another folder") from None


def _manifest(task: Task, sources: Sequence[Source], block_bytes: int) -> dict[str, Any]:
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


def _take_up(fs: Any, folder: str, wanted: dict[str, Any], progress: Progress) -> None:
    """Holds the run against the one that began the folder: no two questions are answered in one place."""
    path = f"{folder}/manifest.json"
    if not fs.get_file_info([path])[0].is_file:
        if fs.type_name == "local" and any(one.name not in (".lock",) for one in Path(folder).iterdir()):
            raise AlimarkError(f"{folder} holds something else; choose a folder that is empty or does not exist")
        _write(fs, path, wanted)
        return
    with fs.open_input_stream(path) as file:
        try:
            before = json.loads(file.read())
        except ValueError:
            raise AlimarkError(f"{path} is no manifest of a run; choose another folder") from None
    for name, value in wanted.items():
        if name != "files" and before.get(name) != value:
            said = name.replace("_", " ")
            raise AlimarkError(
                f"{folder} was begun with another {said}; run it with the same, or choose another folder"
            )
    changed = [one for one, size in before["files"].items() if wanted["files"].get(one, size) != size]
    if changed:
        raise AlimarkError(f"{changed[0]} has changed since {folder} was begun; choose another folder")
    if gone := before["files"].keys() - wanted["files"].keys():
        progress.fault(
            f"{len(gone)} files of the earlier run are not among the inputs; their answers stay out of the summary"
        )
    if new := wanted["files"].keys() - before["files"].keys():
        progress.fault(f"{len(new)} files are new since the earlier run")
        _write(fs, path, wanted | {"files": before["files"] | wanted["files"]})


def _write(fs: Any, path: str, content: dict[str, Any]) -> None:
    data = (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "surrogatepass")
    if fs.type_name == "local":
        write_whole(path, data)
        return
    with fs.open_output_stream(f"{path}.part") as file:
        file.write(data)
    fs.move(f"{path}.part", path)


def write_summary(fs: Any, folder: str, found: dict[str, Any]) -> None:
    _write(fs, f"{folder}/summary.json", found)


def _there(fs: Any, folder: str) -> set[str]:
    """Results that are whole; what killed writers left is removed."""
    kinds = arrow().fs
    found = set()
    for one in fs.get_file_info(kinds.FileSelector(f"{folder}/results")):
        if one.base_name.endswith(".part"):
            with suppress(OSError):
                fs.delete_file(one.path)
        elif one.is_file:
            found.add(one.base_name)
    return found


# The work


@dataclass
class _Try:
    """What is known of a block's deaths."""

    last: Begun | None = None
    done: int = 0
    alone: Counter[tuple[int, int]] = field(default_factory=Counter)
    unexplained: int = 0


def _work_through(works: Sequence[Work], pool: Callable[[], Any], outcome: Outcome, progress: Progress) -> None:
    if not works:
        return
    tries: dict[str, _Try] = {}
    for work in works:
        pool().give(work)
    started = 0.0
    for work, message in pool().run():
        started = started or time.perf_counter()
        own = tries.setdefault(work.block.name, _Try())
        if isinstance(message, Begun):
            own.last = message
            # What a second try repeats is not counted twice.
            progress.step(max(0, message.done - own.done))
            own.done = max(own.done, message.done)
        elif isinstance(message, Report):
            outcome.report.add(message)
            progress.step(max(0, message.documents - own.done))
        elif isinstance(message, Ended):
            outcome.blocks += 1
            progress.block()
            del tries[work.block.name]
        elif isinstance(message, Died):
            outcome.deaths += 1
            pool().give(_again(work, own, message, progress))
    outcome.at_work = time.perf_counter() - started


def _again(work: Work, own: _Try, died: Died, progress: Progress) -> Work:
    """The block for the next worker. A document is given up only after two workers died with it alone."""
    begun, own.last = own.last, None
    progress.fault(f"a worker is gone ({died.why}); its block is done again")
    if begun is None or begun.batch not in work.careful:
        own.unexplained += 1
        if own.unexplained > _DEATHS:
            raise AlimarkError(
                f"workers died {own.unexplained} times with a block of {work.block.paths[0]}, the last one: {died.why}; "
                "what is done is kept"
            )
        return work if begun is None else replace(work, careful=work.careful | {begun.batch})
    at = (begun.batch, begun.document)
    own.alone[at] += 1
    if own.alone[at] < 2:
        return work
    progress.fault(f"document {begun.document + 1} of batch {begun.batch + 1} in {work.block.paths[0]} is passed over")
    return replace(work, poison=work.poison | {at})


# Finer p-values where it matters


def _deepen(
    out: Any,
    folder: str,
    blocks: Sequence[Block],
    task: Task,
    fdr: float,
    pool: Callable[[], Any],
    outcome: Outcome,
    progress: Progress,
) -> None:
    """More random keys for the documents that none has matched so far, until their p-values are fine enough to be discovered.

    All of them together take as many draws as one alone would: documents times keys over the rate. A p-value that is asked
    again only where it was the smallest possible stays valid: below the old floor only the new draws count.
    """
    from alimark.detection.stats.p_values import MAX_DRAWS

    before = 0
    for _ in range(_ROUNDS):
        tests, floor = summary.at_the_floor(out, folder, blocks)
        if not floor:
            return
        draws = max(one.draws for one in floor)
        wanted = math.ceil(tests * len(task.keys) / fdr / len(floor))
        if wanted <= draws or before == (wanted := min(wanted, MAX_DRAWS)):
            return
        before = wanted
        works = []
        for block in blocks:
            if only := frozenset(
                (one.file, one.place) for one in floor if one.block == block.name and one.draws < wanted
            ):
                works.append(Work(block, deepen=wanted, only=only))
        outcome.deepened += sum(len(work.only) for work in works)
        _work_through(works, pool, Outcome(), _FaultsOnly(progress))


class _FaultsOnly(Silent):
    """These documents were counted before."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def fault(self, message: str) -> None:
        self._progress.fault(message)
