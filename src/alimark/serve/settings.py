"""The settings of the service, read from a TOML file, with all its limits."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from alimark.core.generation.settings import DEFAULT_CANDIDATES, candidates_and_steering
from alimark.core.keys.key import DEFAULT_EMBEDDER
from alimark.core.llm import DEFAULT_LLM
from alimark.errors import AlimarkError

DATABASE_VARIABLE = "ALIMARK_DATABASE_URL"
"""Environment variable for the database address, which may contain a password that must not be on a command line."""


class Settings(BaseModel):
    """The settings of the service; the defaults suit a service that is used from its own machine only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    data: Path = Field(strict=False)
    """Folder of the key files and, by default, of the database."""
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    llm: str = DEFAULT_LLM
    """The language model that writes: a local model or an upstream server, any name that `alimark.load_llm` accepts."""
    rewrite_llm: str = ""
    """The chat model that rewrites texts; if empty, `llm`."""
    embedder: str = DEFAULT_EMBEDDER
    """The embedder of keys that the service creates."""
    database: str = Field(default="", repr=False)  # it may contain a password
    """Database address, `postgresql://...`; if empty, an SQLite file in `data`."""
    keep_text: bool = False
    """Whether records contain the text itself in addition to its hash."""
    retention_days: NonNegativeFloat = 0
    """Records older than this many days are deleted; 0 keeps all records."""
    sentences: PositiveInt = 12
    """Length of a text, in sentences, if the request does not set one."""
    strength: Literal["light", "standard", "strong"] | None = None
    """How strong marks are, in place of `candidates` and `steering`; `standard` where none of them is given. Clients cannot
    change it: with a single candidate a text would have no watermark."""
    candidates: PositiveInt | None = None
    """Candidates for each sentence."""
    steering: NonNegativeFloat | None = None
    """How strongly the model is steered towards keys; 0 for not at all."""
    repetition_penalty: PositiveFloat | None = None
    """The repetition penalty where a request names none; by default 1 (none) for answers and 1.15 for completions, which base
    models write."""
    least_temperature: PositiveFloat = 0.5
    least_top_p: PositiveFloat = 0.5
    """With lower values all candidates would be alike, so such a request is answered at `marking_temperature`."""
    marking_temperature: PositiveFloat = 0.7
    """The temperature of requests below `least_temperature` or `least_top_p`; their seed follows from key and request."""
    unmarkable: Literal["refuse", "structured", "pass-on"] = "structured"
    """What is passed on to the engine, whose answer is not marked and says so: nothing (`refuse`), calls of tools and JSON
    (`structured`), or every request that marked text cannot fulfil (`pass-on`). The rest is refused with the reason."""
    max_body: PositiveInt = 4 * 2**20
    """Largest size of a request body, in bytes."""
    max_text: PositiveInt = 200_000
    """Largest length of a text or prompt, in characters."""
    max_texts: PositiveInt = 64
    """Largest number of texts in a request."""
    max_sentences: PositiveInt = 100
    """Largest number of sentences of a generated text."""
    max_work: PositiveFloat = 120.0
    """Largest CPU time of the detection of a text, in seconds, as it is estimated from the numbers of its sentences and of keys
    and from the false-positive rate."""
    rate: NonNegativeFloat = 50.0
    """Average number of requests per second for each token; 0 for no limit."""
    burst: PositiveInt = 200
    """Number of requests that a token may send at once after a pause."""
    concurrency: PositiveInt = 64
    """Largest number of requests in progress for each token."""
    detect_queue: PositiveInt = 256
    """Largest number of texts that wait for detection; further requests get status 429."""
    write_queue: PositiveInt = 32
    """Largest number of texts being written or waiting for it; further requests get status 429."""
    timeout: PositiveFloat = 300.0
    """Seconds after which a request is stopped."""
    body_timeout: PositiveFloat = 30.0
    """Seconds within which a request body must arrive."""
    drain: NonNegativeFloat = 0.0
    """Seconds for which a stopping server still accepts requests while /readyz says that it is draining, so that a proxy can
    send new ones elsewhere."""
    shutdown: NonNegativeFloat = 120.0
    """Seconds that a stopping server waits for the requests in progress."""
    payloads: dict[str, int] = {}
    """The number that marks carry, by token id, tenant or model: the first of these that is listed counts. Requests of others
    may name one."""
    verdict_text: PositiveInt = 20_000
    """Largest length of a text for the role verdict, in characters."""
    verdict_budget: PositiveInt = 500
    """Texts that a token with the role verdict, or a client without a token, may have checked in a day."""
    public_detector: bool = False
    """Whether /v1/verdict, and the page /detector, can be used without a token."""
    public_rate: PositiveFloat = 5.0
    """Average number of requests per second of all clients without a token together; a single one may send a tenth of it."""
    public_budget: PositiveInt = 20_000
    """Texts that all clients without a token together may have checked in a day."""
    operator: str = ""
    """Who runs the service; with it, /.well-known/alimark tells others how to ask the detector."""
    marks: str = ""
    """What the marked texts are, in words, such as "answers of the Acme assistant", for /.well-known/alimark."""
    contact: str = ""
    """An address of mail or of a page for questions, for /.well-known/alimark."""
    terms: str = ""
    """The address of the terms of use, for /.well-known/alimark."""
    languages: list[str] = ["en"]
    """The languages of marked text, for /.well-known/alimark."""
    cors_origins: list[str] = []
    """Origins of other web pages that may call the service from a browser."""
    open_metrics: bool = False
    """Whether /metrics can be read without a token."""

    @property
    def keys(self) -> Path:
        """The folder of the key files."""
        return self.data / "keys"

    @property
    def database_url(self) -> str:
        """The address of the database, which may contain a password."""
        return self.database or os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{self.data / 'alimark.db'}"


def read_settings(path: Path | None, given: Mapping[str, object], *, default_data: Path) -> Settings:
    """Reads the settings from a TOML file; `given` values (from the command line) replace those of the file."""
    try:
        content = {} if path is None else tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AlimarkError(f"{path} is not valid TOML: {error}") from None
    if "strength" in given:
        content = {name: value for name, value in content.items() if name not in ("candidates", "steering")}
    try:
        settings = Settings(**{"data": default_data} | content | dict(given))
        candidates_and_steering(
            settings.strength, settings.candidates, settings.steering, DEFAULT_CANDIDATES, steerable=True
        )
        return settings
    except ValidationError as error:
        raise AlimarkError("; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors())) from None


def _problem(place: tuple[int | str, ...], about: str) -> str:
    if place[0] not in Settings.model_fields:
        return f"unknown setting {place[0]}; the settings are {', '.join(Settings.model_fields)}"
    return f"the setting {'.'.join(map(str, place))} is not valid: {about[0].lower()}{about[1:]}"
