"""How the verbs show things: progress on stderr, tables on stdout, JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from alimark.detection.results import AlignedDetection, AlignedStep, Detection
    from alimark.embedding.base import Embedder
    from alimark.keys.key import Key
    from alimark.llm.base import LLM
    from alimark.scale.generation import Replicas
    from alimark.schemes.base import Watermark


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def note(message: str) -> None:
    sys.stderr.write(message + "\n")


def read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"standard input is not UTF-8 (byte {error.start}); convert it, e.g. with iconv") from None


def stdout() -> Console:
    from rich.console import Console

    # A pipe has no width of its own; a table squeezed into 80 columns is of no use to the next program.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


@contextmanager
def progress(*columns: Any, quiet: bool = False) -> Iterator[Progress]:
    """A bar on stderr with rate and time left, only where a person looks."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *columns, TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, disable=quiet or not console.is_terminal,
    ) as bar:  # fmt: skip
        yield bar


class Ticker:
    """A line now and then on stderr, where it is no terminal that could show a bar."""

    def __init__(self, seconds: float = 15.0) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def tick(self, message: str) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() and now - self._last >= self._seconds:
            self._last = now
            note(message)


def fetch_models(*names: str) -> None:
    """Fetches what is missing of the store, with progress."""
    from alimark.models import store

    missing = [name for name in names if name in store.names() and not store.is_fetched(name)]
    if missing:
        from alimark.cli.models import bars, fetch_one

        with bars() as shown:
            for name in missing:
                fetch_one(name, shown)


def load_llm(name: str) -> LLM:
    from alimark.llm import load_llm

    fetch_models(name.split(":", 1)[-1])
    return load_llm(name)


def load_embedder(name: str) -> Embedder:
    from alimark.embedding.loading import load_embedder

    fetch_models(name)
    return load_embedder(name)


def load_mark(key: Key, *, embedder: bool = True) -> Watermark:
    """The watermark of a key, with its embedder loaded, unless others embed."""
    from alimark.schemes.api import load

    return load(key, embedder=load_embedder(key.embedder) if key.embedder and embedder else None)


@contextmanager
def only_ours(ray: bool = True) -> Iterator[None]:
    """Ray tells of dead workers on standard output, where the next program expects the answer; we tell of them ourselves."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere) if ray else nullcontext():
        yield


@contextmanager
def replicas(
    engine: str, address: str | None, count: int | None, llms: Sequence[str] = (), device: str | None = None
) -> Iterator[Replicas | None]:
    """Replicas of a model for `--engine ray`; None for plain, where this process writes."""
    if engine not in ("plain", "ray"):
        raise AlimarkError(f"--engine is plain or ray, not {engine!r}")
    if engine == "plain":
        if address or count:
            raise AlimarkError("--address and --replicas go with --engine ray")
        yield None
        return
    from alimark.scale.generation import Replicas
    from alimark.scale.pool import Cluster

    own = {"device": device} if device else {}
    with Replicas(Cluster(address, count), llms if len(llms) > 1 else None, own) as opened:
        yield opened


def p_text(found: Detection) -> str:
    floor = found.keys_tried / (found.draws + 1) if found.draws else 0.0
    text = f"{found.p_value:.3g}" if found.p_value > floor or found.stopped_early else f"<= {found.p_value:.2g}"
    return text if found.p_tail is None else f"{text} (tail estimate {found.p_tail:.1g})"


def alignment_table(found: AlignedDetection) -> Table:
    """Which sentence met which block, and how many bits agreed."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    widths = {"block": 5, "sentence": 8, "move": 14, "bits agreed": found.block_size + 6}
    for name, width in widths.items():
        table.add_column(name, justify="right" if width < 10 else "left", no_wrap=True, min_width=width)
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=90)
    for step in found.alignment:
        style = _style(step, found.block_size)
        bits = "" if step.agreed is None else "■" * step.agreed + "·" * (found.block_size - step.agreed)
        agreed = "" if step.agreed is None else f"{bits} {step.agreed}/{found.block_size}"
        move = step.kind + (f" ({step.part})" if step.part else "")
        block = "" if step.block is None else str(step.block)
        sentences = "+".join(str(i) for i in step.sentences)
        table.add_row(
            block,
            sentences,
            move,
            Text(agreed, style=style),
            Text(step.text),
            style=style if not bits else "",
        )
    return table


def _style(step: AlignedStep, m: int) -> str:
    if step.agreed is None:
        return "dim"
    share = step.agreed / m
    return "green" if share >= 0.75 else "yellow" if share > 0.5 else "red"
