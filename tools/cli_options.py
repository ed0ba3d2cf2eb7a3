"""Prints every verb of the command line with its options: one line an option, to compare two releases with diff.

python tools/cli_options.py
PYTHONPATH=/another/checkout/src python tools/cli_options.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from alimark.cli.main import app


def options(command: Any, path: str) -> Iterator[str]:
    """The options of a verb and of the verbs below it."""
    for parameter in command.params:
        yield f"{path} {'/'.join(parameter.opts + parameter.secondary_opts) or parameter.name}"
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from options(below, f"{path} {name}")


def main() -> None:
    """Prints the options, and how many they are."""
    lines = list(options(typer.main.get_command(app), "alimark"))
    print("\n".join([*lines, f"{len(lines)} options and arguments"]))


if __name__ == "__main__":
    main()
