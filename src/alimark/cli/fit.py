"""alimark fit: what a rival learns from text."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError


def fit(
    scheme: Annotated[str, typer.Argument(help="The scheme that learns: k-semstamp, simmark or sir.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write, for `alimark keygen --fitted`.")],
    human: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL of human texts (`text` or `natural_text`), plain or .gz; default: Python's own manual."
        ),
    ] = None,
    embedder: Annotated[
        str, typer.Option(help="Sentence embedder: a name of `alimark models list`, a path or a hub id.")
    ] = "all-MiniLM-L6-v2",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the learning, as NAME=VALUE; see docs/rivals.md.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the origin as JSON.")] = False,
) -> None:
    """Learn from human text what a rival's key needs, and say from what.

    k-semstamp learns the k-means regions of the domain's sentences, simmark an
    interval of the similarity of neighbours, sir the network from meaning to
    bias. Learn from other texts than those that a detector is tried on: the
    file notes how many there were and their hash.

        alimark fit k-semstamp --human texts.jsonl -o regions.npz
        alimark fit simmark --human texts.jsonl --set distance=euclidean -o interval.npz
        alimark fit sir --human texts.jsonl -o sir.safetensors
        alimark keygen --scheme simmark --fitted interval.npz -o key.json
    """
    from alimark.calibration import human_text as corpus
    from alimark.cli.keygen import assignments
    from alimark.schemes.registry import names
    from alimark.schemes.registry import scheme as known_scheme

    kind: Any = known_scheme(scheme)
    if not hasattr(kind, "fit"):
        those = ", ".join(name for name in names() if hasattr(known_scheme(name), "fit"))
        raise AlimarkError(f"{scheme} learns nothing from text; those that do: {those}")
    options = assignments(setting or [])
    known = [name for name, one in inspect.signature(kind.fit).parameters.items() if one.kind == one.KEYWORD_ONLY]
    if unknown := sorted(set(options) - set(known)):
        raise AlimarkError(f"{scheme} has no option {', '.join(unknown)} of learning; it has: {', '.join(known)}")
    if not human:
        show.note("no --human text given: learning from Python's own manual, all of one subject")
    texts = [text for path in human for text in corpus.read_texts(path)] if human else list(corpus.language_reference())
    try:
        learned = kind.fit(texts, show.load_embedder(embedder), **options)
    except (TypeError, ValueError) as error:
        raise AlimarkError(f"{scheme} cannot learn with these options: {error}") from None
    learned.save(output)
    if as_json:
        show.print_json({"file": str(output), "scheme": scheme, "origin": dict(learned.origin)})
    else:
        show.note(f"wrote {output}: {json.dumps(dict(learned.origin))}")
