"""The command line: a module for each verb; results on stdout, messages on stderr, errors in one line."""

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from alimark.cli import (
    attack,
    audit,
    bench,
    calibrate,
    demo,
    detect,
    fit,
    generate,
    help,
    keygen,
    models,
    plugins,
    rewrite,
    serve,
    verify,
)
from alimark.core._util import process
from alimark.core._util.files import regular
from alimark.errors import AlimarkError

_INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended

app = typer.Typer(
    name="alimark",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="""Mark what an LLM writes in its meaning, and find the mark again after paraphrasing.

    Start with `alimark demo`. Then: `alimark keygen -o key.json` makes a secret
    key, `alimark generate -k key.json -p "A prompt."` writes marked text,
    `alimark detect -k key.json text.txt` tells whether a text carries the mark,
    and `alimark audit -k key.json docs.jsonl -o found.jsonl` does so for many.
    """,
)
for verb in (keygen.keygen, generate.generate, rewrite.rewrite, detect.detect, audit.audit, verify.verify):
    app.command()(verb)
# Each attack is a command of `attack`; these commands are built only when `attack` runs.
app.command(
    "attack", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(attack.attack)
for study in (fit.fit, bench.compare, calibrate.calibrate, demo.demo):
    app.command()(study)
_groups = {"models": models.app, "plugins": plugins.app, "bench": bench.app, "serve": serve.app}
for name, group in _groups.items():
    app.add_typer(group, name=name)
help.formatted([app, *_groups.values()])


def _version(wanted: bool) -> None:
    if wanted:
        import alimark

        typer.echo(f"alimark {alimark.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all verbs. `main` removes --debug before, so that it may stand anywhere; here it is only documented."""


def main() -> None:
    """Runs the command line. Exit status 2 is an error, 130 an interruption; `detect` exits with 1 for "not found"."""
    process.is_command_line = True
    debug = "--debug" in sys.argv
    sys.argv = [sys.argv[0], *(word for word in sys.argv[1:] if word != "--debug")]
    try:
        for word in sys.argv[1:]:
            regular(word.rpartition("=")[2])
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warn  # type: ignore[assignment]
            status = app(standalone_mode=False)
        if status == _INTERRUPTED:  # newer versions of typer return it where older ones raise
            raise KeyboardInterrupt
        sys.exit(status)
    except (KeyboardInterrupt, typer.Abort) as stopped:
        if isinstance(stopped.__cause__, EOFError):
            _fail("a file ends too early; is it complete?", 2, debug)
        _fail("interrupted; what was finished is kept", _INTERRUPTED, debug)
    except AlimarkError as error:
        _fail(str(error), 2, debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2, debug)
    except Exception as error:
        if show := getattr(error, "show", None):  # a wrong option; typer explains it
            show()
            sys.exit(2)
        # Not 1, which means "not found".
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug for the traceback", 2, debug)


def _warn(message: Warning | str, *_: object) -> None:
    sys.stderr.write(f"warning: {message}\n")


def _fail(message: str, status: int, debug: bool) -> NoReturn:
    """Ends the process with a message of one line; the traceback is for developers and needs --debug."""
    if debug:
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"error: {message}\n" if status == 2 else f"{message}\n")
    if status == _INTERRUPTED:
        # Another thread may be generating. What was finished is written, so the process ends without waiting for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
