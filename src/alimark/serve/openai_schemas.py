"""The schemas of the OpenAI protocol: completions, chat completions and responses.

Fields that OpenAI's clients send at values that ask for nothing are accepted. `structured` names the field by which an answer
may be a call of a tool or JSON, and `unmarkable` one that marked text cannot have, such as log-probabilities; whether these are
refused or passed on unmarked is a setting of the service.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from alimark.core._util.json_types import JsonObject
from alimark.core.llm.base import Message
from alimark.serve.schemas import Schema, Strict, example

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
Stop = Annotated[str, Field(max_length=200)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Metadata = dict[str, Annotated[str, Field(max_length=512)]]
IGNORED: Any = Field(None, description="Accepted and ignored.")

_PROBABILITIES = "the text is chosen among candidates, so the probabilities of its tokens are not those of the model"
_PENALTY = "candidates are sampled with the repetition penalty of the service"
_STATE = "the service stores no conversations; send the whole conversation with each request"
CALLS = "calls of tools are not prose, and a mark needs a choice among several sentences"
JSON = "JSON must match a schema word for word, and a mark needs a choice among several sentences"
WHY = {
    "web_search_options": CALLS,
    "logprobs": _PROBABILITIES, "top_logprobs": _PROBABILITIES, "include": _PROBABILITIES,
    "frequency_penalty": _PENALTY, "presence_penalty": _PENALTY,
    "logit_bias": "candidates are sampled by the model's own probabilities",
    "best_of": "the key chooses among the candidates",
    "echo": "only the text that the service writes is marked", "suffix": "only the text that the service writes is marked",
    "modalities": "only text is marked", "audio": "only text is marked",
    "previous_response_id": _STATE, "conversation": _STATE, "prompt": _STATE, "background": _STATE,
}  # fmt: skip
"""Why a marked text cannot have what a field asks for."""
_LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities. The other values ask for details of tools or of reasoning, which a
marked text does not have."""


class WithoutNulls(Strict):
    """An object in which a field that is null counts as left out, whatever its name: it asks for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, content: object) -> object:
        if not isinstance(content, dict):
            return content
        return {name: value for name, value in content.items() if value is not None}


class StreamOptions(WithoutNulls):
    """Options of a streamed response."""

    include_usage: bool | None = False
    """Ends the stream with an event that contains the usage and no choices."""
    include_obfuscation: bool | None = IGNORED


class ToWrite(WithoutNulls):
    """The fields that all requests for text share."""

    model: str = Field("", max_length=200, description="The name from /v1/models; may be left out.")
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=1_000_000, description="As vLLM and llama.cpp have it; 0 or -1 for all.")
    min_p: float | None = Field(None, ge=0, lt=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, le=10, allow_inf_nan=False)
    seed: Seed | None = Field(None, description="Makes the text repeatable.")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    sentences: int | None = Field(None, ge=1, le=10_000)
    """The most sentences. A completion is written on until it has them."""
    payload: int | None = Field(None, ge=0, lt=2**24)
    """The number that the mark carries, if the service's key has payloads."""
    user: str | None = Field(None, max_length=512, description="Accepted and ignored.")
    store: bool | None = Field(None, description="Accepted and ignored: texts are not stored for clients.")
    metadata: Metadata | None = IGNORED
    service_tier: str | None = IGNORED
    safety_identifier: str | None = IGNORED
    prompt_cache_key: str | None = IGNORED

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    path: ClassVar[str]
    """The path of the endpoint after /v1/."""
    prefix: ClassVar[str]
    """How the ids of its responses begin."""
    chat: ClassVar[bool] = True
    """Whether the request is answered, and not continued."""

    @property
    def prompts(self) -> Sequence[tuple[str, tuple[Message, ...]]]:
        """The prompts to continue, or the last message of a chat with all its turns."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """The number of texts for each prompt."""
        return int(getattr(self, "n", None) or 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences."""
        stop = getattr(self, "stop", None) or []
        return tuple(filter(None, [stop] if isinstance(stop, str) else stop))

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a text, which OpenAI's protocols call by three names."""
        names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
        return next((most for name in names if (most := getattr(self, name, None))), None)

    @model_validator(mode="after")
    def _check(self) -> ToWrite:
        if any(turns and turns[-1].role == "assistant" for _, turns in self.prompts):
            raise ValueError("the role of the last message must be user")
        if len(self.stops) > 16:
            raise ValueError("there may be at most 16 stop sequences")
        return self

    def structured(self) -> tuple[str, str] | None:
        """Returns the field by which the answer is JSON or may be a call of a tool, and why that is not marked."""
        for name in ("response_format", "text"):
            value = getattr(self, name, None)
            form = (value or {}).get("format") if name == "text" else value
            if form is not None and not (isinstance(form, dict) and form.get("type", "text") == "text"):
                return name, JSON
        for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
            if getattr(self, name, None) and getattr(self, choice, None) != "none":
                return name, CALLS
        return None

    def unmarkable(self) -> tuple[str, str] | None:
        """Returns the field that marked text cannot have, and the reason; None where there is none."""
        values = {name: getattr(self, name, None) for name in WHY}
        return next(((name, WHY[name]) for name, value in values.items() if self._asks(name, value)), None)

    def _asks(self, name: str, value: Any) -> bool:
        """Whether the value of a field asks for something that marked text cannot have."""
        if name == "web_search_options":
            return value is not None
        nothing = {"modalities": (["text"],), "best_of": range(self.count + 1)}
        if name == "include":
            return _LOGPROBS in (value or ())
        if name == "prompt":
            return isinstance(value, dict)  # a stored one; texts are continued
        return bool(value) and value not in nothing.get(name, ())


