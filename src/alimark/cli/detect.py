"""alimark detect: does a text carry the mark of a key, and why."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError, KeyMismatch, RecordError

if TYPE_CHECKING:
    from alimark.cli.corpus import Options
    from alimark.detection.results import AlignedDetection, Detection, Verdict
    from alimark.detection.settings import DetectionSettings
    from alimark.detection.stats.p_values import RandomKeys
    from alimark.keys.key import Key

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
            help="Undo: none, single (one merge or split, as in the paper), A,B: at most A merges and B splits, "
            "learned: what a chat model makes of the text (--llm), or learned+single."
        ),
    ] = "single",
    llm: Annotated[
        str | None,
        typer.Option(help="Chat model for learned restructuring, or the model that PMark samples; it reads the text."),
    ] = None,
    variants: Annotated[int, typer.Option(help="Restructurings asked of the chat model.")] = 4,
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
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Batch audit: JSONL with a `text` on each line. With a folder as --output also Parquet, text files, folders, "
            "patterns and addresses such as s3://bucket/docs; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", help="NAME.jsonl to append answers to, or a folder for Parquet; what is done is skipped."
        ),
    ] = None,
    fdr: Annotated[float, typer.Option(help="False discovery rate of the batch summary.")] = 0.05,
    engine: Annotated[
        str, typer.Option(help="Who audits a corpus: plain (this process) or ray (all cores, or a cluster).")
    ] = "plain",
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster, e.g. auto or HOST:6379; by default this machine alone.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Ray workers; default, as many as there is room for.")
    ] = None,
    worker_cpus: Annotated[int, typer.Option(min=1, help="Cores of each worker.")] = 1,
    device: Annotated[str | None, typer.Option(help="Where workers embed, e.g. cuda; default, the CPU.")] = None,
    first_pass: Annotated[
        float | None,
        typer.Option(help="Look cheaply first; only documents with p at most this get the full test (docs/scale.md)."),
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field or column that holds a document's text.")] = "text",
    by: Annotated[
        str, typer.Option(help="Field that names a document's source, for the summary; default, its file.")
    ] = "",
    block_size: Annotated[int, typer.Option(min=1, help="Kilobytes of a block, which a worker does in one go.")] = 2048,
    max_document: Annotated[int, typer.Option(min=1, help="Megabytes; longer documents are passed over.")] = 8,
    time_limit: Annotated[
        float, typer.Option(help="Seconds that a step of one document may take before Ray passes it over.")
    ] = 120,
    cache: Annotated[int, typer.Option(min=0, help="Megabytes of vectors that each worker remembers.")] = 256,
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
        alimark detect -k keys/ --input s3://bucket/docs --output found/ --engine ray
        alimark detect -k key.json --restructure learned+single \\
            --llm openai:http://localhost:8000/v1 text.txt

    Exit status: 0 found in all, 1 not found in some, 2 error. A batch audit
    exits with 0 once every document has its line, found or not.
    """
    keys = _load_keys(key)
    settings = _for_keys(
        keys, _settings(restructure, variants, null, null_file, draws, tail, excerpt, max_blocks, fpr), llm is not None
    )
    if inputs or output is not None:
        if not inputs or output is None or files or report is not None:
            raise AlimarkError("a batch audit takes --input and --output, and neither files nor --report")
        from alimark.cli import corpus

        how = corpus.Options(
            engine, address, workers, worker_cpus, device, first_pass, text_field, by, block_size << 10, max_document << 20,
            time_limit, cache, draws, fpr, fdr, as_json, llm,
        )  # fmt: skip
        _audit(keys, inputs, output, settings, how)
        return
    if not files:
        raise AlimarkError("name a text file, or - for standard input")
    if report is not None and len(files) > 1:
        raise AlimarkError("--report takes one text at a time")
    answers = _answers(files, keys, settings, llm)
    sound = {name: found for name, found in answers.items() if not isinstance(found, AlimarkError)}
    if report is not None and sound:
        from alimark._util.files import write_whole

        [found] = sound.values()
        content = json.dumps(found[0].report(fpr), ensure_ascii=False, indent=2) + "\n"
        write_whole(report, content.encode("utf-8", "surrogatepass"))
    if as_json:
        _print_json(answers, fpr)
    else:
        _show(sound, fpr)
    for name, failed in answers.items():
        if isinstance(failed, AlimarkError):
            show.note(f"error: {failed}" if str(failed).startswith(name) else f"error: {name}: {failed}")
    if len(sound) < len(answers):
        raise typer.Exit(2)
    raise typer.Exit(0 if all(found[0].verdict(fpr) == "found" for found in sound.values()) else 1)


