"""Marks a text that exists: every sentence is rewritten many times by a chat model, and its block picks among the rewrites.

What lies between the sentences stays as it was, code blocks included. Sentences do not depend on each other's choice, so a
model is asked for the rewrites of all of them at once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.llm.base import LLM, Request
from alimark.llm.chat import draw_all
from alimark.rewriting.results import Original, RewriteSettings, Rewriting
from alimark.rewriting.session import Revision
from alimark.text.splitting import Splitter, splitter

__all__ = ["Original", "RewriteSettings", "Rewriting", "rewrite", "rewrite_many"]

Progress = Callable[[int, int], None]
"""Called with the sentences done so far and all sentences."""


def rewrite(
    text: str,
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Rewriting:
    """The text with the key's mark."""
    step = None if progress is None else (lambda _, done, total: progress(done, total))
    [(_, made)] = rewrite_many([Original(text, seed)], key, embedder, llm, settings, progress=step)
    if isinstance(made, AlimarkError):
        raise made
    return made


def rewrite_many(
    originals: Iterable[Original],
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    progress: Callable[[int, int, int], None] | None = None,
) -> Iterator[tuple[int, Rewriting | AlimarkError]]:
    """Yields each text with its place as soon as it is finished, or the error that ended it."""
    key.check(embedder)
    settings = settings or RewriteSettings()
    asked: dict[int, tuple[Revision, int]] = {}
    ready: deque[Revision | tuple[int, AlimarkError]] = deque()
    again: deque[tuple[Revision, int, Request]] = deque()  # later waves of texts under way, which go first
    numbers = itertools.count()
    fresh = enumerate(originals)

    def wanted() -> Iterator[tuple[Revision, int, Request]]:
        while again:
            yield again.popleft()
        for place, one in fresh:
            try:
                (one.key or key).check(embedder)
                revision = Revision(place, one, one.key or key, settings)
            except AlimarkError as error:
                ready.append((place, error))
                continue
            asks = revision.next_wave(embedder)
            if not asks:
                ready.append(revision)
            for sentence, request in asks:
                yield revision, sentence, request
            while again:
                yield again.popleft()

    def requests() -> Iterator[Request]:
        for revision, sentence, request in wanted():
            asked[next(numbers)] = revision, sentence
            yield request

    def finished() -> Iterator[tuple[int, Rewriting | AlimarkError]]:
        while ready:
            one = ready.popleft()
            yield one if isinstance(one, tuple) else (one.place, one.finish(embedder, llm))

    over = _goes_on(splitter(key.splitter))
    first = 0
    while True:  # a round ends when nothing more can be asked; answers that came last may want another wave
        numbers = itertools.count(first)
        for number, request, answer in draw_all(llm, requests(), settings.sampling, over, min_batch=settings.asks_a_wave):
            revision, sentence = asked.pop(first + number)
            revision.take(sentence, request, answer)
            if progress and revision.step_done:
                progress(revision.place, revision.done, len(revision.places))
            if not revision.waiting:
                asks = revision.next_wave(embedder)
                again.extend((revision, sentence, request) for sentence, request in asks)
                if not asks:
                    ready.append(revision)
                    if progress and revision.done < len(revision.places):  # some took fewer answers than others
                        progress(revision.place, len(revision.places), len(revision.places))
            yield from finished()
        yield from finished()
        first = next(numbers)
        if not again:
            return


def _goes_on(cutter: Splitter) -> Callable[[str], bool]:
    """A rewrite that goes on after its sentence is none, so nobody waits for its end."""
    return lambda text: len(cutter.spans(text)) > 1 and cutter.first_sentence_over(text)