class ToComplete(ToWrite):
    """The fields that completions and chat completions share."""

    max_tokens: Tokens | None = Field(None, description="The most tokens of a text.")
    n: int | None = Field(1, ge=1, le=16)
    stop: Stop | list[Stop] | None = None
    """Up to 16 strings; the text ends before the first of them."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None


class Completion(ToComplete):
    """A request to continue one or more prompts."""

    path, prefix, chat = "completions", "cmpl-", False
    prompt: str | Annotated[list[str], Field(fail_fast=True)] = Field(min_length=1)
    best_of: int | None = Field(None, ge=1, le=20)
    echo: bool | None = None
    suffix: str | None = None
    model_config = example(prompt="The lighthouse keeper opened the door.", sentences=3)

    @property
    def prompts(self) -> Sequence[tuple[str, tuple[Message, ...]]]:
        return [(prompt, ()) for prompt in ([self.prompt] if isinstance(self.prompt, str) else self.prompt)]


class ContentPart(WithoutNulls):
    """A part of a message; only text is supported."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[JsonObject] | None = IGNORED
    logprobs: list[JsonObject] | None = IGNORED


def _only_text(content: object) -> object:
    """Checks the shape of a message's content."""
    example = '{"type": "text", "text": "..."}'
    if not isinstance(content, str | list | None):
        raise ValueError(f"it is a string or a list of parts such as {example}")
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "input_text", "output_text"):
            raise ValueError(
                f"a part of the type {str(kind)[:40]!r} cannot be read; this service reads text: {example}"
            )
    return content


class ChatMessage(WithoutNulls):
    """A message of a chat. The fields of an answer of this service are accepted, so that it can be sent back."""

    type: Literal["message"] = "message"
    """Calls of tools in /v1/responses have other types; /v1/chat/completions takes them as messages."""
    id: str | None = IGNORED
    status: str | None = IGNORED
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[ContentPart] | None, BeforeValidator(_only_text)] = None
    name: str | None = Field(None, max_length=200)
    refusal: str | None = IGNORED
    annotations: list[JsonObject] | None = IGNORED
    tool_calls: list[JsonObject] | None = None
    function_call: JsonObject | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])

    @property
    def turn(self) -> Message:
        """The message as every chat template takes it: calls of tools and their results in words, as many models write them."""
        if self.role in ("tool", "function"):
            return Message("user", f"<tool_response>\n{self.text}\n</tool_response>")
        calls = [call.get("function") or {} for call in self.tool_calls or []] + [self.function_call or {}]
        written = [
            f'<tool_call>\n{{"name": {json.dumps(call.get("name"))}, "arguments": {call.get("arguments")}}}\n</tool_call>'
            for call in calls
            if call
        ]
        role = "system" if self.role == "developer" else self.role
        return Message(role, "\n".join(filter(None, [self.text, *written])))  # type: ignore[arg-type]


