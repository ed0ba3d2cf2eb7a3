"""The schemas of requests and responses, from which FastAPI makes the OpenAPI description.

Those of the OpenAI protocol are in `openai_schemas`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.fields import fields_for
from alimark.core.frozen.parameters import DEFAULT_DECISION, MAX_OFFSETS, MAX_PAYLOAD_BITS
from alimark.serve.auth import LABEL, Role, Token
from alimark.serve.ring import Label

Name = Annotated[str, Field(max_length=100, pattern=f"^(?:{LABEL.pattern})$")]
Seed = Annotated[int, Field(ge=0, lt=2**48)]
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970-01-01 (UTC).")]
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
FPRS = (0.05, 0.01, 0.001)
"""The false-positive rates that a client may ask for. For others the number of sentences needed would have to be simulated."""


Fpr: Any = Annotated[
    Literal[FPRS], Field(description="False-positive rate: share of unmarked texts reported as found.")
]
Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list of texts; the first wrong item ends its validation, so that a request cannot cause millions of errors."""


def example(**fields: JsonValue) -> ConfigDict:
    """The settings of a model whose description shows an example with these fields."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Schema(BaseModel):
    """A model whose fields are described by their docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Strict(Schema):
    """A request in which unknown fields are errors, so that nothing a client asks for is silently ignored."""

    model_config = ConfigDict(extra="forbid")


class Error(Schema):
    """An error: a message for people, a code for programs, and the field that is wrong."""

    message: str
    type: str
    code: str
    param: str | None = None


class Failure(Schema):
    """The body of every error response."""

    error: Error


# Detection


class Detect(Strict):
    """A request to detect the watermark in one or more texts."""

    input: str | Texts = Field(min_length=1)
    """One text or a list of texts."""
    keys: Annotated[list[Annotated[str, Field(max_length=64)]], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=1000
    )
    """Key ids; if left out, all active keys are tried."""
    fpr: Fpr = 0.01
    search: Literal["auto", "whole", "excerpt"] = "auto"
    """whole: the whole text is tested; excerpt: marked passages in a longer text are searched; auto: texts of more than 60
    sentences that show no mark as a whole are searched for passages, and the p-value pays for both."""
    evidence: bool = False
    """Adds everything that is needed to check the result, including the alignment, and the probability of each sentence to
    carry the mark."""
    model_config = example(input="The old sailor sold the piano. A visitor lost an old map on Friday.")


def _type(kind: Any) -> Any:
    """The type of a field of a result in the service's schema."""
    if isinstance(kind, list):
        return list[JsonObject]
    return JsonObject if isinstance(kind, dict) else kind


_RESULT: dict[str, Any] = {
    field.name: (_type(field.kind) | None, Field(None, description=field.about)) for field in fields_for("service")
}
_Result: Any = create_model("_Result", **_RESULT)


class Found(_Result):  # type: ignore[misc]  # its fields are those of every result, see alimark.core.detection.fields
    """The result of a text, or the error that prevented it. Fields that are empty are left out."""

    record_id: str | None = None
    sentence_chances: list[float] | None = None
    """The probability of each sentence to carry the mark; with `evidence`."""
    evidence: JsonObject | None = None
    error: Error | None = None


class Detections(Schema):
    """The results for all texts of a request, in the same order."""

    fpr: float
    results: list[Found]


class AskVerdict(Strict):
    """A request to say whether a text carries the mark of this service."""

    input: str = Field(min_length=1)
    """The text."""
    model_config = example(input="The old sailor sold the piano. A visitor lost an old map on Friday.")


class VerdictAnswer(Schema):
    """The verdict on a text, and nothing that would help to imitate or to remove the mark."""

    statement: str
    """The verdict in a sentence."""
    verdict: Literal["found", "not found", "too short to tell"]
    false_positive_rate: float
    """The share of unmarked texts that are reported as found."""
    text_sha256: str


