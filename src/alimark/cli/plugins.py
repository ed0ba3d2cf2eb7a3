"""alimark plugins: lists what installed packages add to alimark."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import show

if TYPE_CHECKING:
    from alimark.core._util.registry import Plugin

app = typer.Typer(
    no_args_is_help=True,
    help="""List what installed packages add: schemes, attacks, embedders, engines, splitters.

    A package adds them by entry points; docs/plugins.md says how.
    """,
)


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="List what is built in, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show every plugin: kind, name, package, object, and what is wrong with it.

    Each plugin is imported to see whether it can be used. Exit status 2 means
    that at least one cannot; the text says why, and which package it is of.
    """
    from alimark.core.embedding.loading import EMBEDDERS
    from alimark.core.frozen.text.splitting import SPLITTERS
    from alimark.core.llm import ENGINES
    from alimark.core.schemes.registry import SCHEMES
    from alimark.lab.attacks import ATTACKS

    registries = (SCHEMES, ATTACKS, EMBEDDERS, ENGINES, SPLITTERS)
    plugins = [plugin for registry in registries for plugin in registry.plugins(built_in=everything)]
    if as_json:
        show.print_json([asdict(plugin) for plugin in plugins])
    elif plugins:
        _print_table(plugins)
    else:
        show.note("no installed package adds anything; --all lists what is built in")
    problems = [plugin.problem for plugin in plugins if plugin.problem]
    for problem in problems:
        show.note(f"error: {problem}")
    raise typer.Exit(2 if problems else 0)


def _print_table(plugins: list[Plugin]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("kind", "name", "package", "object", "state"):
        table.add_column(title, overflow="fold")
    for plugin in plugins:
        package = f"{plugin.package} {plugin.version}".strip()
        table.add_row(plugin.kind, plugin.name, package, plugin.target, "cannot be used" if plugin.problem else "ready")
    show.stdout().print(table)
