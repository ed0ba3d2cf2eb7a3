"""Prompts spread over replicas of a model: actors with weights of their own, or several HTTP endpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from alimark.embedding.base import Embedder
from alimark.embedding.loading import load_embedder
from alimark.errors import AlimarkError, LLMError
from alimark.generation.api import Generation, GenerationSettings, Prompt, generate_many
from alimark.keys.key import Key, Sealed
from alimark.llm import load_llm
from alimark.scale.pool import Builder, Cluster, Died, Ended, RayPool
from alimark.schemes.api import load

_DEATHS = 3
_SHARES = 4
"""Of each replica: several, so that a fast one takes more of them, and few, so that its batches stay full."""


@dataclass(frozen=True)
class Share:
    """Prompts for one replica: place, text, seed and key of each."""

    prompts: tuple[tuple[int, str, int | None, Sealed | None], ...]
    key: Sealed | None
    settings: GenerationSettings
    batch: int | None


class Writer:
    """Holds a model, and the embedders that the keys have named so far."""

    def __init__(self, llm: str, options: dict[str, Any], *, threads: int | None, guarded: bool) -> None:
        self._llm = load_llm(llm, **options)
        self._threads = threads
        self._embedders: dict[str, Embedder] = {}

    def work(self, share: Share) -> Iterator[tuple[int, Generation | AlimarkError]]:
        prompts = [Prompt(text, seed, None if key is None else key.open()) for _, text, seed, key in share.prompts]
        if share.key is None:
            made = generate_many(prompts, None, None, self._llm, share.settings, batch=share.batch)
        else:
            key = share.key.open()
            mark = load(key, embedder=self._embedder(key.embedder) if key.embedder else None)
            made = mark.generate_many(prompts, self._llm, share.settings, batch=share.batch)
        for i, one in made:
            yield share.prompts[i][0], one

    def _embedder(self, name: str) -> Embedder:
        if name not in self._embedders:
            self._embedders[name] = load_embedder(name, threads=self._threads)
        return self._embedders[name]


class Replicas:
    """Writes texts on a cluster. The replicas stay up from call to call, as long as the model is the same."""

    def __init__(
        self, cluster: Cluster, llms: Sequence[str] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """`llms`: one name for every replica, where they differ, as addresses do; else a call names the model of all."""
        self._cluster, self._llms, self._options = cluster, list(llms or ()), dict(options or {})
        self._pool: RayPool[Share] | None = None
        self._serves = ""
        self.deaths = 0

    def write(
        self,
        prompts: Sequence[Prompt],
        key: Key | None,
        settings: GenerationSettings,
        *,
        llm: str = "",
        options: dict[str, Any] | None = None,
        batch: int | None = None,
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """As `generate_many`: each text with its prompt's place as soon as it is finished, or the error that ended it."""
        pool = self._open(llm, self._options | (options or {}))
        items = [(i, one.text, one.seed, None if one.key is None else Sealed(one.key)) for i, one in enumerate(prompts)]
        size = max(1, -(-len(items) // (_SHARES * pool.workers)))
        first = Share((), None if key is None else Sealed(key), settings, batch)
        for start in range(0, len(items), size):
            pool.give(replace(first, prompts=tuple(items[start : start + size])))
        finished: set[int] = set()
        deaths: Counter[int] = Counter()
        for share, message in pool.run():
            if isinstance(message, Died):
                self.deaths += 1
                yield from self._after(share, message, finished, deaths)
            elif not isinstance(message, Ended):
                finished.add(message[0])
                yield message

    def _after(
        self, share: Share, died: Died, finished: set[int], deaths: Counter[int]
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """What the dead replica had not finished goes to others, prompt by prompt, so that a deadly one ends alone."""
        assert self._pool is not None
        for item in share.prompts:
            if item[0] in finished:
                continue
            deaths[item[0]] += len(share.prompts) == 1
            if deaths[item[0]] < _DEATHS:
                self._pool.give(replace(share, prompts=(item,)))
            else:
                yield item[0], LLMError(f"{_DEATHS} replicas died while they wrote this text ({died.why})")

    def _open(self, llm: str, options: dict[str, Any]) -> RayPool[Share]:
        serves = json.dumps([self._llms or llm, options], sort_keys=True, default=str)
        if self._pool is None or serves != self._serves:
            self.close()
            names = self._llms or [llm]
            builders: list[Builder] = [partial(Writer, name, options) for name in names]
            # Whoever asks a server needs no GPU of his own.
            asks = all(name.startswith("openai:") for name in names)
            self._pool = RayPool(builders, replace(self._cluster, gpus=0.0) if asks else self._cluster)
            self._serves = serves
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.__exit__(None, None, None)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
