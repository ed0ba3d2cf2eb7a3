"""What several adapters share: checks of prompts, and draws that are sampled in several requests ("rounds") to an engine.

A round stops at a string that may end a sentence. If the sentence is not over there ("Dr. "), another round continues the draw.
"""

import hashlib
import json
import re
import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from alimark.core._util.json_types import JsonObject
from alimark.core.frozen.text.splitting import STOPS
from alimark.core.llm.base import Draw, DrawEnded, Message, Request, Sampling, StopCondition
from alimark.errors import ContextFull, LLMError

_LEAST_BIAS = 0.02
_AROUND_CALLS = re.compile(r"(?:\s|</?tool_calls?>|```(?:json)?|[\[\],])+")
"""What models write around the calls of tools."""
SHORT_ROUNDS = 3
"""Rounds of a draw that stop early. The round after them samples all tokens that are left, so that long answers take few."""

REPLACEMENT = "\ufffd"
"""Unicode's replacement character: it stands for a character of which the last token holds only a part."""

COMMON_STOPS = (
    *"。！？",
    *(mark + close + blank for mark in ".!?" for close in ("", '"', "”", ")") for blank in " \n"),
)
"""The most frequent stops. There are few of them, because vLLM and SGLang look for each of them after every token."""


def _precise_stops() -> Iterator[str]:
    """The stops without the most frequent false alarms, each of which costs a further round.

    A full stop and a space count only behind two letters or digits of one kind ("end. ", "NASA. ", "1999. ", but not
    "Dr. ", "U.S. ", "J. ", "1. "), and a blank line only behind a visible character. A draw that misses an end samples on to
    the next one.
    """
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    pairs = [*(a + b for kind in kinds for a in kind for b in kind), *"%)]\"'”’"]
    visible = string.ascii_letters + string.digits + string.punctuation
    for stop in STOPS:
        before = {". ": pairs, "\n\n": visible}.get(stop, [""])
        yield from (prefix + stop for prefix in before)


PRECISE_STOPS = tuple(_precise_stops())

_ANY_STOP = re.compile("|".join(map(re.escape, STOPS)))


@dataclass(slots=True)
class PartialDraw:
    """A draw in progress: its text, its tokens as far as the engine returns them, and the number of further rounds."""

    number: int
    seed: int = 0
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    rounds: int = 0
    ended: DrawEnded | None = None

    def add_ids(self, ids: Sequence[int]) -> None:
        """Adds sampled tokens, of an engine that returns them."""
        self.ids += ids
        self.tokens = len(self.ids)

    def stopped(self, text: str, stop: StopCondition) -> bool:
        """Whether the sentence is over somewhere in the new part of `text`; then the draw ends there."""
        known = len(self.text)
        longest = max(map(len, STOPS))
        matches = _ANY_STOP.finditer(text, max(0, known - longest))
        for end in (*(match.end() for match in matches if match.end() > known), len(text)):
            if stop(text[:end]):
                self.text, self.ended = text[:end], "sentence"
                return True
        return False

    def finished(self) -> Draw:
        assert self.ended is not None
        return Draw(self.text, self.tokens, self.ended)


def seed_of(*numbers: int) -> int:
    """A seed of 31 bits, so that with a draw's index added it fits the integers of every server.

    It also stays below 2**32 - 1, which llama.cpp takes for "a random seed".
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def llama_cpp_body(sampling: Sampling, *, tokens: int, seed: int, context: int, stop: Sequence[str]) -> dict[str, Any]:
    """The fields of a request to llama.cpp's own `/completion` that say how `tokens` tokens are sampled.

    Args:
        context: As many tokens as any context has: the repetition penalty spans prompt and text.
        stop: Strings at which the server stops.
    """
    return {
        "n_predict": tokens,
        "seed": seed,
        # All samplers, in this order; the server's other ones are not used.
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": context,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "ignore_eos": not sampling.may_end,
        "stop": stop,
        "return_tokens": True,
    }


def biased(request: Request) -> dict[str, Any]:
    """The field of a request to llama.cpp's own `/completion` that holds the bias by token, if there is one.

    llama.cpp adds it before all samplers, so a token may come into top-p by its bias.
    """
    pairs = bias_pairs(request)
    return {"logit_bias": list(pairs.items())} if pairs else {}


def bias_pairs(request: Request) -> dict[int, float]:
    """The bias of a request by token, without those that make no difference."""
    if request.bias is None:
        return {}
    ids = np.flatnonzero(np.abs(request.bias) >= _LEAST_BIAS)
    return dict(zip(ids.tolist(), request.bias[ids].astype(float).round(2).tolist(), strict=True))


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The messages as chat templates and servers expect them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def with_bos(ids: list[int], bos: int | None) -> list[int]:
    """The tokens with `bos` in front, unless it is None or is there already."""
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def checked_prompt(ids: list[int], max_tokens: int, context_tokens: int | None, advice: str) -> list[int]:
    """The tokens of a prompt, unless it is empty or leaves no room for `max_tokens` in the model's context."""
    if not ids:
        raise LLMError("the context is empty; give the model a prompt to continue")
    if context_tokens is not None and len(ids) + max_tokens > context_tokens:
        raise ContextFull(
            f"{len(ids)} tokens of context leave no room for {max_tokens} more in {context_tokens}; "
            f"write fewer sentences, or {advice}"
        )
    return ids


# Calls of tools. llama.cpp, as it runs inside this process, applies the chat template to tools but returns calls as text.


def _layout_end(text: str, start: int) -> int:
    layout = _AROUND_CALLS.match(text, start)
    return layout.end() if layout else start


def calls_in(text: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The calls of tools that a model wrote as its whole answer, as the OpenAI protocol has them; empty where it wrote prose.

    Example:
        >>> [call] = calls_in('{"name": "add", "arguments": {"a": 1}}', [{"function": {"name": "add"}}])
        >>> call["function"]
        {'name': 'add', 'arguments': '{"a": 1}'}
        >>> calls_in("I add 1.", [{"function": {"name": "add"}}])
        []
    """
    names = {tool.get("function", {}).get("name") for tool in tools}
    decoder, calls = json.JSONDecoder(), list[JsonObject]()
    place = _layout_end(text, 0)
    while place < len(text):
        try:
            call, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        if not isinstance(call, dict) or call.get("name") not in names or not isinstance(call.get("arguments"), dict):
            return []
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
        place = _layout_end(text, place)
    return calls


def with_form_of_calls(body: JsonObject) -> JsonObject:
    """A request to llama.cpp such that it writes a call of a tool, if the request demands one."""
    choice, tools = body.get("tool_choice"), [tool.get("function", {}) for tool in body.get("tools") or []]
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool.get("name") == choice.get("function", {}).get("name")]
    if not tools or choice in (None, "auto", "none"):
        return body
    forms = [
        {"type": "object", "required": ["name", "arguments"],
         "properties": {"name": {"const": tool.get("name")}, "arguments": tool.get("parameters") or {"type": "object"}}}
        for tool in tools
    ]  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"schema": {"anyOf": forms}}}
    return body | {"response_format": form, "tool_choice": "none"}
