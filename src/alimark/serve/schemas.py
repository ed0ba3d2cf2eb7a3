"""What requests and answers look like; FastAPI makes the OpenAPI description of these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from alimark.keys.key import MAX_OFFSETS
from alimark.serve.auth import LABEL

Label = Annotated[str, Field(max_length=100, pattern=f"^(?:{LABEL.pattern})$")]
Seed = Annotated[int, Field(ge=0, lt=2**48)]
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Fpr = Annotated[
    float, Field(ge=0.001, le=0.5, allow_inf_nan=False, description="Share of unmarked texts that may be called found.")
]


class Strict(BaseModel):
    """A field that is not known is an error: what a client asks for is done or refused, never passed over."""

    model_config = ConfigDict(extra="forbid")


class Error(BaseModel):
    message: str
    type: str
    code: str
    param: str | None = None


class Failure(BaseModel):
    error: Error


# Writing, as the OpenAI protocol has it


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="A last event with the usage and no choice.")
    include_obfuscation: bool | None = Field(None, description="Taken and passed over.")


class ToWrite(Strict):
    model: str = Field("", max_length=200, description="A name from /v1/models, or nothing for the only one.")
    max_tokens: int | None = Field(None, ge=1, le=100_000, description="Counted as 25 a sentence, begun ones included.")
    sentences: int | None = Field(None, ge=1, le=10_000, description="The length in sentences; goes before max_tokens.")
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    n: int = Field(1, ge=1, le=16)
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    user: str | None = Field(None, max_length=512, description="Taken and passed over.")


class Completion(ToWrite):
    prompt: str | list[str] = Field(min_length=1)
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "The lighthouse keeper opened the door.", "sentences": 3}]}
    )


class Part(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = Field(None, max_length=200)

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatCompletion(ToWrite):
    messages: list[Message] = Field(min_length=1, max_length=200)
    max_completion_tokens: int | None = Field(None, ge=1, le=100_000)
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "sentences": 3}]
        }
    )

    @model_validator(mode="after")
    def _asks_something(self) -> ChatCompletion:
        if self.messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        return self


class Mark(BaseModel):
    """What alimark adds to an answer of the OpenAI protocol."""

    key_id: str
    record_ids: list[str] = []
    matches: list[list[int]] = Field([], description="Of each choice: bits of each sentence's block that it carries.")
    block_size: int = 0
    tokens_sampled: list[int] = Field([], description="Of each choice: tokens sampled for it, all candidates counted.")


# Checking


class Detect(Strict):
    input: str | list[str] = Field(min_length=1, description="One text, or several.")
    keys: list[Annotated[str, Field(max_length=64)]] | None = Field(
        None, min_length=1, max_length=1000, description="Key ids; without them all living keys are tried."
    )
    fpr: Fpr = 0.01
    search: Literal["whole", "excerpt"] = Field("whole", description="excerpt: a marked passage inside a longer text.")
    evidence: bool = Field(False, description="Everything that is needed to check the answer, the alignment included.")
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"input": "The old sailor sold the piano. A visitor lost an old map on Friday."}]
        }
    )


class Found(BaseModel):
    """The answer for one text, or the error that kept it from being answered."""

    verdict: Literal["found", "not found", "too short to tell"] | None = None
    p_value: float | None = Field(None, description="Corrected for the number of keys tried.")
    score: float | None = None
    z: float | None = None
    statistic: float | None = None
    key_id: str | None = None
    keys_tried: int | None = None
    sentences: int | None = None
    sentences_needed: int | None = None
    text_sha256: str | None = None
    passages: list[dict[str, Any]] = []
    warnings: list[str] = []
    record_id: str | None = None
    evidence: dict[str, Any] | None = None
    error: Error | None = None


class Detections(BaseModel):
    fpr: float
    results: list[Found]


class Rewrite(Strict):
    input: str = Field(min_length=1)
    seed: Seed | None = None
    candidates: int = Field(16, ge=4, le=64)
    closeness: float = Field(0.62, ge=0, le=1, allow_inf_nan=False)
    mean_closeness: float = Field(0.81, ge=0, le=1, allow_inf_nan=False)
    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "The mayor opened the bridge before dinner."}]})


class Rewritten(BaseModel):
    text: str
    key_id: str
    record_id: str
    matches: list[int]
    cosines: list[float]
    outcomes: list[str]
    block_size: int


class Attack(Strict):
    name: Literal["delete", "merge", "split", "reorder", "synonyms", "translate"]
    input: str = Field(min_length=1)
    rate: Rate = Field(0.3, description="Share of sentences or words; a back-translation has none.")
    seed: Seed = 0
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "delete", "input": "One came. Two went. Three stayed.", "rate": 0.3}]}
    )


class Attacked(BaseModel):
    name: str
    text: str


class Extracted(BaseModel):
    text: str


# Administration


class NewKey(Strict):
    tenant: Label = ""
    model: Label = ""
    decision: Literal["hard", "soft"] = "hard"
    offsets: int = Field(1, ge=1, le=MAX_OFFSETS, description="Blocks that a text may begin with, in secret.")
    starts: Time | None = None
    ends: Time | None = None
    model_config = ConfigDict(json_schema_extra={"examples": [{"tenant": "", "decision": "hard"}]})


class EndOfKey(Strict):
    ends: Time | None = Field(None, description="When the key is looked for no more.")


class KeyLabel(BaseModel):
    id: str
    tenant: str
    model: str
    starts: float
    ends: float | None
    successor: str | None
    created: float
    alive: bool
    marks: bool


class NewToken(Strict):
    roles: list[Literal["generate", "detect", "admin"]] = Field(min_length=1, max_length=3)
    tenant: Label = ""
    name: Label = ""
    model_config = ConfigDict(json_schema_extra={"examples": [{"roles": ["detect"], "name": "newsroom"}]})


class TokenLabel(BaseModel):
    id: str
    roles: list[str]
    tenant: str
    name: str
    created: float


class TokenMade(TokenLabel):
    token: str = Field(description="Shown this once.")
