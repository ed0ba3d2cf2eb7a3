"""Marking of texts that exist: a chat model rewrites every sentence many times, and the key chooses among the rewrites.

What stands between the sentences stays as it is, code blocks included. The choice for a sentence does not depend on the other
sentences, so the rewrites of all sentences of several texts are requested together.
"""

from collections.abc import Callable, Iterable, Iterator

from alimark.core._util.work import stop_if_cancelled
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM, Request
from alimark.core.llm.requests import draw_all
from alimark.core.rewriting.results import Rewriting
from alimark.core.rewriting.session import RewriteSession
from alimark.core.rewriting.settings import Original, RewriteOptions, RewriteSettings
from alimark.errors import AlimarkError

__all__ = ["Original", "RewriteOptions", "RewriteProgress", "RewriteSettings", "Rewriting", "rewrite_many"]

RewriteProgress = Callable[[int, int, int], None]
"""Called with the number of a text, its sentences done so far, and all its sentences."""

_BATCHES = 4
"""Texts are rewritten together until their requests make so many batches for every caller that the model takes."""

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
    """Marks each text by rewriting it; sentences of several texts share the batches of the chat model.

    A text may have a key of its own; `key` is that of all others. `progress` is called as the answers of the model come.
    """
    key.check(embedder)
    settings = settings or RewriteSettings()
    enough = _BATCHES * llm.max_concurrency * llm.preferred_batch
    group: list[RewriteSession] = []
    requests = 0
    for number, original in enumerate(originals):
        try:
            (original.key or key).check(embedder)
            group.append(RewriteSession(number, original, original.key or key, settings))
        except AlimarkError as error:
            yield number, error
            continue
        requests += len(group[-1].places) * settings.asks_a_wave
        if requests >= enough:
            yield from _rewrite_together(group, embedder, llm, settings, progress)
            group, requests = [], 0
    yield from _rewrite_together(group, embedder, llm, settings, progress)


def _rewrite_together(
    group: list[RewriteSession],
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings,
    progress: RewriteProgress | None,
) -> FinishedRewrites:
    """Asks for the rewrites of all texts of a group, wave by wave."""
    if not group:
        return
    cutter, least = group[0].cutter, settings.asks_a_wave

    def over(answer: str) -> bool:
        """Whether an answer goes on after its sentence: it cannot be used, so the rest need not be sampled."""
        return len(cutter.spans(answer)) > 1 and cutter.first_sentence_over(answer)

    while asked := [(text, *request) for text in group for request in text.next_wave(embedder)]:
        requests = _unless_cancelled(request for *_, request in asked)
        for place, request, answer in draw_all(llm, requests, settings.sampling, over, min_batch=least):
            text, sentence, _ = asked[place]
            text.parse(sentence, request, answer)
            if progress and text.step_done:
                progress(text.number, text.done, len(text.places))
    for text in group:
        if progress and text.done < len(text.places):  # some sentences needed fewer requests than others
            progress(text.number, len(text.places), len(text.places))
        yield text.number, text.finish(embedder, llm)


def _unless_cancelled(requests: Iterable[Request]) -> Iterator[Request]:
    for request in requests:
        stop_if_cancelled()
        yield request
