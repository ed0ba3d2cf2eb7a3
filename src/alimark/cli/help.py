"""The pages of --help: examples as they were written, and options in groups, in two columns that fit 80 columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typer import _click

_GROUPS = {
    "How a text is searched": ("excerpt", "restructure", "variants", "draws", "tail", "null", "precision", "first_pass"),
    "How the model samples": ("temperature", "top_p", "repetition_penalty", "may_end"),
    "Where the work runs": ("engine", "address", "workers", "replicas", "worker_cpus", "device", "block_size", "time_limit",
                            "cache"),
}  # fmt: skip
"""The parameters that stand under a heading of their own, whatever the verb."""
_HEADINGS = {name: heading for heading, names in _GROUPS.items() for name in names}
_KINDS = {"path": "PATH", "Path": "PATH", "str": "TEXT", "int": "N", "float": "X"}
_KIND = re.compile(r"<(?:list\[)?(\w+)\]?(?: range)?>")
_RANGE = re.compile(r"; x>=\d+(?=\])|  \[x>=\d+\]")


def _write_text(text: str, formatter: _click.HelpFormatter) -> None:
    """Writes a docstring: its first sentence, the examples (indented lines, which are not wrapped), then the rest."""
    first, *paragraphs = text.strip().split("\n\n")
    for paragraph in [first, *sorted(paragraphs, key=lambda paragraph: not paragraph.startswith("    "))]:
        if paragraph.startswith("    "):
            formatter.write("".join(f"{line}\n" for line in paragraph.splitlines()))
        else:
            formatter.write_text(" ".join(paragraph.split()))
        formatter.write_paragraph()


class Verb(TyperCommand):
    """A command whose --help has the form of this module."""

    def format_help_text(self, ctx: _click.Context, formatter: _click.HelpFormatter) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            _write_text(self.help or "", formatter)

    def format_options(self, ctx: _click.Context, formatter: _click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", "Options", *_GROUPS)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                heading = _HEADINGS.get(parameter.name or "", f"{parameter.param_type_name.title()}s")
                words = _KIND.sub(lambda kind: _KINDS[kind[1]], record[0])
                groups.setdefault(heading, []).append((words, _RANGE.sub("", record[1])))
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=24)


class VerbGroup(TyperGroup):
    """A command with verbs of its own, whose --help has the form of this module."""

    format_help_text = Verb.format_help_text

    def format_commands(self, ctx: _click.Context, formatter: _click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in self.commands.items()])


def formatted(apps: Sequence[typer.Typer]) -> None:
    """Gives the pages of --help of programs and their commands the form of this module."""
    for app in apps:
        app.rich_markup_mode = None
        app.info.cls = VerbGroup
        for command in app.registered_commands:
            command.cls = Verb
