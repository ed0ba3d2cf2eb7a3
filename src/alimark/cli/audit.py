"""alimark audit: tells which of many documents carry the mark of a key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import audit_output, loading, options, show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from alimark.audit.auditor import Document
    from alimark.audit.corpora.audit import CorpusOptions
    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.keys.key import Key

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Documents: JSONL (a `text` on each line, also .gz), Parquet, files of one document each (PDF, DOCX, ODT, HTML, "
        "EPUB, RTF, Markdown, e-mail, text), folders, patterns, and storage such as s3://bucket/docs. Web addresses are not "
        "fetched."
    ),
]
InputOption = Annotated[list[str] | None, typer.Option("--input", help="The same as INPUTS; may be repeated.")]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        help="Where answers go: NAME.jsonl (a line for each document) or a folder (Parquet files). An output that exists is "
        "continued; documents that have an answer are skipped.",
    ),
]
Fdr = Annotated[float, typer.Option(help="False discovery rate of the summary.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Ray workers.", show_default="as many as the cluster has room for")
]
WorkerCpus = Annotated[int, typer.Option(min=1, help="CPU cores of each worker.")]
Device = Annotated[str | None, typer.Option(help="Where workers embed, e.g. cuda.", show_default="the CPU")]
FirstPass = Annotated[
    float | None,
    typer.Option(
        help="Test every document cheaply first, by its sentences alone; only those with a p-value of at most this get the "
        "full test (docs/audits.md). 1: test every document in full.",
        show_default="0.1 for AliMark keys that share one embedder and one decision",
    ),
]
TextField = Annotated[str, typer.Option(help="Field or column that holds the text of a document.")]
By = Annotated[
    str, typer.Option(help="Field that names the source of a document, for the summary.", show_default="its file")
]
BlockSize = Annotated[int, typer.Option(min=1, help="Kilobytes of a block, the unit of work of a worker.")]
MaxDocument = Annotated[int, typer.Option(min=1, help="Megabytes; longer documents are recorded as failed.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds that one step of a document may take before Ray gives it up.")]
Cache = Annotated[int, typer.Option(min=0, help="Megabytes of embeddings that each worker keeps.")]


@dataclass(frozen=True)
class Audit:
    """One audit: the keys, the documents, where answers go, and the rates of the summary."""

    keys: list[Key]
    inputs: list[str]
    output: str
    settings: RandomKeys
    fpr: float
    fdr: float
    as_json: bool


def audit(
    key: options.KeyFiles,
    inputs: Inputs = None,
    more_inputs: InputOption = None,
    output: Output = None,
    fpr: options.Fpr = 0.01,
    fdr: Fdr = 0.05,
    excerpt: options.Excerpt = None,
    restructure: options.Restructure = "single",
    llm: options.DetectionModel = None,
    variants: options.Variants = 4,
    draws: options.Draws = None,
    tail: options.Tail = False,
    null: options.Null = "paper",
    null_file: options.NullFile = None,
    max_blocks: options.MaxBlocks = 100,
    precision: options.Precision = "auto",
    text_field: TextField = "text",
    by: By = "",
    max_document: MaxDocument = 8,
    engine: options.EngineName = "plain",
    address: options.Address = None,
    workers: Workers = None,
    worker_cpus: WorkerCpus = 1,
    device: Device = None,
    first_pass: FirstPass = None,
    block_size: BlockSize = 2048,
    time_limit: TimeLimit = 120,
    cache: Cache = 256,
    as_json: options.JsonOutput = False,
) -> None:
    """Tell which of many documents carry the mark of a key, at a false discovery rate.

    Every document gets a p-value and a q-value; it is found where the
    q-value is at most --fdr, the false discovery rate. Fields of the input
    are kept under `input` and never read as results. A run that was stopped
    continues when the same command is started again. Files of a folder that
    are of no known kind are named and skipped.

        alimark audit -k key.json docs.jsonl -o found.jsonl
        alimark audit -k key.json letters/ -o found/
        alimark audit -k keys/ s3://bucket/docs -o found/ --engine ray

    Exit status: 0 once every document has its answer, found or not; 2 error.
    """
    from alimark.audit.corpora.audit import CorpusOptions
    from alimark.core.keys.folder import load_keys

    keys = load_keys(key)
    search = options.SearchOptions(
        fpr, excerpt, restructure, llm, variants, draws, tail, null, null_file, max_blocks, precision
    )
    settings = search.settings(keys)
    first_pass = _first_pass(first_pass, keys, learned=llm is not None)
    task = Audit(keys, [*(inputs or []), *(more_inputs or [])], output or "", settings, fpr, fdr, as_json)
    how = CorpusOptions(
        options.check_engine(engine), address, workers, worker_cpus, device, first_pass, text_field, by, block_size << 10,
        max_document << 20, time_limit, cache,
    )  # fmt: skip
    run_audit(task, how, draws, llm)


def _first_pass(level: float | None, keys: list[Key], *, learned: bool) -> float | None:
    """The level of the first pass; None where every document is tested in full."""
    from alimark.audit.auditor import FirstPass, can_look_first

    if level is None:  # with a chat model, most of the time is the chat model's
        return FirstPass().level if can_look_first(keys) and not learned else None
    return None if level == 1 else level


def run_audit(task: Audit, how: CorpusOptions, draws: int | None, llm: str | None) -> None:
    """Audits into a folder of Parquet files or into a JSONL file, by the name of the output."""
    if not task.inputs or not task.output:
        raise AlimarkError(
            "an audit needs documents and an output, e.g.: alimark audit -k key.json docs.jsonl -o found.jsonl"
        )
    if _is_folder(task.output):
        _audit_to_folder(task, how, draws, llm)
    elif how.engine != "plain":
        raise AlimarkError("--engine ray writes a folder; give one as --output, e.g. -o found/")
    else:
        _audit_to_jsonl(task, how, llm)


def _is_folder(output: str) -> bool:
    return "://" in output or output.endswith(("/", "\\")) or Path(output).is_dir() or not Path(output).suffix


def _audit_to_folder(task: Audit, how: CorpusOptions, draws: int | None, llm: str | None) -> None:
    from alimark.audit.corpora.audit import audit_corpus

    if llm is not None:
        raise AlimarkError("--llm goes with a JSONL file as --output; a corpus is audited without a chat model")
    if how.engine == "plain" and (how.address or how.workers):
        raise AlimarkError("--address and --workers go with --engine ray; add it, or leave them out")
    # On a cluster every machine fetches the models itself.
    loading.fetch_models(*sorted({key.embedder for key in task.keys if key.embedder}))
    try:
        with show.progress() as progress, loading.quiet_ray():
            summary = audit_corpus(
                task.keys, task.inputs, task.output, task.settings, how, fpr=task.fpr, fdr=task.fdr, draws=draws,
                progress=audit_output.BlockBar(progress),
            )  # fmt: skip
    except KeyboardInterrupt:
        show.note("stopped; every finished block is kept, and the same command continues from there")
        raise
    if task.as_json:
        show.print_json(summary)
    else:
        audit_output.print_corpus_summary(summary)


def _audit_to_jsonl(task: Audit, how: CorpusOptions, llm_name: str | None) -> None:
    from alimark.audit.auditor import Auditor, FirstPass
    from alimark.audit.run import audit_documents, check_rate, enough_draws

    check_rate(task.fdr)
    output = Path(task.output)
    documents = _documents(task.inputs, output, how)
    total = sum(1 for _ in documents)
    settings, limited = enough_draws(task.settings, total * len(task.keys), task.fdr)
    if limited:
        show.note(f"note: {limited}")
    llm = None if llm_name is None else loading.load_llm(llm_name)
    first_pass = None if how.first_pass is None else FirstPass(how.first_pass)
    auditor = Auditor(
        task.keys, settings, loading.load_embedder, llm=llm, first_pass=first_pass, check_level=max(task.fpr, task.fdr)
    )
    with show.progress() as progress:
        bar = audit_output.DocumentBar(progress, total)
        summary = audit_documents(
            documents, auditor, output, fpr=task.fpr, fdr=task.fdr, field=how.text_field, progress=bar
        )
    if task.as_json:
        show.print_json(summary)
    else:
        audit_output.print_summary(summary)


def _documents(inputs: list[str], output: Path, how: CorpusOptions) -> Iterable[Document]:
    """The documents of a JSONL file, or of anything else that the corpus reader knows."""
    if len(inputs) == 1 and _is_jsonl(inputs[0]):
        from alimark.audit.run import JsonlDocuments

        source = Path(inputs[0])
        if output.exists() and output.samefile(source):
            raise AlimarkError("--output must be another file than --input")
        return JsonlDocuments(source, how.text_field, how.max_document)
    from alimark.audit.corpora.audit import CorpusDocuments
    from alimark.audit.corpora.files import passed_over_message

    for name in inputs:
        if "://" not in name and output.resolve().is_relative_to(Path(name).resolve()):
            raise AlimarkError(f"{output} lies in {name}, among the documents; choose another --output")
    documents = CorpusDocuments(inputs, how.text_field, how.max_document)
    if documents.passed_over:
        show.note(f"note: {passed_over_message(documents.passed_over)}")
    return documents


def _is_jsonl(name: str) -> bool:
    """Whether a name stands for a single JSONL file; the file need not have a known suffix."""
    if "://" in name or Path(name).is_dir() or (any(sign in name for sign in "*?[") and not Path(name).exists()):
        return False
    from alimark.audit.documents.kinds import kind_of_name

    return kind_of_name(name) is None and Path(name).suffix.lower() not in (".parquet", ".pq")
