"""Options that several verbs share, and how detection settings are made from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.keys.key import Key

KeyFile = Annotated[Path, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")]
_KEYS = typer.Option(
    "-k",
    "--key",
    help="Key file, or a folder of key files; may be repeated. With several keys, the likeliest one is named and its "
    "p-value is corrected for their number.",
)
KeyFiles = Annotated[list[Path], _KEYS]
MaybeKeyFiles = Annotated[list[Path] | None, _KEYS]
Output = Annotated[
    Path | None, typer.Option("--output", help="JSONL file to append to; ids that it has already are skipped.")
]
Payload = Annotated[
    int | None,
    typer.Option(
        help="The number that the mark carries, for a key made with --payload-bits. With --input, a line's own `payload` "
        "comes first.",
        show_default="0, for a key with payloads",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Makes a run repeatable: the same seed gives the same text.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
HumanTextsOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="JSONL of human texts (`text` or `natural_text` on each line), plain or .gz; may be repeated. "
        "Without it, the manual that is part of Python is used."
    ),
]

# How strong a mark is. The numbers of the help are those of `alimark.core.generation.settings.STRENGTHS`.

StrengthOption = Annotated[
    str | None,
    typer.Option(
        help="How strong the mark is. light: 4 candidates for each sentence and steering; standard: 8, about twice the tokens "
        "of light; strong: 24, three times those of standard. Models that cannot be steered, and hard keys, take 16, 64 and "
        "256 candidates. docs/soft.md shows which share of changed texts is found for how many tokens.",
        show_default="standard",
    ),
]
RewriteStrength = Annotated[
    str | None,
    typer.Option(
        help="How strong the mark is. light: 16 rewrites of each sentence; standard: 64 rewrites, about four times the tokens "
        "of light; strong: 256 rewrites, about four times the tokens of standard.",
        show_default="light",
    ),
]

# The false-positive rate and the search of a detection

Fpr = Annotated[
    float, typer.Option(help="False-positive rate: the mark counts as found where the p-value is at most this.")
]
Excerpt = Annotated[
    bool | None,
    typer.Option(
        "--excerpt/--no-excerpt",
        help="Look for marked passages inside a longer text, or only at the text as a whole.",
        show_default="both in turn for more than 60 sentences, with a p-value that pays for both; passages alone for more "
        "than 300",
    ),
]
Restructure = Annotated[
    str,
    typer.Option(
        help="Which changes of sentence boundaries are undone. none; single: one merge or split at a time, as in the paper; "
        "A,B: up to A merges and B splits together; learned: the text and restructurings by a chat model (needs --llm); "
        "learned+single; learned-only: the chat model's answers in the place of the text."
    ),
]
DetectionModel = Annotated[
    str | None,
    typer.Option(
        "--llm", help="Chat model for --restructure learned, or the model that PMark samples. The model reads the text."
    ),
]
Variants = Annotated[int, typer.Option(help="Restructurings to ask of the chat model.")]
Draws = Annotated[
    int | None,
    typer.Option(help="Random keys behind each p-value.", show_default="1000, or more where the rates need more"),
]
Tail = Annotated[bool, typer.Option("--tail", help="Also estimate p-values below 1/draws from a fitted tail.")]
Null = Annotated[
    str,
    typer.Option(
        help="Mean and deviation behind z: paper (the rule of the paper) or reference (the table of the public code)."
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Precision of the embedder: auto, float32, or int8, which is faster on CPUs, twice where they have VNNI "
        "instructions (tf32 and bfloat16: on GPUs). auto is float32 in detect; an audit looks with the fastest and checks "
        "what it finds in float32 (docs/generating.md)."
    ),
]

# Workers

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where the work runs: plain (in this process) or ray (worker processes on this machine or a cluster).",
    ),
]
ReplicaCount = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        min=1,
        help="Replicas of the model. Each has a GPU, where there are GPUs, or shares one if there are more replicas.",
        show_default="as many as the cluster has room for",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of a running Ray cluster, e.g. auto or HOST:6379.", show_default="this machine alone"),
]


def uses_ray(engine: str, address: str | None, count: int | None, workers: str) -> bool:
    """Whether the work runs on Ray; raises AlimarkError for an unknown engine, and for options of Ray without it.

    `count` is the number that was given of Ray's `workers`, as their option calls them.
    """
    if engine not in ("plain", "ray"):
        raise AlimarkError(f"--engine is plain or ray, not {engine!r}")
    if engine == "plain" and (address or count):
        raise AlimarkError(f"--address and --{workers} go with --engine ray; add it, or leave them out")
    return engine == "ray"


def search_settings(
    keys: Sequence[Key], fpr: float, excerpt: bool | None, restructure: str, llm: str | None, variants: int,
    draws: int | None, tail: bool, null: str, precision: str,
) -> RandomKeys:  # fmt: skip
    """The settings of a detection, from the options of `detect` and `audit` that say how a text is searched.

    Options that a key's scheme does not have are refused. Without `excerpt` the length of a text decides whether to look for
    passages.
    """
    from alimark.core.detection.settings import DetectionSettings
    from alimark.core.detection.stats.p_values import RandomKeys, draws_for
    from alimark.core.schemes.registry import aligns, asks_llm

    default_draws = draws_for(fpr)
    if draws is not None and draws + 1 < 1 / fpr:
        raise AlimarkError(
            f"--draws {draws} cannot resolve --fpr {fpr:g}; at least {math.ceil(1 / fpr) - 1} are needed"
        )
    searches: dict[bool | None, Literal["whole", "excerpt", "auto"]] = {None: "auto", True: "excerpt", False: "whole"}
    settings = DetectionSettings(
        restructure=_limits(restructure),
        null=null,  # type: ignore[arg-type]  # checked by the settings
        tail=tail,
        search=searches[excerpt],
        passage_fpr=fpr,
        draws=default_draws if draws is None else draws,
        variants=variants,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings
    )
    if settings.learned != (llm is not None) and not (llm is not None and any(map(asks_llm, keys))):
        raise AlimarkError("--restructure learned and --llm go together; give both, or neither")
    if all(aligns(key.scheme) for key in keys):
        return settings
    common = {name: getattr(settings, name) for name in RandomKeys.__dataclass_fields__}
    search = settings.search if excerpt is None else "whole"
    if settings != DetectionSettings(**common, passage_fpr=fpr, search=search):
        raise AlimarkError(
            "--excerpt, --restructure, --null and --precision belong to AliMark's search; leave them out for "
            "keys of other schemes"
        )
    return RandomKeys(**common)


def _limits(restructure: str) -> str | tuple[int, int]:
    if "," not in restructure:
        return restructure
    try:
        merges, splits = map(int, restructure.split(","))
        return merges, splits
    except ValueError:
        raise AlimarkError(
            "--restructure takes none, single, learned, learned+single, learned-only or two numbers such as 2,1"
        ) from None
