"""Algorithm 1: sample candidates for the next sentence, keep the one that carries the block, repeat.

`session` is the loop of one text, `rules` is what a scheme adds to it, and `scheduler` serves many texts at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.generation.scheduler import Rounds, Scheduler, check, default_batch, in_turn
from alimark.generation.session import (
    Ended,
    Generation,
    GenerationSettings,
    MarkedSentence,
    Progress,
    PromptStyle,
    Writing,
)
from alimark.keys.key import Key
from alimark.llm.base import LLM

__all__ = [
    "Ended", "Generation", "GenerationSettings", "MarkedSentence", "Progress", "Prompt", "PromptStyle", "Scheduler", "Writing",
    "default_batch", "generate", "generate_many",
]  # fmt: skip


def generate(
    prompt: str,
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Generation:
    """Writes `settings.sentences` sentences after the prompt, or fewer where the model gives no more.

    They carry the key's mark; without a key they are plain.
    """
    if settings.tokens is not None:
        raise AlimarkError("a text that is marked by sentences has a length in sentences, not in tokens")
    one = Writing(prompt, key, settings, seed=seed, progress=progress)
    check(key, embedder)
    rounds = Rounds(llm, embedder)
    while one.ended is None:
        rounds.run([one])
    return one.generation(llm)


@dataclass(frozen=True)
class Prompt:
    """One of many: what to continue, from which seed, and under which key where it is not the run's."""

    text: str
    seed: int | None = None
    key: Key | None = None


def generate_many(
    prompts: Iterable[Prompt],
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    batch: int | None = None,
    progress: Callable[[int, MarkedSentence], None] | None = None,
) -> Iterator[tuple[int, Generation | AlimarkError]]:
    """Yields each text with its prompt's place as soon as it is finished, or the error that ended it.

    `batch`: texts in progress at a time; by default as many as the model is fastest with. What is written does not depend
    on it, as far as the model's draws do not.
    """
    if settings.tokens is not None:
        raise AlimarkError("a text that is marked by sentences has a length in sentences, not in tokens")
    check(key, embedder)
    batch = batch or default_batch(llm)
    if batch < 1:
        raise AlimarkError("batch must be at least 1")

    def started() -> Iterator[tuple[int, Writing]]:
        for i, prompt in enumerate(prompts):
            step = None if progress is None else (lambda sentence, i=i: progress(i, sentence))
            yield i, Writing(prompt.text, prompt.key or key, settings, seed=prompt.seed, progress=step)

    if min(batch, llm.max_concurrency) == 1:
        yield from in_turn(started(), Rounds(llm, embedder), batch)
        return
    with Scheduler(llm, embedder, batch=batch) as scheduler, _brisk_threads():
        yield from scheduler.run(started())


@contextmanager
def _brisk_threads() -> Iterator[None]:
    """A thread that feeds a GPU waits for the interpreter at every step; by default up to 5 ms, as long as the step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, 0.0005))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
