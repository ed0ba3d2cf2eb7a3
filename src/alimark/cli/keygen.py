"""alimark keygen: make a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError


def keygen(
    output: Annotated[Path, typer.Option("-o", "--output", help="The key file to write; never overwritten.")],
    scheme: Annotated[str, typer.Option(help="The watermark: alimark, or a rival (docs/rivals.md).")] = "alimark",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of a rival, as NAME=VALUE; may be given several times."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper: a rival as the AliMark paper ran it, in place of its own defaults.")
    ] = None,
    fitted: Annotated[
        Path | None, typer.Option(help="What a rival learned from text: a file of `alimark fit`.")
    ] = None,
    decision: Annotated[
        str,
        typer.Option(
            help="hard: bits, as in the paper; soft: margins, of which a rewritten text keeps more (docs/soft.md)."
        ),
    ] = "hard",
    block_size: Annotated[
        int | None, typer.Option(help="Secret bits for each sentence, 1 to 64 (default 8; 32 for soft keys).")
    ] = None,
    embedder: Annotated[
        str, typer.Option(help="Sentence embedder: a name of `alimark models list`, a path or a hub id.")
    ] = "all-MiniLM-L6-v2",
    splitter: Annotated[str, typer.Option(help="Sentence splitter: nupunkt, pysbd or blingfire.")] = "nupunkt",
    centre: Annotated[
        Path | None,
        typer.Option(help="A corpus mean from `alimark calibrate --centre-out`; evens out false positives."),
    ] = None,
    offsets: Annotated[
        int,
        typer.Option(
            help="Blocks that a text may begin with, in secret, against those who collect texts (docs/security.md)."
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the public part as JSON.")] = False,
) -> None:
    """Make a secret key, and print its id.

    Whoever holds the key file can detect the mark and can also forge it: keep
    it like a password. Marking and detection must use the same key, and the
    key fixes embedder, splitter and block size for both.
    """
    from alimark.keys.fitted import Fitted
    from alimark.keys.key import Key
    from alimark.text.splitting import splitter as check_splitter

    check_splitter(splitter)
    key = Key.generate(
        scheme=scheme, decision=decision, block_size=block_size, embedder=embedder, splitter=splitter,
        centre=None if centre is None else _read_centre(centre, embedder), offsets=offsets, preset=preset,
        fitted=None if fitted is None else Fitted.load(fitted), **assignments(setting or []),
    )  # fmt: skip
    key.save(output)
    if as_json:
        show.print_json({"id": key.id, "file": str(output), **key.public()})
    else:
        typer.echo(key.id)
        show.note(f"wrote {output}; it holds the secret: keep it safe and out of version control")


def assignments(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE; a value is TOML, or else taken as a text."""
    import tomllib

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().isidentifier():
            raise AlimarkError(f"--set takes NAME=VALUE, such as ratio=0.25, not {pair!r}")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


def _read_centre(path: Path, embedder: str) -> list[float]:
    import json

    from alimark._util.files import read_text

    try:
        content = json.loads(read_text(path))
        mean = [float(x) for x in content["mean"]]
        made_for = content["embedder"]
    except (ValueError, KeyError, TypeError):
        raise AlimarkError(f"{path} is no corpus mean; make one: alimark calibrate --centre-out {path}") from None
    if made_for != embedder:
        raise AlimarkError(f"{path} is the mean of {made_for} embeddings, not of {embedder}")
    return mean
