"""alimark keygen: make a key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.keys.key import Key

Output = Annotated[Path, typer.Option("-o", "--output", help="The key file to write; never overwritten.")]
SchemeName = Annotated[str, typer.Option(help="The watermark: alimark, or a rival (docs/rivals.md).")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter of a rival, as NAME=VALUE; may be given several times.")
]
Preset = Annotated[
    str | None, typer.Option(help="paper: a rival as the AliMark paper ran it, in place of its own defaults.")
]
FittedFile = Annotated[
    Path | None,
    typer.Option(help="What was learned from text: directions, or what a rival needs; a file of `alimark fit`."),
]
Decision = Annotated[
    str | None,
    typer.Option(
        help="soft (AliMark's default): margins, of which a rewritten text keeps more than of bits (docs/soft.md); "
        "hard: the paper's scheme, bits."
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(help="Secret bits for each sentence, 1 to 64 (default 64; 32 without directions, 8 for hard keys)."),
]
EmbedderName = Annotated[
    str, typer.Option(help="Sentence embedder: a name of `alimark models list`, a path or a hub id.")
]
SplitterName = Annotated[str, typer.Option(help="Sentence splitter: nupunkt, pysbd, blingfire or punkt.")]
CentreFile = Annotated[
    Path | None, typer.Option(help="A corpus mean from `alimark calibrate --centre-out`; evens out false positives.")
]
Offsets = Annotated[
    int,
    typer.Option(
        help="Blocks that a text may begin with, in secret, against those who collect texts (docs/security.md)."
    ),
]
PayloadBits = Annotated[
    int | None,
    typer.Option(
        help="Texts carry a number of so many bits, such as the model or the user: 8, 16, or 24 for texts of 48 sentences and "
        "more (docs/payload.md).",
        show_default="none",
    ),
]
Starts = Annotated[
    str | None,
    typer.Option(
        help="conversation: a text begins where its conversation has got to, so that a client who asks for a few tokens at a "
        "time gets the same mark (docs/security.md); text (default): each text begins anew."
    ),
]


def keygen(
    output: Output,
    scheme: SchemeName = "alimark",
    setting: Settings = None,
    preset: Preset = None,
    fitted: FittedFile = None,
    decision: Decision = None,
    block_size: BlockSize = None,
    embedder: EmbedderName = "all-MiniLM-L6-v2",
    splitter: SplitterName = "nupunkt",
    centre: CentreFile = None,
    offsets: Offsets = 1,
    payload_bits: PayloadBits = None,
    starts: Starts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the public part as JSON.")] = False,
) -> None:
    """Make a secret key, print its id, and say what it is and when to choose otherwise.

    Anyone who holds the key file can detect the mark and can also forge it: keep
    it like a password. Marking and detection must use the same key, and the
    key fixes embedder, splitter and block size for both.
    """
    from alimark.core.frozen.text.splitting import splitter as check_splitter
    from alimark.core.keys.fitted import Fitted
    from alimark.core.keys.key import Key

    check_splitter(splitter)
    parameters: dict[str, Any] = assignments(setting or [])
    if wrong := sorted(set(parameters) & {"scheme", "embedder", "splitter", "preset", "fitted", "secret"}):
        raise AlimarkError(f"--set takes parameters of the scheme, and {wrong[0]} is none of them")
    given = {
        "decision": decision, "block_size": block_size, "offsets": offsets if offsets != 1 else None,
        "centre": _read_centre(centre, embedder) if centre else None, "payload_bits": payload_bits, "starts": starts,
    }  # fmt: skip
    # Options of AliMark that were left alone are not given to a scheme that does not have them.
    parameters |= {name: value for name, value in given.items() if value is not None}
    key = Key.generate(
        scheme=scheme, embedder=embedder, splitter=splitter, preset=preset,
        fitted=None if fitted is None else Fitted.load(fitted), **parameters,
    )  # fmt: skip
    key.save(output)
    notes = _notes(key, output)
    if as_json:
        show.print_json({"id": key.id, "file": str(output), **key.public(), "notes": notes})
    else:
        typer.echo(key.id)
        for note in notes:
            show.note(note)


def _notes(key: Key, output: Path) -> list[str]:
    """Says in three lines what was made, what it is, and when to choose otherwise; a fourth says what a soft key lacks."""
    from alimark.core.schemes.registry import aligns

    notes = [f"The key {key.id} is in {output}, which holds the secret: keep it safe and out of version control."]
    needs = f"marking and detecting need the embedder {key.embedder}" if key.embedder else "it names no embedder"
    if not aligns(key.scheme):
        return [
            *notes,
            f"It is a key of {key.scheme}, a rival that AliMark is compared with; {needs}.",
            "When to choose otherwise: leave out --scheme to mark texts that are to be found after a rewrite.",
        ]
    if not key.soft:
        return [
            *notes,
            f"It is an AliMark key with hard decisions, the scheme of the paper; {needs}, and no GPU.",
            "When to choose otherwise: --decision soft finds many more of the texts that were rewritten (docs/soft.md).",
        ]
    notes += [
        f"It is an AliMark key with soft decisions; {needs}, and no GPU.",
        "When to choose otherwise: --decision hard is the scheme of the paper, for comparisons with it; where others can "
        "collect many of your texts, use several keys or --offsets (docs/security.md).",
    ]
    if key.payload_bits:
        notes.append(
            f"Texts carry a number from 0 to {key.payload_code.count - 1}: alimark generate --payload NUMBER (docs/payload.md)."
        )
    if key.span is None:
        notes.append(
            f"note: alimark ships no directions for {key.embedder}, so the key uses its whole embedding space, and fewer "
            "rewritten texts will be found; `alimark fit directions` learns directions from your texts"
        )
    return notes


def assignments(pairs: list[str]) -> dict[str, object]:
    """Parses NAME=VALUE; a value is read as TOML, or as a string where it is not TOML."""
    import tomllib

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().isidentifier():
            raise AlimarkError(f"--set takes NAME=VALUE, such as ratio=0.25, not {pair!r}")
        try:
            values[name.strip()] = tomllib.loads(f"value = {value.strip()}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            values[name.strip()] = value.strip()
    return values


def _read_centre(path: Path, embedder: str) -> list[float]:
    import json

    from alimark.core._util.files import read_text

    try:
        content = json.loads(read_text(path))
        mean = [float(x) for x in content["mean"]]
        made_for = content["embedder"]
    except (ValueError, KeyError, TypeError):
        raise AlimarkError(
            f"{path} does not hold a corpus mean; make one: alimark calibrate --centre-out {path}"
        ) from None
    if made_for != embedder:
        raise AlimarkError(f"{path} is the mean of {made_for} embeddings, not of {embedder}")
    return mean
