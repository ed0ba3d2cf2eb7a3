"""The settings of the service, read from a TOML file, with all its limits."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from alimark.core.generation.settings import DEFAULT_CANDIDATES, candidates_for
from alimark.core.keys.key import DEFAULT_EMBEDDER
from alimark.core.llm import DEFAULT_LLM
from alimark.errors import AlimarkError

DATABASE_VARIABLE = "ALIMARK_DATABASE_URL"
"""Environment variable for the database address, which may contain a password that must not be on a command line."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the service; the defaults suit a service that is used from its own machine only.

    Raises:
        AlimarkError: A number is negative or infinite, or a limit is 0.
    """

    data: Path
    """Folder of the key files and, by default, of the database."""
    host: str = "127.0.0.1"
    port: int = 8765
    llm: str = DEFAULT_LLM
    """The language model that writes: a local model or an upstream server, any name that `alimark.load_llm` accepts."""
    rewrite_llm: str = ""
    """The chat model that rewrites texts; if empty, `llm`."""
    embedder: str = DEFAULT_EMBEDDER
    """The embedder of keys that the service creates."""
    database: str = field(default="", repr=False)  # it may contain a password
    """Database address, `postgresql://...`; if empty, an SQLite file in `data`."""
    keep_text: bool = False
    """Whether records contain the text itself in addition to its hash."""
    retention_days: float = 0
    """Records older than this many days are deleted; 0 keeps all records."""
    sentences: int = 12
    """Length of a text, in sentences, if the request does not set one."""
    candidates: int = DEFAULT_CANDIDATES
    """Candidates for each sentence. Clients cannot change it: with a single candidate a text would have no watermark. A file or
    command line may give `strength` instead, the name of a number of candidates."""
    least_temperature: float = 0.5
    least_top_p: float = 0.5
    """Lower values are rejected: all candidates would be alike and the text would have no watermark."""
    unmarkable: str = "refuse"
    """What happens to a request that marked text cannot fulfil, such as one with tools: `refuse` it with the reason, or
    `pass-on` to the engine, whose answer is not marked and says so."""
    max_body: int = 4 * 2**20
    """Largest size of a request body, in bytes."""
    max_text: int = 200_000
    """Largest length of a text or prompt, in characters."""
    max_texts: int = 64
    """Largest number of texts in a request."""
    max_sentences: int = 100
    """Largest number of sentences of a generated text."""
    max_work: float = 120.0
    """Largest CPU time of the detection of a text, in seconds, as it is estimated from the numbers of its sentences and of keys
    and from the false-positive rate."""
    rate: float = 50.0
    """Average number of requests per second for each token; 0 for no limit."""
    burst: int = 200
    """Number of requests that a token may send at once after a pause."""
    concurrency: int = 64
    """Largest number of requests in progress for each token."""
    detect_queue: int = 256
    """Largest number of texts that wait for detection; further requests get status 429."""
    write_queue: int = 32
    """Largest number of texts being written or waiting for it; further requests get status 429."""
    timeout: float = 300.0
    """Seconds after which a request is stopped."""
    body_timeout: float = 30.0
    """Seconds within which a request body must arrive."""
    header_timeout: float = 15.0
    """Seconds within which the headers of a request must arrive."""
    drain: float = 0.0
    """Seconds for which a stopping server still accepts requests while /readyz says that it is draining, so that a proxy can
    send new ones elsewhere."""
    shutdown: float = 120.0
    """Seconds that a stopping server waits for the requests in progress."""
    payloads: dict[str, int] = field(default_factory=dict)
    """The number that marks carry, by token id, tenant or model: the first of these that is listed counts. Requests of others
    may name one."""
    cors_origins: tuple[str, ...] = ()
    """Origins of other web pages that may call the service from a browser."""
    open_metrics: bool = False
    """Whether /metrics can be read without a token."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
                raise AlimarkError(f"the setting {setting.name} must be a finite number and not negative")
        if self.unmarkable not in ("refuse", "pass-on"):
            raise AlimarkError("the setting unmarkable must be refuse or pass-on")
        for name in ("sentences", "candidates", "least_temperature", "least_top_p", "max_body", "max_text", "max_texts",
                     "max_sentences", "max_work", "burst", "concurrency", "detect_queue", "write_queue", "timeout",
                     "body_timeout", "header_timeout"):  # fmt: skip
            if not getattr(self, name):
                raise AlimarkError(f"the setting {name} must be greater than 0")

    @property
    def keys(self) -> Path:
        """The folder of the key files."""
        return self.data / "keys"

    @property
    def database_url(self) -> str:
        """The address of the database, which may contain a password."""
        return self.database or os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{self.data / 'alimark.db'}"


def read_settings(path: Path | None, given: Mapping[str, object], *, default_data: Path) -> Settings:
    """Reads the settings from a TOML file; `given` values (from the command line) replace those of the file.

    Both may hold `strength` (`light`, `standard` or `strong`) in place of `candidates`.

    Raises:
        AlimarkError: The file is not valid TOML, or a setting is unknown or has a wrong type or value.
    """
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AlimarkError(f"{path} is not valid TOML: {error}") from None
    content = {"data": default_data} | _without_strength(content) | _without_strength(given)
    known = {setting.name: setting for setting in fields(Settings)}
    if unknown := sorted(set(content) - set(known)):
        raise AlimarkError(f"unknown setting {', '.join(unknown)}; the settings are {', '.join([*known, 'strength'])}")
    for name, value in content.items():
        content[name] = _typed(name, value, known[name].type)
    return Settings(**content)


def _without_strength(content: Mapping[str, object]) -> dict[str, Any]:
    """The settings with the number of candidates that `strength` stands for, where it is among them."""
    settings: dict[str, Any] = dict(content)
    if "strength" in settings:
        settings["candidates"] = candidates_for(str(settings.pop("strength")), settings.get("candidates"))
    return settings


def _typed(name: str, value: Any, kind: Any) -> Any:
    if kind == "Path" and isinstance(value, str | Path):
        return Path(value)
    if kind == "tuple[str, ...]" and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind == "dict[str, int]" and isinstance(value, dict) and all(type(item) is int for item in value.values()):
        return {str(label): item for label, item in value.items()}
    if kind == "float" and type(value) in (int, float):
        return float(value)
    if type(value).__name__ == kind:
        return value
    raise AlimarkError(f"the setting {name} must be of type {kind}, not {type(value).__name__}")
