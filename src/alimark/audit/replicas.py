"""Generation on a Ray cluster: prompts are distributed over replicas of a model, or over several HTTP endpoints."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from alimark.audit.pool import Builder, Cluster, Died, RayPool
from alimark.core._util.json_types import JsonObject
from alimark.core.embedding.loading import load_embedder
from alimark.core.generation.api import Finished, GenerationSettings, Prompt
from alimark.core.keys.key import Key, Sealed
from alimark.core.llm import is_served, load_llm
from alimark.core.schemes.api import generate_many, load
from alimark.errors import LLMError

_DEATHS = 3
_SHARES = 4
"""Shares for each replica: several, so that a fast replica takes more of them; few, so that batches stay full."""


@dataclass(frozen=True)
class Share:
    """The prompts that a replica gets at a time: the number, text, seed and key of each."""

    prompts: tuple[tuple[int, str, int | None, Sealed | None], ...]
    key: Sealed | None
    settings: GenerationSettings
    device: str | None = None  # the device of embedders


class Writer:
    """The worker of a replica: it holds the model, and the embedders of the keys that it has had so far."""

    def __init__(self, llm: str, options: JsonObject, *, threads: int | None, guarded: bool) -> None:
        self._llm = load_llm(llm, **options)
        self._embedder = cache(partial(load_embedder, threads=threads))

    def work(self, share: Share) -> Finished:
        """Writes the texts of a share and yields each with the number of its prompt."""
        prompts = [Prompt(text, seed, None if key is None else key.open()) for _, text, seed, key in share.prompts]
        key = None if share.key is None else share.key.open()
        mark = (
            None
            if key is None
            else load(key, embedder=self._embedder(key.embedder, device=share.device) if key.embedder else None)
        )
        for i, result in generate_many(mark, prompts, self._llm, share.settings):
            yield share.prompts[i][0], result


class Replicas:
    """Writes texts on a cluster. The replicas are kept from call to call as long as the model is the same."""

    def __init__(self, cluster: Cluster, llms: Sequence[str] | None = None) -> None:
        """`llms`: a model for each replica where they differ, such as HTTP addresses; otherwise `write` names the model."""
        self._cluster, self._llms = cluster, list(llms or ())
        self._pool: RayPool[Share] | None = None
        self._serves = ""
        self.deaths = 0
        """Replicas that died so far."""

    def write(
        self, prompts: Sequence[Prompt], key: Key | None, settings: GenerationSettings, *, llm: str = "",
        options: JsonObject | None = None, device: str | None = None,
    ) -> Finished:  # fmt: skip
        """Yields each text with its prompt's number as soon as it is finished, or the error that ended it."""
        pool = self._open(llm, options or {})
        items = [
            (i, prompt.text, prompt.seed, None if prompt.key is None else Sealed(prompt.key))
            for i, prompt in enumerate(prompts)
        ]
        size = max(1, -(-len(items) // (_SHARES * pool.workers)))
        first = Share((), None if key is None else Sealed(key), settings, device)
        for start in range(0, len(items), size):
            pool.give(replace(first, prompts=tuple(items[start : start + size])))
        finished: set[int] = set()
        deaths: Counter[int] = Counter()
        for share, message in pool.run():
            if isinstance(message, Died):
                self.deaths += 1
                yield from self._after(share, message, finished, deaths)
            elif isinstance(message, tuple):  # all messages but WorkEnded
                finished.add(message[0])
                yield message

    def _after(self, share: Share, died: Died, finished: set[int], deaths: Counter[int]) -> Finished:
        """Gives the unfinished prompts of a dead replica to others, one at a time, so that a deadly prompt fails alone."""
        assert self._pool is not None
        for item in share.prompts:
            if item[0] in finished:
                continue
            deaths[item[0]] += len(share.prompts) == 1
            if deaths[item[0]] < _DEATHS:
                self._pool.give(replace(share, prompts=(item,)))
            else:
                yield item[0], LLMError(f"{_DEATHS} replicas died while they wrote this text ({died.why})")

    def _open(self, llm: str, options: JsonObject) -> RayPool[Share]:
        serves = json.dumps([self._llms or llm, options], sort_keys=True, default=str)
        if self._pool is None or serves != self._serves:
            self.close()
            names = self._llms or [llm]
            builders: list[Builder] = [partial(Writer, name, options) for name in names]
            asks = all(map(is_served, names))  # a replica that asks a server needs no GPU
            self._pool = RayPool(builders, replace(self._cluster, gpus=0.0) if asks else self._cluster)
            self._serves = serves
        return self._pool

    def close(self) -> None:
        """Stops the replicas."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