class ChatCompletion(ToComplete):
    """A request to answer a chat."""

    path, prefix = "chat/completions", "chatcmpl-"
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=1000)
    max_completion_tokens: Tokens | None = Field(None, description="Replaces max_tokens.")
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    functions: list[JsonObject] | None = None
    function_call: str | JsonObject | None = None
    response_format: JsonObject | None = None
    modalities: list[str] | None = None
    audio: JsonObject | None = None
    prediction: JsonObject | None = IGNORED
    reasoning_effort: str | None = IGNORED
    verbosity: str | None = IGNORED
    web_search_options: JsonObject | None = None
    model_config = example(messages=[{"role": "user", "content": "Why is the sky blue?"}], sentences=3)

    @property
    def prompts(self) -> Sequence[tuple[str, tuple[Message, ...]]]:
        turns: list[Message] = []
        for role, messages in groupby(self.messages, key=lambda message: message.role):
            part = [message.turn for message in messages]
            # Some templates take no two turns of the user in a row; the results of several calls are one.
            turns += [Message("user", "\n".join(turn.content for turn in part))] if role == "tool" else part
        return [(turns[-1].content, tuple(turns))]


class CreateResponse(ToWrite):
    """A request to the Responses API."""

    path, prefix = "responses", "resp_"
    input: str | Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: Tokens | None = Field(None, description="The most tokens of the text.")
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: JsonObject | None = None
    """The field `format` says how the text is written."""
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None
    prompt: JsonObject | None = None
    background: bool | None = None
    reasoning: JsonObject | None = IGNORED
    truncation: str | None = IGNORED
    model_config = example(input="Why is the sky blue?", sentences=3)

    @property
    def prompts(self) -> Sequence[tuple[str, tuple[Message, ...]]]:
        before = [Message("system", self.instructions)] if self.instructions else []
        items = [Message("user", self.input)] if isinstance(self.input, str) else [item.turn for item in self.input]
        return [(items[-1].content, (*before, *items))]


class Mark(Schema):
    """The field `alimark` of a response, which the OpenAI protocol does not have."""

    marked: bool = True
    """Whether the text is marked; calls of tools, JSON and what else the engine answered by itself are not."""
    reason: str | None = None
    """Why the text is not marked."""
    note: str | None = None
    """What was done otherwise than the request asks for, and why."""
    found: list[bool | None] = Field(default=[])
    """For each choice: whether the service's own detector finds its mark, at a false-positive rate of 1%; null where that was
    too much work."""
    p_value: list[float | None] | None = None
    """For each choice: the p-value of that detection, for tokens with the role detect."""
    words: list[int] = Field(default=[])
    """For each choice: how many words it has, those of code among them."""
    words_marked: list[int] = Field(default=[])
    """For each choice: how many of them stand in marked sentences."""
    key_id: str
    record_ids: list[str] = Field(default=[])
    matches: list[list[int]] = Field(default=[])
    """For each choice: how many bits of its block each sentence carries."""
    block_size: int = 0
    payload: int | None = None
    """The number that the mark carries, if the key has payloads."""
    tokens_sampled: list[int] = Field(default=[])
    """For each choice: sampled tokens, including those of all candidates."""
    too_short: list[bool] = Field(default=[])
    """For each choice: whether its mark was not found because it has fewer whole sentences than are needed."""
    sentences_needed: int | None = None
    """Sentences from which on the mark is found nine times in ten, at a false-positive rate of 1% and as well as the model's
    sentences fit the key of late."""