def _audit(keys: list[Key], inputs: list[str], output: str, settings: RandomKeys, options: Options) -> None:
    from alimark.cli import audit, corpus

    if options.engine not in ("plain", "ray"):
        raise AlimarkError(f"--engine is plain or ray, not {options.engine!r}")
    if _is_folder(output):
        corpus.audit(keys, inputs, output, settings, options)
        return
    if options.engine != "plain" or len(inputs) > 1 or options.first_pass is not None:
        raise AlimarkError("many inputs, --engine ray and --first-pass write a folder; give one as --output")
    shared = options.fpr, options.fdr, options.as_json, options.llm
    audit.audit(keys, Path(inputs[0]), Path(output), settings, *shared)


def _is_folder(output: str) -> bool:
    return "://" in output or output.endswith(("/", "\\")) or Path(output).is_dir() or not Path(output).suffix


def _settings(
    restructure: str, variants: int, null: str, null_file: Path | None, draws: int | None, tail: bool, excerpt: bool,
    max_blocks: int, fpr: float,
) -> DetectionSettings:  # fmt: skip
    from alimark.detection.settings import DetectionSettings
    from alimark.detection.stats.p_values import draws_for

    limits: Any = restructure
    if "," in restructure:
        try:
            merges, splits = restructure.split(",")
            limits = (int(merges), int(splits))
        except ValueError:
            raise AlimarkError("--restructure takes none, single, learned or two numbers such as 2,1") from None
    wanted = draws_for(fpr)
    if draws is not None and draws + 1 < 1 / fpr:
        raise AlimarkError(
            f"--draws {draws} cannot resolve --fpr {fpr:g}; at least {math.ceil(1 / fpr) - 1} are needed"
        )
    return DetectionSettings(
        restructure=limits, null=null, null_file=null_file, tail=tail, max_blocks=max_blocks,  # type: ignore[arg-type]
        search="excerpt" if excerpt else "whole", passage_fpr=fpr,
        draws=wanted if draws is None else draws, variants=variants,
    )  # fmt: skip


def _for_keys(keys: list[Key], settings: DetectionSettings, has_llm: bool) -> RandomKeys:
    """The settings, or for keys of rivals those that all have; the options of AliMark's search are then refused."""
    from alimark.detection.settings import DetectionSettings
    from alimark.detection.stats.p_values import RandomKeys
    from alimark.schemes.registry import aligns, asks_llm

    asked = any(map(asks_llm, keys))
    if settings.learned != has_llm and not (has_llm and asked):
        raise AlimarkError("--restructure learned and --llm go together")
    if all(aligns(key.scheme) for key in keys):
        return settings
    common = {name: getattr(settings, name) for name in RandomKeys.__dataclass_fields__}
    if settings != DetectionSettings(**common, passage_fpr=settings.passage_fpr):
        raise AlimarkError(
            "--excerpt, --restructure, --null and --max-blocks belong to AliMark's search; leave them out"
        )
    return RandomKeys(**common)


def _load_keys(paths: list[Path]) -> list[Key]:
    from alimark.keys.key import Key

    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise AlimarkError(f"there is no key file (*.json) in {', '.join(str(path) for path in paths)}")
    return [Key.load(file) for file in files]


Answers = dict[str, "list[Detection] | AlimarkError"]


