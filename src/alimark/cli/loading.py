"""Loads models for the verbs, with progress on stderr where weights are fetched, and starts replicas on Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from alimark.cli.options import uses_ray

if TYPE_CHECKING:
    from alimark.audit.replicas import Replicas
    from alimark.core.embedding.base import Embedder
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM
    from alimark.core.schemes.base import Watermark


def fetch_models(*names: str) -> None:
    """Fetches those models of the store that are not on this machine yet, with progress bars."""
    from alimark.core.models import store

    missing = [name for name in names if name in store.names() and not store.is_fetched(name)]
    if missing:
        from alimark.cli.models import download_bars, fetch_model

        with download_bars() as bars:
            for name in missing:
                fetch_model(name, bars)


def load_llm(name: str) -> LLM:
    """Loads a language model by name; its weights are fetched first where they are missing."""
    from alimark.core.llm import load_llm

    fetch_models(name.split(":", 1)[-1])
    return load_llm(name)


def load_embedder(name: str) -> Embedder:
    """Loads an embedder by name; its weights are fetched first where they are missing."""
    from alimark.core.embedding.loading import load_embedder

    fetch_models(name)
    return load_embedder(name)


def load_mark(key: Key, *, embedder: bool = True) -> Watermark:
    """Loads the watermark of a key; with `embedder=False` without its embedder, where other processes embed."""
    from alimark.core.schemes.api import load

    return load(key, embedder=load_embedder(key.embedder) if key.embedder and embedder else None)


@contextmanager
def quiet_ray(ray: bool = True) -> Iterator[None]:
    """Discards what Ray prints on stdout, where scripts expect the result; lost workers are reported on stderr anyway."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere) if ray else nullcontext():
        yield


@contextmanager
def replicas(
    engine: str, address: str | None, count: int | None, llms: Sequence[str] = ()
) -> Iterator[Replicas | None]:
    """Starts replicas of a model for `--engine ray`; yields None for plain, where this process generates."""
    if not uses_ray(engine, address, count, "replicas"):
        yield None
        return
    from alimark.audit.pool import Cluster
    from alimark.audit.replicas import Replicas

    with closing(Replicas(Cluster(address, count), llms if len(llms) > 1 else None)) as pool:
        yield pool
