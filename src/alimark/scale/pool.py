"""Who does the work: this process, or actors on a Ray cluster that may die at any moment and are then replaced.

A worker is any object with `work(job)`, a generator of messages. A pool takes jobs and tells what the workers say, that a job
ended, or that its worker died with it; whoever runs the pool decides whether the job is given out again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from alimark.errors import AlimarkError, MissingExtra

Job = TypeVar("Job")
_STARTS = 3
"""Workers that die before they are ready, in a row: then it is not chance."""
_NO_WORKER = 60.0


class Builder(Protocol):
    """Makes a worker. `threads`: cores it may use; `guarded`: it may end its process."""

    def __call__(self, *, threads: int | None, guarded: bool) -> Any: ...


@dataclass(frozen=True)
class Ended:
    """The job is done."""


@dataclass(frozen=True)
class Died:
    """The worker is gone and the job is not done."""

    why: str


class LocalPool(Generic[Job]):
    """This process, one job after the other."""

    def __init__(self, build: Builder) -> None:
        self._worker = build(threads=None, guarded=False)
        self._jobs: deque[Job] = deque()

    def give(self, job: Job) -> None:
        self._jobs.append(job)

    def run(self) -> Iterator[tuple[Job, Any]]:
        while self._jobs:
            job = self._jobs.popleft()
            for message in self._worker.work(job):
                yield job, message
            yield job, Ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs and how much of it is taken."""

    address: str | None = None
    """None: a cluster of this machine alone, for this run."""
    workers: int | None = None
    """Default: as many as the cluster has room for."""
    cpus: float = 1.0
    gpus: float | None = None
    """For each worker; by default one where the cluster has any."""


def ray_library() -> Any:
    # Nothing is told to Ray's makers unless somebody asked for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


class RayPool(Generic[Job]):
    """Actors on a cluster, each with one worker. A dead one is replaced, and its job handed back."""

    def __init__(self, builders: list[Builder], cluster: Cluster) -> None:
        """`builders`: one for each worker where they differ, as replicas at several addresses do; else one for all."""
        self._ray = ray_library()
        self._joined = _join(self._ray, cluster)
        has = self._ray.cluster_resources()
        self._gpus = cluster.gpus if cluster.gpus is not None else min(1.0, has.get("GPU", 0.0))
        self._cpus = cluster.cpus
        self._builders = builders
        if len(builders) == 1:
            self._builders = builders * (cluster.workers or _room(has, self._cpus, self._gpus))
        self._jobs: deque[Job] = deque()
        self._starting: dict[Any, tuple[Any, int]] = {}
        self._idle: list[tuple[Any, int]] = []
        self._busy: dict[Any, tuple[Any, int, Job]] = {}
        self._failed_starts = 0
        for number in range(len(self._builders)):
            self._start(number)

    @property
    def workers(self) -> int:
        return len(self._builders)

    def _start(self, number: int) -> None:
        actor = self._ray.remote(_Host).options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0).remote(
            self._builders[number], max(1, int(self._cpus))
        )  # fmt: skip
        self._starting[actor.ready.remote()] = (actor, number)

    def give(self, job: Job) -> None:
        self._jobs.append(job)

    def run(self) -> Iterator[tuple[Job, Any]]:
        last_alive = time.monotonic()
        while self._jobs or self._busy:
            while self._jobs and self._idle:
                (actor, number), job = self._idle.pop(), self._jobs.popleft()
                self._busy[actor.work.options(num_returns="streaming").remote(job)] = (actor, number, job)
            waited = [*self._busy, *self._starting]
            ready, _ = self._ray.wait(waited, num_returns=1, timeout=5)
            if self._busy or self._idle or ready:
                last_alive = time.monotonic()
            elif time.monotonic() - last_alive > _NO_WORKER:
                need = f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
                raise AlimarkError(
                    f"the cluster has had no room for a worker ({need}) for {_NO_WORKER:g} s; what is done is kept, so run "
                    "it again when there is"
                )
            for one in ready:
                if one in self._starting:
                    self._started(one)
                else:
                    yield from self._heard(one)

    def _started(self, ref: Any) -> None:
        actor, number = self._starting.pop(ref)
        try:
            there = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                said = str(error).strip().splitlines()[0]
                raise AlimarkError(
                    f"{_STARTS} workers died one after the other before they could begin: {said}"
                ) from None
            self._start(number)
            return
        if there != metadata.version("alimark"):
            raise AlimarkError(
                f"a worker runs alimark {there}, this is {metadata.version('alimark')}; install one release"
            )
        self._failed_starts = 0
        self._idle.append((actor, number))

    def _heard(self, stream: Any) -> Iterator[tuple[Job, Any]]:
        actor, number, job = self._busy[stream]
        try:
            message = self._ray.get(next(stream))
        except StopIteration:
            del self._busy[stream]
            self._idle.append((actor, number))
            yield job, Ended()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        actors = [*self._starting.values(), *self._idle, *(busy[:2] for busy in self._busy.values())]
        for actor, _ in actors:
            with suppress(Exception):
                self._ray.kill(actor)
        if self._joined:
            self._ray.shutdown()


class _Host:
    """The actor: builds its worker where it runs."""

    def __init__(self, build: Builder, threads: int) -> None:
        self._build, self._threads = build, threads

    def ready(self) -> str:
        """Not while the actor is made: what goes wrong here comes back as it was raised."""
        _bound_threads(self._threads)
        self._worker = self._build(threads=self._threads, guarded=True)
        return metadata.version("alimark")

    def work(self, job: Any) -> Iterator[Any]:
        yield from self._worker.work(job)


def _bound_threads(threads: int) -> None:
    """Workers that each take all cores are in each other's way. Numba reads no environment once it runs."""
    import numba

    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def _join(ray: Any, cluster: Cluster) -> bool:
    """Whether this run joined a cluster, and is to leave it."""
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if cluster.address:
            ray.init(address=cluster.address, **quiet)
        else:
            # Results are written by the workers, so that little passes through the shared memory.
            ray.init(address="local", include_dashboard=False, object_store_memory=128 << 20, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AlimarkError(f"no Ray cluster answers at {cluster.address}: {str(error).splitlines()[0]}") from None
    return True


def _room(has: dict[str, float], cpus: float, gpus: float) -> int:
    rooms = [int(has.get("CPU", 1) / cpus) if cpus else 10**6, int(has.get("GPU", 0) / gpus) if gpus else 10**6]
    return max(1, min(*rooms, 10**6))


def _cause(error: Any) -> Exception:
    """What went wrong inside, as it was raised there."""
    cause = getattr(error, "cause", None) or error
    return cause if isinstance(cause, Exception) else error