def _answers(names: list[str], keys: list[Key], settings: RandomKeys, llm_name: str | None) -> Answers:
    """For each file its detections, best first (one for one key, the best few for many), or what is wrong with it."""
    from alimark._util.files import read_text
    from alimark.detection.kernels.hard import warm_up
    from alimark.schemes.api import detect as detect_keys
    from alimark.schemes.registry import aligns

    answers: Answers = {}
    if aligns(keys[0].scheme):
        # Half a second of loading kernels fits into the time that the embedder takes.
        threading.Thread(target=warm_up, daemon=True).start()
    mark = show.load_mark(keys[0])
    llm = None if llm_name is None else show.load_llm(llm_name)
    for name in names:
        try:
            text = show.read_stdin() if name == "-" else read_text(name)
            if len(keys) > 1:
                embedder = getattr(mark, "embedder", None)
                answers[name] = detect_keys(text, keys, embedder=embedder, settings=settings, llm=llm)
                continue
            [found] = mark.detect_batch([text], settings, llm=llm)
            answers[name] = found if isinstance(found, AlimarkError) else [found]
        except KeyMismatch:
            raise
        except AlimarkError as error:
            answers[name] = error
        except OSError as error:
            answers[name] = RecordError(error.strerror or str(error))
    return answers


def _print_json(answers: Answers, fpr: float) -> None:
    content: list[dict[str, Any]] = []
    for name, found in answers.items():
        if isinstance(found, AlimarkError):
            content.append({"file": name, "error": str(found)})
            continue
        content.append({"file": name, **found[0].report(fpr)})
        if found[1:]:
            content[-1]["next_best"] = [one.record() for one in found[1:]]
    show.print_json(content[0] if len(content) == 1 else content)


def _show(answers: dict[str, list[Detection]], fpr: float) -> None:
    from rich.markup import escape

    from alimark.detection.results import AlignedDetection

    console = show.stdout()
    for name, found in answers.items():
        best = found[0]
        for warning in best.warnings:
            show.note(f"warning: {name}: {warning}")
        verdict = best.verdict(fpr)
        colour = {"found": "bold green", "not found": "bold", "too short to tell": "bold yellow"}[verdict]
        console.print(f"{escape(name)}: [{colour}]{verdict}[/]")
        for line in _lines(found, verdict, fpr):
            console.print(f"  {line}")
        if len(answers) == 1 and isinstance(best, AlignedDetection):
            console.print(show.alignment_table(best))


def _lines(found: list[Detection], verdict: Verdict, fpr: float) -> Iterator[str]:
    """What stands below the verdict."""
    from alimark.detection.results import AlignedDetection

    best = found[0]
    z = "" if best.z is None else f", z {best.z:.2f}"
    keys = "" if best.keys_tried == 1 else f", best of {best.keys_tried:,} keys"
    yield f"p {show.p_text(best)}, score {best.score:.2f}{z}, {len(best.sentences)} sentences, key {best.key_id}{keys}"
    if verdict == "too short to tell":
        if isinstance(best, AlignedDetection):
            need = f"about {verdict.needed}" if verdict.needed else "more than 40"
            yield f"{need} sentences would be needed at a false-positive rate of {fpr:g}"
        else:
            yield f"a text of this length has a p-value of {best.p_least:.2g} at the least"
    for name, value in best.evidence.items():
        yield f"{name.replace('_', ' ')}: {value}"
    for other in found[1:]:
        yield f"next: key {other.key_id}, p {show.p_text(other)}, score {other.score:.2f}"
    if isinstance(best, AlignedDetection):
        yield from _aligned_lines(best)


def _aligned_lines(best: AlignedDetection) -> Iterator[str]:
    if made := best.restructured:
        dropped = ", ".join(f"{count} {why}" for why, count in made.dropped.items())
        of = f"restructuring {made.best}" if made.best else "the text as it is"
        yield f"{len(made.texts)} restructurings by {made.llm} tried{f' ({dropped})' if dropped else ''}; best: {of}"
    for passage in best.passages:
        where = f"sentences {passage.first} to {passage.last}, blocks {passage.first_block} to {passage.last_block}"
        yield f"passage: {where}, p {passage.p_value:.3g}"
    if best.near_flips:
        yield f"{best.near_flips} bits lie within 1e-4 of a flip"
