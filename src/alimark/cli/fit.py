"""alimark fit: learns from human text what the keys of some schemes need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, options, show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.keys.fitted import Fitted

SchemeName = Annotated[str, typer.Argument(help="What to learn: directions (for AliMark), k-semstamp, simmark or sir.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The file to write, for `alimark keygen --fitted`.")]
EmbedderName = Annotated[
    str,
    typer.Option(
        help="Sentence embedder: a name from `alimark models list`, a path or a hub id; NAME#INSTRUCTION puts an "
        "instruction before each sentence."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option of the learning, as NAME=VALUE; may be repeated. See docs/rivals.md."),
]


def fit(
    scheme: SchemeName,
    output: Output,
    human: options.HumanTextsOption = None,
    embedder: EmbedderName = "all-MiniLM-L6-v2",
    setting: Settings = None,
    as_json: options.JsonOutput = False,
) -> None:
    """Learn from human text what the keys of a scheme need.

    directions are for AliMark keys with an embedder that alimark ships no
    directions for: along them more of a mark survives a rewrite.
    k-semstamp learns k-means regions of sentences of the domain, simmark an
    interval of the similarity of neighbouring sentences, sir a network from
    the embedding of a text to a bias of its tokens. Use other texts than those
    that you test a detector on; the file records their number and their hash.

        alimark fit directions --human t.jsonl --embedder my/embedder -o d.npz
        alimark keygen --embedder my/embedder --fitted d.npz -o key.json
        alimark fit k-semstamp --human texts.jsonl -o regions.npz
        alimark fit simmark --human t.jsonl --set distance=euclidean -o interval.npz
        alimark fit sir --human texts.jsonl -o sir.safetensors
        alimark keygen --scheme simmark --fitted interval.npz -o key.json
    """
    from alimark.cli.keygen import assignments
    from alimark.core.text.human_text import human_texts
    from alimark.lab.learning import called, check_options

    settings = assignments(setting or [])
    learn = _learner(scheme)
    check_options(scheme, learn, settings)
    if not human:
        show.note("no --human text given: learning from Python's own manual, all of one subject")
    fitted = called(scheme, learn, settings, human_texts(human or []), loading.load_embedder(embedder))
    fitted.save(output)
    origin = dict(fitted.origin)
    if as_json:
        show.print_json({"file": str(output), "scheme": scheme, "origin": origin})
    else:
        show.note(f"wrote {output}: {json.dumps(origin)}")


def _learner(name: str) -> Callable[..., Fitted]:
    """The function that learns what the keys of a scheme need; raises AlimarkError for schemes that learn nothing."""
    from alimark.core.parameters import SCHEMES, watermark_class
    from alimark.lab.directions import fit_directions

    if name == "directions":
        return fit_directions
    learn: Callable[..., Fitted] | None = getattr(watermark_class(name), "fit", None)
    if learn is None:
        learning = ", ".join(other for other in SCHEMES.names() if hasattr(watermark_class(other), "fit"))
        raise AlimarkError(f"{name} learns nothing from text; give directions, {learning}")
    return learn
