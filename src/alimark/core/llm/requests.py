"""Requests to a language model, such that the error of one request does not end the others."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import islice

from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.errors import ContextFull, LLMError

Answer = list[Draw] | LLMError  # the draws of a request, or why the model gave none

_FAULTS = 3
"""After so many requests in a row that the model fails to answer, it is not asked for the others: it is probably dead."""


def answer_each(llm: LLM, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[Answer]:
    """Asks for all requests in one call of the model; where that fails, in smaller ones, to find the request that fails."""
    try:
        answers = llm.draw(requests, sampling, stop)
    except ContextFull as full:
        if len(requests) == 1:
            return [full]
        half = len(requests) // 2  # bisect: for which of the requests there is no room
        return [
            answer for part in (requests[:half], requests[half:]) for answer in answer_each(llm, part, sampling, stop)
        ]
    except LLMError as error:
        return [error] if len(requests) == 1 else _answer_singly(llm, requests, sampling, stop)
    for request, draws in zip(requests, answers, strict=True):
        if len(draws) != request.count:
            return [LLMError(f"{llm.name} gave {len(draws)} answers where {request.count} were asked for")] * len(
                requests
            )
    return list(answers)


def _answer_singly(llm: LLM, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[Answer]:
    """Asks for requests one by one; once several in a row have failed, the others get the last error."""
    answers: list[Answer] = []
    for request in requests:
        faults = [answer for answer in answers[-_FAULTS:] if isinstance(answer, LLMError)]
        dead = len(faults) == _FAULTS and not any(isinstance(fault, ContextFull) for fault in faults)
        answers += [faults[-1]] if dead else answer_each(llm, [request], sampling, stop)
    return answers


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
    numbered, size = enumerate(requests), max(min_batch, preferred_batch)

    def ask(batch: Sequence[tuple[int, Request]]) -> list[tuple[int, Request, Answer]]:
        answers = answer_each(llm, [request for _, request in batch], sampling, stop)
        return [(index, request, answer) for (index, request), answer in zip(batch, answers, strict=True)]

    if max_concurrency <= 1:
        while batch := list(
            islice(numbered, size)
        ):  # in this thread, so that an interruption reaches the model at once
            yield from ask(batch)
        return
    pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="alimark-asker")
    pending: set[Future[list[tuple[int, Request, Answer]]]] = set()
    try:
        while True:
            # Twice as many batches as threads, so that no thread is idle while the caller works on an answer.
            while len(pending) < 2 * max_concurrency and (batch := list(islice(numbered, size))):
                pending.add(pool.submit(copy_context().run, ask, batch))
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
