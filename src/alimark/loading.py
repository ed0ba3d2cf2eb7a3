"""Models by name, wherever work is done. "stand-in" names those that need no weights, for trials of the machinery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alimark.embed import Embedder
    from alimark.llm.base import LLM

STAND_IN = "stand-in"


def named_embedder(name: str, **options: Any) -> Embedder:
    if name == STAND_IN:
        from alimark.testing import StandInEmbedder

        return StandInEmbedder()
    from alimark.embed import load_embedder

    return load_embedder(name, **options)


def named_llm(name: str, **options: Any) -> LLM:
    if name == STAND_IN:
        from alimark.testing import StandInLLM

        return StandInLLM()
    from alimark.llm import load_llm

    return load_llm(name, **options)
