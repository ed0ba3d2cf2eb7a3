"""What an operator decides, read from a TOML file; every limit of the service stands here."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from alimark.errors import AlimarkError
from alimark.keys.key import DEFAULT_EMBEDDER
from alimark.llm import DEFAULT_LLM

DATABASE_VARIABLE = "ALIMARK_DATABASE_URL"
"""Where the database's address may stand, since it can hold a password that belongs on no command line."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The defaults suit one machine that serves itself."""

    data: Path
    """The folder of key files and, by default, of the database."""
    host: str = "127.0.0.1"
    port: int = 8765
    llm: str = DEFAULT_LLM
    """What writes: anything that `alimark.load_llm` takes, a local model or an upstream server."""
    rewrite_llm: str = ""
    """The chat model that rewrites; empty, the one that writes."""
    embedder: str = DEFAULT_EMBEDDER
    """Of the keys that are made here."""
    database: str = ""
    """`postgresql://...`; empty, a SQLite file in `data`."""
    keep_text: bool = False
    """Whether records hold the text itself, and not its hash alone."""
    retention_days: float = 0
    """Records older than that are deleted; 0 keeps them all."""
    sentences: int = 12
    """Of a text whose request does not say how long it shall be."""
    candidates: int = 64
    """For each sentence. The operator's to choose: a client that could ask for one would have opted out of the mark."""
    least_temperature: float = 0.5
    least_top_p: float = 0.5
    """Below these all candidates are alike and there is nothing to choose from, which would be opting out, too."""
    max_body: int = 4 * 2**20
    """Bytes of a request."""
    max_text: int = 200_000
    """Characters of one text or prompt."""
    max_texts: int = 64
    """Texts of one request."""
    max_sentences: int = 100
    """Sentences of one text that is written."""
    rate: float = 50.0
    """Requests a second for each token, on average; 0 for no limit."""
    burst: int = 200
    """Requests that a token may send at once after a while of silence."""
    concurrency: int = 64
    """Requests of a token in progress at a time."""
    detect_queue: int = 256
    """Texts that wait for their detection; beyond that, 429."""
    write_queue: int = 32
    """Texts in progress or waiting to be written; beyond that, 429."""
    timeout: float = 300.0
    """Seconds that a request may take."""
    body_timeout: float = 30.0
    """Seconds that its body may take to arrive."""
    shutdown: float = 120.0
    """Seconds that a server told to stop gives the requests it has accepted."""
    cors_origins: tuple[str, ...] = ()
    open_metrics: bool = False
    """Whether /metrics is answered without a token."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
                raise AlimarkError(f"{one.name} must not be negative, nor endless")
        for name in ("sentences", "candidates", "max_body", "max_text", "max_texts", "max_sentences", "burst",
                     "concurrency", "detect_queue", "write_queue", "timeout", "body_timeout"):  # fmt: skip
            if not getattr(self, name):
                raise AlimarkError(f"{name} must be more than 0")

    @property
    def keys(self) -> Path:
        return self.data / "keys"

    @property
    def database_url(self) -> str:
        return self.database or os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{self.data / 'alimark.db'}"


def read_settings(path: Path | None, given: Mapping[str, Any], *, default_data: Path) -> Settings:
    """From a file, with what was given on the command line on top."""
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AlimarkError(f"{path} is not TOML ({error})") from None
    content = {"data": default_data} | content | dict(given)
    known = {one.name: one for one in fields(Settings)}
    if unknown := sorted(set(content) - set(known)):
        raise AlimarkError(f"unknown setting {', '.join(unknown)}; known: {', '.join(known)}")
    for name, value in content.items():
        content[name] = _typed(name, value, known[name].type)
    return Settings(**content)


def _typed(name: str, value: Any, kind: Any) -> Any:
    if kind == "Path" and isinstance(value, str | Path):
        return Path(value)
    if kind == "tuple[str, ...]" and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind == "float" and type(value) in (int, float):
        return float(value)
    if type(value).__name__ == kind:
        return value
    raise AlimarkError(f"{name} must be of type {kind}, not {type(value).__name__}")
