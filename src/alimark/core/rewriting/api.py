"""Marking of texts that exist: a chat model rewrites every sentence many times, and the key chooses among the rewrites.

What stands between the sentences stays as it is, code blocks included. The choice for a sentence does not depend on the other
sentences, so the rewrites of all sentences of all texts are requested together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from alimark.core._util.work import stop_if_cancelled
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import Splitter, splitter
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM, Draw, Request
from alimark.core.llm.requests import draw_all
from alimark.core.rewriting.results import Rewriting
from alimark.core.rewriting.session import RewriteSession
from alimark.core.rewriting.settings import Original, RewriteOptions, RewriteSettings
from alimark.errors import AlimarkError

__all__ = ["Original", "RewriteOptions", "RewriteProgress", "RewriteSettings", "Rewriting", "rewrite_many"]

RewriteProgress = Callable[[int, int, int], None]
"""Called with the number of a text, its sentences done so far, and all its sentences."""

FinishedRewrites = Iterator[tuple[int, Rewriting | AlimarkError]]
"""Each text with its number as soon as it is finished, or the error that ended it."""


def rewrite_many(
    originals: Iterable[Original],
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    progress: RewriteProgress | None = None,
) -> FinishedRewrites:
    """Marks each text by rewriting it; sentences of several texts share the model's batches.

    Args:
        originals: The texts. A text may have a key of its own.
        key: The key of all other texts.
        embedder: The embedder that the keys name.
        llm: A chat model.
        settings: How many rewrites each sentence gets, and how far the meaning may move.
        progress: Called as the answers of the model come.

    Yields:
        The number of a text with its rewriting as soon as that is finished, or with the error that ended it.

    Raises:
        AlimarkError: Where the key names another embedder.
    """
    key.check(embedder)
    yield from _Run(enumerate(originals), key, embedder, llm, settings or RewriteSettings(), progress).results()


@dataclass
class _Run:
    """The requests and answers of one call of `rewrite_many`."""

    originals: Iterator[tuple[int, Original]]
    key: Key
    embedder: Embedder
    llm: LLM
    settings: RewriteSettings
    progress: RewriteProgress | None
    later_waves: deque[tuple[RewriteSession, int, Request]] = field(default_factory=deque)
    """Requests of later waves, which go before those of new texts."""
    ready: deque[RewriteSession | tuple[int, AlimarkError]] = field(default_factory=deque)

    def results(self) -> FinishedRewrites:
        over = _has_second_sentence(splitter(self.key.splitter))
        least = self.settings.asks_a_wave
        while True:  # a round ends when no request is left; its last answers may lead to another wave
            asked: dict[int, tuple[RewriteSession, int]] = {}
            for place, request, answer in draw_all(
                self.llm, self._requests(asked), self.settings.sampling, over, min_batch=least
            ):
                self._parse(*asked.pop(place), request, answer)
                yield from self._finished()
            yield from self._finished()
            if not self.later_waves:
                return

    def _requests(self, asked: dict[int, tuple[RewriteSession, int]]) -> Iterator[Request]:
        """All requests; the text and the sentence number of each request are stored in `asked`."""
        for place, (session, sentence, request) in enumerate(self._wanted()):
            stop_if_cancelled()
            asked[place] = session, sentence
            yield request

    def _wanted(self) -> Iterator[tuple[RewriteSession, int, Request]]:
        while self.later_waves:
            yield self.later_waves.popleft()
        for number, original in self.originals:
            key = original.key or self.key
            try:
                key.check(self.embedder)
                session = RewriteSession(number, original, key, self.settings)
            except AlimarkError as error:
                self.ready.append((number, error))
                continue
            requests = session.next_wave(self.embedder)
            if not requests:
                self.ready.append(session)
            for sentence, request in requests:
                yield session, sentence, request
            while self.later_waves:
                yield self.later_waves.popleft()

    def _parse(
        self, session: RewriteSession, sentence: int, request: Request, answer: list[Draw] | AlimarkError
    ) -> None:
        session.parse(sentence, request, answer)
        total = len(session.places)
        if self.progress and session.step_done:
            self.progress(session.number, session.done, total)
        if session.waiting:
            return
        requests = session.next_wave(self.embedder)
        self.later_waves.extend((session, sentence, request) for sentence, request in requests)
        if not requests:
            self.ready.append(session)
            if self.progress and session.done < total:  # some sentences needed fewer requests than others
                self.progress(session.number, total, total)

    def _finished(self) -> FinishedRewrites:
        while self.ready:
            ready = self.ready.popleft()
            yield ready if isinstance(ready, tuple) else (ready.number, ready.finish(self.embedder, self.llm))


def _has_second_sentence(cutter: Splitter) -> Callable[[str], bool]:
    """Stops an answer that goes on after its sentence: it cannot be used, so the rest need not be sampled."""
    return lambda text: len(cutter.spans(text)) > 1 and cutter.first_sentence_over(text)
