"""A queue of jobs and the workers that take them: this process, or actors on a Ray cluster.

A worker is any object with `work(job)`, a generator of messages. A pool yields the messages of its workers, and says when a job
has ended or its worker has died. A dead actor is replaced; the caller decides whether to put its job into the queue again.
"""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar

from alimark.errors import AlimarkError, MissingExtra

PoolJob = TypeVar("PoolJob")
WorkerMessage = object  # what a worker yields: any object that can be pickled
Builder = Callable[..., object]
"""Makes a worker that may use `threads` cores; a `guarded` worker ends its process if a document takes too long."""
_STARTS = 3  # the run ends when so many workers in a row die before they are ready
_NO_WORKER = 60.0  # the run ends after so many seconds in which the cluster has no place for any worker


@dataclass(frozen=True)
class WorkEnded:
    """A message of the pool: the job is done."""


@dataclass(frozen=True)
class Died:
    """A message of the pool: the worker has died before the job was done."""

    why: str


class LocalPool(Generic[PoolJob]):
    """A queue whose jobs this process does, one after the other."""

    def __init__(self, work: Callable[[PoolJob], Iterator[WorkerMessage]]) -> None:
        """`work` is the method of the worker, a generator of messages."""
        self._work = work
        self._jobs: deque[PoolJob] = deque()

    def give(self, job: PoolJob) -> None:
        """Put a job into the queue."""
        self._jobs.append(job)

    def run(self) -> Iterator[tuple[PoolJob, WorkerMessage]]:
        """Work until the queue is empty; yield each job with its messages."""
        while self._jobs:
            job = self._jobs.popleft()
            for message in self._work(job):
                yield job, message
            yield job, WorkEnded()


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and the resources to use of it."""

    address: str | None = None  # none starts a cluster on this machine for the time of the run
    workers: int | None = None  # by default as many as the cluster has resources for
    cpus: float = 1.0  # CPUs for each worker
    gpus: float | None = None
    """GPUs for each worker; by default one if the cluster has any, or a part of one where `workers` exceeds the GPUs."""


class RayPool(Generic[PoolJob]):
    """A queue whose jobs are done by actors on a cluster, each with one worker. A dead actor is replaced."""

    def __init__(self, builders: list[Builder], cluster: Cluster) -> None:
        """`builders` is one builder for all workers, or one for each worker, such as for replicas at several addresses."""
        # Usage statistics are not sent to the Ray project, unless the user has switched them on.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        self._ray: Any = ray
        self._joined = _join(ray, cluster)
        resources = self._ray.cluster_resources()
        several = len(builders) if len(builders) > 1 else cluster.workers
        self._gpus = cluster.gpus if cluster.gpus is not None else _share_of_gpu(resources.get("GPU", 0.0), several)
        self._cpus = cluster.cpus
        self._builders = builders
        if len(builders) == 1:
            self._builders = builders * (cluster.workers or _room(resources, self._cpus, self._gpus))
        self._jobs: deque[PoolJob] = deque()
        self._starting: dict[Any, tuple[Any, int]] = {}
        self._unplaced: set[Any] = set()  # calls of actors that the cluster has no place for yet
        self._idle: list[tuple[Any, int]] = []
        self._busy: dict[Any, tuple[Any, int, PoolJob]] = {}
        self._failed_starts = 0
        self.workers = len(self._builders)
        for number in range(self.workers):
            self._start(number)

    def _start(self, number: int) -> None:
        actor = self._ray.remote(_Host).options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0).remote(
            self._builders[number], max(1, int(self._cpus))
        )  # fmt: skip
        self._unplaced.add(actor.placed.remote())
        self._starting[actor.ready.remote()] = (actor, number)

    def give(self, job: PoolJob) -> None:
        """Put a job into the queue."""
        self._jobs.append(job)

    def run(self) -> Iterator[tuple[PoolJob, WorkerMessage]]:
        """Work until the queue is empty; yield each job with its messages."""
        last_alive = time.monotonic()
        while self._jobs or self._busy:
            while self._jobs and self._idle:
                (actor, number), job = self._idle.pop(), self._jobs.popleft()
                self._busy[actor.work.options(num_returns="streaming").remote(job)] = (actor, number, job)
            waited = [*self._busy, *self._starting, *self._unplaced]
            ready, _ = self._ray.wait(waited, num_returns=1, timeout=5)
            loading = len(self._starting) > len(self._unplaced)
            if self._busy or self._idle or ready or loading:
                last_alive = time.monotonic()
            elif time.monotonic() - last_alive > _NO_WORKER:
                need = f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
                raise AlimarkError(
                    f"the cluster has had no free resources for a worker ({need}) for {_NO_WORKER:g} s; finished work is "
                    "kept, so run the command again when there are"
                )
            for ref in ready:
                if ref in self._unplaced:
                    self._unplaced.remove(ref)
                elif ref in self._starting:
                    self._started(ref)
                else:
                    yield from self._received(ref)

    def _started(self, ref: Any) -> None:
        """An actor is ready, or has failed to start."""
        actor, number = self._starting.pop(ref)
        try:
            version = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                reason = str(error).strip().splitlines()[0]
                raise AlimarkError(f"{_STARTS} workers in a row died before they were ready: {reason}") from None
            self._start(number)
            return
        if version != metadata.version("alimark"):
            raise AlimarkError(
                f"a worker runs alimark {version} and this process {metadata.version('alimark')}; install the same release "
                "on all machines"
            )
        self._failed_starts = 0
        self._idle.append((actor, number))

    def _received(self, stream: Any) -> Iterator[tuple[PoolJob, WorkerMessage]]:
        """The next message of a busy worker, or the end of its job."""
        actor, number, job = self._busy[stream]
        try:
            message = self._ray.get(next(stream))
        except StopIteration:
            del self._busy[stream]
            self._idle.append((actor, number))
            yield job, WorkEnded()
        except self._ray.exceptions.RayActorError as error:
            del self._busy[stream]
            self._start(number)
            yield job, Died(str(error).splitlines()[0])
        except self._ray.exceptions.RayTaskError as error:
            del self._busy[stream]
            cause = _cause(error)
            if isinstance(cause, AlimarkError):
                raise cause from None
            self._idle.append((actor, number))
            yield job, Died(f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}")
        else:
            yield job, message

    def close(self) -> None:
        """Ends the workers."""
        actors = [*self._starting.values(), *self._idle, *(busy[:2] for busy in self._busy.values())]
        for actor, _ in actors:
            with suppress(Exception):
                self._ray.kill(actor)
        if self._joined:
            self._ray.shutdown()


class _Host:
    """The actor, which builds its worker on the machine where it runs."""

    def __init__(self, build: Builder, threads: int) -> None:
        self._build, self._threads = build, threads

    def placed(self) -> None:
        """Return as soon as the cluster has a place for the actor; building the worker may take minutes."""

    def ready(self) -> str:
        """Build the worker, and return the version of alimark.

        This is not done in the constructor, because Ray would not raise an error of the constructor as it is.
        """
        _bound_threads(self._threads)
        self._worker: Any = self._build(threads=self._threads, guarded=True)
        return metadata.version("alimark")

    def work(self, job: Any) -> Iterator[Any]:
        yield from self._worker.work(job)


def _bound_threads(threads: int) -> None:
    """Limit the threads of this process, so that workers on one machine do not compete for cores.

    Numba must be told directly, because it reads the environment only when it is imported.
    """
    import numba

    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def _join(ray: Any, cluster: Cluster) -> bool:
    """Connect to the cluster; return whether this was necessary, so that the run disconnects at its end."""
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if cluster.address:
            ray.init(address=cluster.address, **quiet)
        else:
            # A small object store is enough, because workers write their results to files.
            ray.init(address="local", include_dashboard=False, object_store_memory=128 << 20, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise AlimarkError(f"no Ray cluster answers at {cluster.address}: {reason}; check --address") from None
    return True


def _share_of_gpu(gpus: float, workers: int | None) -> float:
    """The part of a GPU that each worker gets: one, or less where more workers are asked for than there are GPUs.

    Ray places a worker on one GPU, so the workers of a GPU get equal parts of it.

    Example:
        >>> _share_of_gpu(0, 4), _share_of_gpu(2, None), _share_of_gpu(8, 4), _share_of_gpu(1, 2), _share_of_gpu(2, 5)
        (0.0, 1.0, 1.0, 0.5, 0.3333333333333333)
    """
    if gpus < 1:
        return float(gpus)
    return 1.0 / math.ceil((workers or 1) / int(gpus))


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """The number of workers that the cluster has resources for, at least one."""
    needs = (("CPU", cpus), ("GPU", gpus))
    return max(1, min(int(resources.get(name, name == "CPU") / need) for name, need in needs if need))


def _cause(error: Any) -> Exception:
    """The exception that was raised in the worker."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
