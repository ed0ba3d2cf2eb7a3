"""The command line: one module a verb; results to stdout, messages to stderr, one-line errors."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer

from alimark.cli import attack, bench, calibrate, demo, detect, fit, generate, keygen, models, rewrite, serve
from alimark.errors import AlimarkError

app = typer.Typer(
    name="alimark",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="""Mark what an LLM writes in its meaning, and find the mark again after paraphrasing.

    Start with `alimark demo`. Then: `alimark keygen -o key.json` makes a secret
    key, `alimark generate -k key.json -p "A prompt."` writes marked text, and
    `alimark detect -k key.json text.txt` tells whether a text carries the mark.
    """,
)
app.command("keygen")(keygen.keygen)
app.command("generate")(generate.generate)
app.command("rewrite")(rewrite.rewrite)
app.command("detect")(detect.detect)
# The attacks have commands of their own, which are built when one is asked for.
app.command(
    "attack",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(attack.attack)
app.command("fit")(fit.fit)
app.command("calibrate")(calibrate.calibrate)
app.command("demo")(demo.demo)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
app.add_typer(serve.app, name="serve")


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
    """`--debug` is taken out by main, so that it may stand anywhere; here it is only explained."""


def _warn(message: Warning | str, *_: object) -> None:
    sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Runs the command line. Exit status 2 is an error, 130 an interruption; detect has a 1 of its own."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warn  # type: ignore[assignment]
            sys.exit(app(standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort) as stopped:
        if isinstance(stopped.__cause__, EOFError):
            _fail("a file ends too early; is it complete?", 2, debug)
        _fail("interrupted; what was finished is kept", 130, debug)
    except AlimarkError as error:
        _fail(str(error), 2, debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2, debug)
    except Exception as error:
        if show := getattr(error, "show", None):  # a wrong option, which typer explains itself
            show()
            sys.exit(2)
        # A status of 1 would say "not found".
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug for where", 2, debug)


def _fail(message: str, status: int, debug: bool) -> None:
    # A traceback is for developers: everybody else gets one line that says what to do.
    if debug:
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"error: {message}\n" if status == 2 else f"{message}\n")
    if status == 130:
        # A model may be in the middle of a wave in another thread; what was finished is written, so nobody waits for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
