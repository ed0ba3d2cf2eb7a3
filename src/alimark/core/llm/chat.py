"""Independent requests to a language model, sent in batches by as many threads as it accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import islice

from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.errors import ContextFull, LLMError

Answer = list[Draw] | LLMError


def draw_all(
    llm: LLM,
    requests: Iterable[Request],
    sampling: Sampling,
    stop: StopCondition,
    *,
    min_batch: int = 1,
    single_draws: bool = False,
) -> Iterator[tuple[int, Request, Answer]]:
    """Yield (index, request, draws or error) for each request, in the order in which the answers arrive.

    `requests` is consumed lazily. At least `min_batch` requests go in one call, so that an engine with a prefix cache reads the
    common prefix of neighbours once. `single_draws` says that each request asks for a single draw.
    """
    batching = llm.single_draw_batching if single_draws else (llm.max_concurrency, llm.preferred_batch)
    max_concurrency, preferred_batch = batching
    batches = _batches(enumerate(requests), max(min_batch, preferred_batch))
    if max_concurrency <= 1:
        for batch in batches:  # in this thread, so that an interruption reaches the model at once
            yield from _with_answers(batch, _draw(llm, batch, sampling, stop))
        return
    pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="alimark-asker")
    pending: dict[Future[list[Answer]], list[tuple[int, Request]]] = {}
    try:
        while True:
            # Twice as many batches as threads, so that no thread is idle while the caller works on an answer.
            for batch in islice(batches, max(0, 2 * max_concurrency - len(pending))):
                pending[pool.submit(copy_context().run, _draw, llm, batch, sampling, stop)] = batch
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield from _with_answers(pending.pop(future), future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _batches(requests: Iterator[tuple[int, Request]], size: int) -> Iterator[list[tuple[int, Request]]]:
    while batch := list(islice(requests, size)):
        yield batch


def _with_answers(
    batch: Sequence[tuple[int, Request]], answers: Sequence[Answer]
) -> Iterator[tuple[int, Request, Answer]]:
    return ((index, request, answer) for (index, request), answer in zip(batch, answers, strict=True))


def _draw(llm: LLM, batch: Sequence[tuple[int, Request]], sampling: Sampling, stop: StopCondition) -> list[Answer]:
    """One call of the model; a batch in which some context is too long is bisected until the request is isolated."""
    requests = [request for _, request in batch]
    try:
        answers = llm.draw(requests, sampling, stop)
    except ContextFull as full:
        if len(batch) == 1:
            return [full]
        half = len(batch) // 2
        return [*_draw(llm, batch[:half], sampling, stop), *_draw(llm, batch[half:], sampling, stop)]
    except LLMError as error:
        return [error for _ in batch]
    for request, draws in zip(requests, answers, strict=True):
        if len(draws) != request.count:
            return [LLMError(f"{llm.name} gave {len(draws)} answers where {request.count} were asked for")] * len(batch)
    return list(answers)
