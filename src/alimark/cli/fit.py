"""alimark fit: learns from human text what the keys of some schemes need."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from alimark.cli import loading, options, show
from alimark.errors import AlimarkError

EMBEDDER = "semstamp-embedder"
SchemeName = Annotated[
    str,
    typer.Argument(help=f"What to learn: directions (for AliMark), k-semstamp, simmark, sir, postmark or {EMBEDDER}."),
]
Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help=f"The file to write, for `alimark keygen --fitted`; for {EMBEDDER} the folder to write."
    ),
]
EmbedderName = Annotated[
    str,
    typer.Option(
        help="Sentence embedder: a name from `alimark models list`, a path or a hub id; NAME#INSTRUCTION puts an "
        "instruction before each sentence."
    ),
]
Pairs = Annotated[
    list[Path] | None,
    typer.Option(
        help=f"For {EMBEDDER}: JSONL of texts with paraphrases (`original` and `paraphrase`, or records of "
        "`alimark attack`), plain or .gz; may be repeated."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option of the learning, as NAME=VALUE; may be repeated. See docs/rivals.md."),
]


def fit(
    scheme: SchemeName,
    output: Output,
    human: options.HumanTexts = None,
    embedder: EmbedderName = "all-MiniLM-L6-v2",
    pairs: Pairs = None,
    setting: Settings = None,
    as_json: options.JsonOutput = False,
) -> None:
    """Learn from human text what the keys of a scheme need.

    directions are for AliMark keys with an embedder that alimark ships no
    directions for: along them more of a mark survives a rewrite.
    k-semstamp learns k-means regions of sentences of the domain, simmark an
    interval of the similarity of neighbouring sentences, sir a network from
    the embedding of a text to a bias of its tokens, postmark a list of words
    and where human texts lie. semstamp-embedder fine-tunes the embedder on
    paraphrase pairs, as SemStamp does, and writes a folder that keygen takes
    as --embedder. Use other texts than those that you test a
    detector on; the file records their number and their hash.

        alimark fit directions --human texts.jsonl --embedder my/embedder -o directions.npz
        alimark keygen --embedder my/embedder --fitted directions.npz -o key.json
        alimark fit k-semstamp --human texts.jsonl -o regions.npz
        alimark fit simmark --human texts.jsonl --set distance=euclidean -o interval.npz
        alimark fit sir --human texts.jsonl -o sir.safetensors
        alimark fit postmark --human texts.jsonl -o words.npz
        alimark keygen --scheme simmark --fitted interval.npz -o key.json
        alimark fit semstamp-embedder --pairs pairs.jsonl -o my-embedder
        alimark keygen --scheme semstamp --embedder my-embedder -o key.json
    """
    from alimark.cli.keygen import assignments

    settings = assignments(setting or [])
    origin = (
        _fit_embedder(output, human, embedder, pairs, settings)
        if scheme == EMBEDDER
        else _fit_scheme(scheme, output, human, embedder, pairs, settings)
    )
    if as_json:
        show.print_json({"file": str(output), "scheme": scheme, "origin": origin})
    else:
        show.note(f"wrote {output}: {json.dumps(origin)}")


def _fit_embedder(
    output: Path, human: list[Path] | None, embedder: str, pairs: list[Path] | None, settings: dict[str, Any]
) -> dict[str, object]:
    """Fine-tunes an embedder and returns the record of its origin."""
    from alimark.lab.rivals.finetuning import FineTuning, fine_tune, read_pairs

    _check_settings(EMBEDDER, settings, [field.name for field in fields(FineTuning)])
    if not pairs or human:
        raise AlimarkError(f"{EMBEDDER} learns from texts with paraphrases: give --pairs, and no --human")
    try:
        chosen = FineTuning(**settings)
    except TypeError as error:
        raise AlimarkError(f"{EMBEDDER} cannot learn with these options: {error}") from None
    return fine_tune(embedder, read_pairs(pairs, loading.load_embedder(embedder)), output, chosen)


def _fit_scheme(
    scheme: str, output: Path, human: list[Path] | None, embedder: str, pairs: list[Path] | None,
    settings: dict[str, Any],
) -> dict[str, object]:  # fmt: skip
    """Learns what the keys of a scheme need, writes it and returns the record of its origin."""
    from alimark.core.schemes.registry import fit_options
    from alimark.core.text.human_text import human_texts

    kind = _learning_scheme(scheme)
    _check_settings(scheme, settings, fit_options(kind))
    if pairs:
        raise AlimarkError(f"--pairs is for {EMBEDDER}; {scheme} learns from --human")
    if not human:
        show.note("no --human text given: learning from Python's own manual, all of one subject")
    texts = human_texts(human or [])
    try:
        fitted = kind.fit(texts, loading.load_embedder(embedder), **settings)
    except (TypeError, ValueError) as error:
        raise AlimarkError(f"{scheme} cannot learn with these options: {error}") from None
    fitted.save(output)
    return dict(fitted.origin)


def _check_settings(what: str, settings: dict[str, Any], known: list[str]) -> None:
    if unknown := sorted(set(settings) - set(known)):
        raise AlimarkError(f"{what} has no option {', '.join(unknown)} of learning; it has: {', '.join(known)}")


def _learning_scheme(name: str) -> Any:
    """The class of a scheme that has `fit`; raises AlimarkError for the others."""
    from alimark.core.schemes.registry import names
    from alimark.core.schemes.registry import scheme as scheme_class

    name = "alimark" if name == "directions" else name
    kind: Any = scheme_class(name)
    if not hasattr(kind, "fit"):
        learning = ", ".join(other for other in names() if hasattr(scheme_class(other), "fit"))
        raise AlimarkError(f"{name} learns nothing from text; the schemes that do are: {learning}")
    return kind
