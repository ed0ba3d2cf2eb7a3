"""Requests to a language model that need not wait for each other, as many at a time as it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from alimark.errors import ContextFull, LLMError
from alimark.llm.base import LLM, Draw, Over, Request, Sampling

Answer = list[Draw] | LLMError


def draw_all(
    llm: LLM, requests: Iterable[Request], sampling: Sampling, over: Over, *, least: int = 1, singles: bool = False
) -> Iterator[tuple[int, Request, Answer]]:
    """Each request with its place and its draws, or what kept the model from it, as the answers come.

    Requests are taken from `requests` no sooner than they are needed, and at least `least` of them go in one call: an engine
    that keeps what it read last reads the common start of neighbours once. `singles`: each request is for one draw.
    """
    callers, together = llm.singles if singles else (llm.callers, llm.together)
    chunks = _chunks(enumerate(requests), max(least, together))
    if callers <= 1:
        for chunk in chunks:  # in this thread, so that an interruption reaches the model at once
            yield from _answers(chunk, _draw(llm, chunk, sampling, over))
        return
    pool = ThreadPoolExecutor(callers, thread_name_prefix="alimark-asker")
    under_way: dict[Future[list[Answer]], list[tuple[int, Request]]] = {}
    try:
        while True:
            # One more in hand for each caller, so that none waits while an answer is looked at.
            for chunk in islice(chunks, max(0, 2 * callers - len(under_way))):
                under_way[pool.submit(_draw, llm, chunk, sampling, over)] = chunk
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield from _answers(under_way.pop(future), future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _chunks(requests: Iterator[tuple[int, Request]], size: int) -> Iterator[list[tuple[int, Request]]]:
    while chunk := list(islice(requests, size)):
        yield chunk


def _answers(chunk: Sequence[tuple[int, Request]], found: Sequence[Answer]) -> Iterator[tuple[int, Request, Answer]]:
    return ((place, request, answer) for (place, request), answer in zip(chunk, found, strict=True))


def _draw(llm: LLM, chunk: Sequence[tuple[int, Request]], sampling: Sampling, over: Over) -> list[Answer]:
    requests = [request for _, request in chunk]
    try:
        draws = llm.draw(requests, sampling, over)
    except ContextFull as full:
        if len(chunk) == 1:
            return [full]
        half = len(chunk) // 2  # who it was is found out by asking for fewer
        return [*_draw(llm, chunk[:half], sampling, over), *_draw(llm, chunk[half:], sampling, over)]
    except LLMError as error:
        return [error for _ in chunk]
    for request, found in zip(requests, draws, strict=True):
        if len(found) != request.count:
            return [LLMError(f"{llm.name} gave {len(found)} answers where {request.count} were asked for")] * len(chunk)
    return list(draws)