class Rewrite(Strict):
    """A request to mark an existing text by rewriting its sentences."""

    input: str = Field(min_length=1)
    seed: Seed | None = None
    payload: int | None = Field(None, ge=0, lt=2**24)
    """The number that the mark carries, if the service's key has payloads."""
    candidates: int = Field(16, ge=4, le=64)
    closeness: float = Field(0.62, ge=0, le=1, allow_inf_nan=False)
    """Lowest cosine between the embeddings of a sentence and its rewrite."""
    mean_closeness: float = Field(0.81, ge=0, le=1, allow_inf_nan=False)
    """Lowest mean of these cosines over the text."""
    model_config = example(input="The mayor opened the bridge before dinner.")


class Rewritten(Schema):
    """A rewritten text; the lists have one item per sentence."""

    text: str
    key_id: str
    record_id: str
    matches: list[int]
    cosines: list[float]
    outcomes: list[str]
    block_size: int
    payload: int | None = None
    """The number that the mark carries, if the key has payloads."""
    verdict: Literal["found", "not found", "too short to tell"] | None = None
    """Whether the mark is found at a false-positive rate of 0.01; null if the detector was too busy."""
    p_value: float | None = None
    p_value_before: float | None = None
    """The p-value of the text before it was rewritten."""
    moved_most: list[JsonObject]
    """The sentences whose meaning moved most, before and after."""


ATTACKS = {
    "delete": "delete sentences",
    "merge": "merge sentences",
    "split": "split sentences",
    "reorder": "reorder sentences",
    "synonyms": "replace words by synonyms",
    "translate": "translate and translate back",
}
"""The attacks of the service, with what each does."""


class AttackLabel(Schema):
    """An attack that can be made."""

    name: str
    about: str
    takes_rate: bool
    """Whether the share to change can be chosen."""


class AttackRequest(Strict):
    """A request to attack a text."""

    name: Literal[*ATTACKS]  # type: ignore[valid-type]
    input: str = Field(min_length=1)
    rate: Rate = 0.3
    """Share of sentences or words to change; ignored by translate."""
    seed: Seed = 0
    model_config = example(name="delete", input="One came. Two went. Three stayed.", rate=0.3)


class AttackedText(Schema):
    """An attacked text."""

    name: str
    text: str


# Administration


class NewKey(Strict):
    """A request to create a key."""

    tenant: Name = ""
    model: Name = ""
    decision: Literal["hard", "soft"] = DEFAULT_DECISION
    offsets: int | None = Field(None, ge=1, le=MAX_OFFSETS)
    """Number of secret positions in the key at which a conversation may start. With 1, every text starts alike."""
    payload_bits: int = Field(0, ge=0, le=MAX_PAYLOAD_BITS)
    """Bits of the number that texts carry: 8, 16 or 24; 0 for none."""
    starts: Time | None = None
    ends: Time | None = None
    model_config = example(tenant="", decision="soft")

    @model_validator(mode="after")
    def _check_payloads(self) -> NewKey:
        if self.payload_bits and self.decision == "hard":
            raise ValueError("hard keys have no payloads; leave out payload_bits, or make a soft key")
        return self


class EndOfKey(Strict):
    """A request to rotate or retire a key."""

    ends: Time | None = None
    """Time from which detection no longer uses the key."""


@dataclass(frozen=True, kw_only=True)
class ListedKey(Label):
    """What the service knows about a key, without its secret."""

    alive: bool
    """Whether detection uses the key now."""
    marks: bool
    """Whether new text is marked with the key now; one key of a tenant is."""


class NewToken(Strict):
    """A request to create a token."""

    roles: list[Role] = Field(min_length=1, max_length=4)
    tenant: Name = ""
    name: Name = ""
    model_config = example(roles=["detect"], name="newsroom")


@dataclass(frozen=True, kw_only=True)
class NewSecret(Token):
    """A new token with its secret."""

    token: str
    """The secret, which is shown only in this response."""
