"""alimark detect: does a text carry the mark of a key, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.detection import Detection
    from alimark.detector import DetectionSettings
    from alimark.key import Key

Files = Annotated[list[str] | None, typer.Argument(help="Text files; - reads standard input.")]


def detect(
    key: Annotated[
        list[Path],
        typer.Option("-k", "--key", help="Key file; several, or a folder of them, ask whose key it was."),
    ],
    files: Files = None,
    fpr: Annotated[float, typer.Option(help="Share of unmarked texts that may be called found.")] = 0.01,
    excerpt: Annotated[bool, typer.Option("--excerpt", help="Look for a marked passage inside a longer text.")] = False,
    restructure: Annotated[
        str,
        typer.Option(
            help="Undo: none, single (one merge or split, as in the paper), or A,B: at most A merges and B splits."
        ),
    ] = "single",
    draws: Annotated[
        int | None,
        typer.Option(help="Random keys behind the p-value (default 1000, more if --fpr needs it)."),
    ] = None,
    tail: Annotated[bool, typer.Option("--tail", help="Estimate p-values below 1/draws from a fitted tail.")] = False,
    null: Annotated[
        str, typer.Option(help="z by the paper's rule, or as the public code computes it: paper, reference.")
    ] = "paper",
    null_file: Annotated[Path | None, typer.Option(help="Table of means and deviations for --null reference.")] = None,
    max_blocks: Annotated[int, typer.Option(help="Blocks of the key that --excerpt searches.")] = 100,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="JSONL with a `text` on each line: batch audit.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="JSONL of answers to append to; done ids are skipped.")
    ] = None,
    fdr: Annotated[float, typer.Option(help="False discovery rate of the batch summary.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="Write the evidence to this file as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell whether texts carry the mark of a key, with a p-value and the alignment behind it.

    The p-value is the share of random keys that score as high on this text:
    no threshold to tune. "not found" does not mean that a person wrote it.

        alimark detect -k key.json text.txt
        alimark detect -k keys/ text.txt              # whose key was it
        alimark detect -k key.json --excerpt page.txt # a passage in other text
        alimark detect -k key.json --input docs.jsonl --output found.jsonl

    Exit status: 0 found in all, 1 not found in some, 2 error.
    """
    settings = _settings(restructure, null, null_file, draws, tail, excerpt, max_blocks, fpr)
    keys = _load_keys(key)
    if input_file is not None or output is not None:
        if input_file is None or output is None or files:
            raise AlimarkError("a batch audit takes --input and --output, and no files")
        if len(keys) > 1:
            raise AlimarkError("a batch audit takes one key")
        from alimark.cli.audit import audit

        audit(keys[0], input_file, output, settings, fpr, fdr, as_json)
        return
    if not files:
        raise AlimarkError("name a text file, or - for standard input")
    if report is not None and len(files) > 1:
        raise AlimarkError("--report takes one text at a time")
    texts = [_read(name) for name in files]
    answers = _answers(texts, keys, settings)
    if report is not None:
        from alimark.records import write_whole

        content = json.dumps(answers[0][0].report(fpr), ensure_ascii=False, indent=2) + "\n"
        write_whole(report, content.encode("utf-8", "surrogatepass"))
    _show(files, answers, fpr, as_json)
    raise typer.Exit(0 if all(found[0].verdict(fpr) == "found" for found in answers) else 1)


def _settings(
    restructure: str, null: str, null_file: Path | None, draws: int | None, tail: bool, excerpt: bool, max_blocks: int,
    fpr: float,
) -> DetectionSettings:  # fmt: skip
    from alimark.detector import DetectionSettings
    from alimark.significance import draws_for

    limits: Any = restructure
    if "," in restructure:
        try:
            merges, splits = restructure.split(",")
            limits = (int(merges), int(splits))
        except ValueError:
            raise AlimarkError("--restructure takes none, single or two numbers such as 2,1") from None
    return DetectionSettings(
        restructure=limits, null=null, null_file=null_file, tail=tail, max_blocks=max_blocks,  # type: ignore[arg-type]
        search="excerpt" if excerpt else "whole", draws=draws_for(fpr) if draws is None else draws,
    )  # fmt: skip


def _load_keys(paths: list[Path]) -> list[Key]:
    from alimark.key import Key

    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise AlimarkError(f"there is no key file (*.json) in {', '.join(str(path) for path in paths)}")
    return [Key.load(file) for file in files]


def _read(name: str) -> str:
    from alimark.records import read_text

    if name != "-":
        return read_text(name)
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"standard input is not UTF-8 (byte {error.start}); convert it, e.g. with iconv") from None


def _answers(texts: list[str], keys: list[Key], settings: DetectionSettings) -> list[list[Detection]]:
    """For each text its detections, best first: one for one key, the best few for many."""
    from alimark.watermark import AliMark
    from alimark.watermark import detect as detect_among

    embedder = show.load_embedder(keys[0].embedder)
    if len(keys) > 1:
        return [detect_among(text, keys, embedder=embedder, settings=settings) for text in texts]
    return [[found] for found in AliMark(keys[0], embedder=embedder).detect(texts, settings=settings)]


def _show(names: list[str], answers: list[list[Detection]], fpr: float, as_json: bool) -> None:
    if as_json:
        content = [
            {"file": name, **found[0].report(fpr)}
            | ({"next_best": [one.record() for one in found[1:]]} if found[1:] else {})
            for name, found in zip(names, answers, strict=True)
        ]
        show.print_json(content[0] if len(content) == 1 else content)
        return
    console = show.stdout()
    for name, found in zip(names, answers, strict=True):
        best = found[0]
        for warning in best.warnings:
            show.note(f"warning: {name}: {warning}")
        verdict = best.verdict(fpr)
        colour = {"found": "bold green", "not found": "bold", "too short to tell": "bold yellow"}[verdict]
        z = "" if best.z is None else f", z {best.z:.2f}"
        keys = "" if best.keys_tried == 1 else f", best of {best.keys_tried:,} keys"
        console.print(f"{name}: [{colour}]{verdict}[/]")
        console.print(
            f"  p {show.p_text(best)}, score {best.score:.2f}{z}, {len(best.sentences)} sentences, key {best.key_id}{keys}"
        )
        if verdict == "too short to tell":
            need = f"about {verdict.needed}" if verdict.needed else "more than 40"
            console.print(f"  {need} sentences would be needed at a false-positive rate of {fpr:g}")
        for passage in best.passages if verdict == "found" else ():
            console.print(
                f"  passage: sentences {passage.first} to {passage.last}, blocks {passage.first_block} to "
                f"{passage.last_block}, p {passage.p_value:.3g}"
            )
        for other in found[1:]:
            console.print(f"  next: key {other.key_id}, p {show.p_text(other)}, score {other.score:.2f}")
        if best.near_flips:
            console.print(f"  {best.near_flips} bits lie within 1e-4 of a flip")
        if len(names) == 1:
            console.print(show.alignment_table(best))
