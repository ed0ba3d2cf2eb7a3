"""Checks and conversions of prompts that several adapters share."""

from __future__ import annotations

from collections.abc import Sequence

from alimark.core.llm.base import Message
from alimark.errors import ContextFull, LLMError


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The messages as chat templates and servers expect them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def with_bos(ids: list[int], bos: int | None) -> list[int]:
    """The tokens with `bos` in front, unless it is None or is there already."""
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def check_prompt(ids: Sequence[int], max_tokens: int, context_tokens: int | None, advice: str) -> None:
    """Refuse a prompt that is empty or leaves no room for `max_tokens` in the model's context."""
    if not ids:
        raise LLMError("the context is empty; give the model a prompt to continue")
    if context_tokens is not None and len(ids) + max_tokens > context_tokens:
        raise ContextFull(
            f"{len(ids)} tokens of context leave no room for {max_tokens} more in {context_tokens}; "
            f"write fewer sentences, or {advice}"
        )
