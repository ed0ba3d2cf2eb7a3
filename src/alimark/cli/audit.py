"""alimark audit: tells which of many documents carry the mark of a key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, options, show
from alimark.core.detection.statements import counted, how_often
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.audit.pool import Cluster
    from alimark.audit.worker import Audit
    from alimark.core._util.jsonl import Record
    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.keys.key import Key

_MAX_FAULTS = 5  # faults that are printed; more are only counted
_MAX_NAMED = 20  # documents that are named on the console; the output names all
_LONGEST_NAME = 60

Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Documents: JSONL (a `text` on each line, also .gz), Parquet, files of one document each (PDF, DOCX, ODT, HTML, "
        "EPUB, RTF, Markdown, e-mail, text), folders, patterns, and storage such as s3://bucket/docs. Web addresses are not "
        "fetched."
    ),
]
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
FirstPassLevel = Annotated[
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
AllowFailed = Annotated[
    bool,
    typer.Option(
        "--allow-failed", help="Exit with 0 although documents could not be tested; they are named all the same."
    ),
]
Cache = Annotated[int, typer.Option(min=0, help="Megabytes of embeddings that each worker keeps.")]


def audit(
    key: options.KeyFiles,
    inputs: Inputs = [],  # noqa: B006 - typer copies it
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
    precision: options.PrecisionOption = "auto",
    text_field: TextField = "text",
    by: By = "",
    max_document: MaxDocument = 8,
    engine: options.EngineName = "plain",
    address: options.Address = None,
    workers: Workers = None,
    worker_cpus: WorkerCpus = 1,
    device: Device = None,
    first_pass: FirstPassLevel = None,
    block_size: BlockSize = 2048,
    time_limit: TimeLimit = 120,
    cache: Cache = 256,
    allow_failed: AllowFailed = False,
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

    Exit status: 0 once every document has its answer, found or not; 1 where
    documents could not be tested, unless --allow-failed; 2 error.
    """
    from alimark.core.keys.key import load_keys

    keys = load_keys(key)
    settings = options.search_settings(keys, fpr, excerpt, restructure, llm, variants, draws, tail, null, precision)
    asked = _asked(keys, inputs, output or "", settings, draws, first_pass, llm)
    task = replace(
        asked, fpr=fpr, fdr=fdr, by=by, device=device, text_field=text_field, block_bytes=block_size << 10,
        max_document=max_document << 20, time_limit=time_limit, cache=cache,
    )  # fmt: skip
    failed = _run_audit(task, _cluster(engine, address, workers, worker_cpus, device), llm, as_json)
    raise typer.Exit(1 if failed and not allow_failed else 0)


def _asked(
    keys: list[Key], inputs: list[str], output: str, settings: RandomKeys, draws: int | None, level: float | None,
    llm: str | None,
) -> Audit:  # fmt: skip
    """The audit: as `alimark detect` where there are few documents, else with a first pass where that is possible."""
    from alimark.audit.auditor import FirstPass, can_look_first
    from alimark.audit.files import is_small
    from alimark.audit.worker import Audit

    if draws is None and level is None and llm is None and is_small(inputs, output):
        return Audit.as_detect(keys, inputs, output, settings)
    if level is None:  # with a chat model, most of the time is the chat model's
        first_pass = FirstPass() if can_look_first(keys) and llm is None else None
    else:
        first_pass = None if level == 1 else FirstPass(level)
    return replace(Audit.of(keys, inputs, output, settings, draws), first_pass=first_pass)


def _cluster(
    engine: str, address: str | None, workers: int | None, worker_cpus: int, device: str | None
) -> Cluster | None:
    """The Ray cluster to use, or None where this process audits."""
    from alimark.audit.pool import Cluster

    if not options.uses_ray(engine, address, workers, "workers"):
        return None
    return Cluster(address, workers, worker_cpus, None if device and device != "cpu" else 0.0)


def _run_audit(task: Audit, cluster: Cluster | None, llm: str | None, as_json: bool) -> int:
    """Runs an audit with a progress bar, prints its summary, and returns the number of documents that failed."""
    from alimark.audit.run import run

    if not task.inputs or not task.output:
        raise AlimarkError(
            "an audit needs documents and an output, e.g.: alimark audit -k key.json docs.jsonl -o found.jsonl"
        )
    # On a cluster every machine fetches the models itself.
    loading.fetch_models(*sorted({key.open().embedder for key in task.keys} - {""}))
    chat_model = None if llm is None else loading.load_llm(llm)
    try:
        with show.progress() as progress, loading.quiet_ray():
            outcome = run(task, cluster=cluster, llm=chat_model, progress=AuditBar(progress))
    except KeyboardInterrupt:
        show.note("stopped; what is answered is kept, and the same command continues from there")
        raise
    summary = outcome.record()
    (show.print_json if as_json else print_summary)(summary)
    return int(summary["failed"])


class AuditBar:
    """Shows the share of an audit that is done, the documents answered and their rate."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._documents = self._faults = self._works = 0
        self._done = 0.0

    def planned(self, works: int, done: int) -> None:
        """Begins, with the units of work and those that an earlier run finished."""
        self._works, self._done = works, done
        if done:
            show.note(f"{done} of {works} blocks were done before")
        self._task = show.Task(self._progress, "documents", 100, 100 * done // max(1, works))

    def step(self, documents: int, share: float) -> None:
        """Counts documents that were answered, and the share of a unit of work that is done with them."""
        self._documents += documents
        self._done += share
        percent = 100 * self._done / self._works
        described = f"{self._documents:,} documents, {self._task.rate(self._documents):.1f} a second"
        self._task.show(f"{described}, {percent:.0f}%", percent, title=described)

    def fault(self, message: str) -> None:
        """Prints a fault, such as a lost worker, unless there were many."""
        self._faults += 1
        if self._faults <= _MAX_FAULTS:
            show.note(f"note: {message}")
        elif self._faults == _MAX_FAULTS + 1:
            show.note("note: further faults of this kind are only counted")


def print_summary(summary: Record) -> None:
    """Prints the summary of an audit: what it says, what failed, and counts by key and by source where there are several."""
    others = summary["documents"] - summary["documents_read"]
    several_keys, several_sources = len(summary["found_by_key"]) > 1, 1 < summary["sources"] < summary["documents"]
    lines = [
        summary["statement"],
        *_found_lines(summary),
        *_group_lines(summary),
        *_failed_lines(summary),
        *([f"{others:,} of the answers are about documents of earlier runs into this output."] if others else []),
        *(f"  {count:,} under key {key}" for key, count in summary["found_by_key"].items() if several_keys),
        *(
            f"  {counts['found']:,} of {counts['documents']:,} in {shown_name(name)}"
            for name, counts in list(summary["found_by_source"].items())[:10]
            if counts["found"] and several_sources
        ),
        *_rate_lines(summary),
    ]
    show.stdout().print("\n".join(lines), markup=False, soft_wrap=True)


def _found_lines(summary: Record) -> list[str]:
    """The documents that were found, and how many chance alone would give."""
    lines = []
    for document in summary["found_documents"][:_MAX_NAMED]:
        often = how_often(document["p_value"], at_most=document["at_most"])
        p_text = f"{'<= ' if document['at_most'] else ''}{document['p_value']:.2g}"
        lines.append(f"  {shown_name(document['id'])}: by chance {often} (p {p_text}, q {document['q_value']:.2g})")
    if summary["found_at_fdr"] > _MAX_NAMED:
        lines.append(f"  and {summary['found_at_fdr'] - _MAX_NAMED:,} more, marked `found` in the output")
    sound = summary["documents"] - summary["failed"]
    by_chance = f"where none is marked, chance gives about {summary['fpr'] * sound:.2g}"
    return [*lines, f"{counted(summary['found_at_fpr'], 'document')} with p <= {summary['fpr']:g}; {by_chance}."]


def _failed_lines(summary: Record) -> list[str]:
    """The documents that could not be tested, and why."""
    lines = [
        "These could not be tested. Mend them and audit them into another output, or accept it with --allow-failed:"
    ]
    for document in summary["failed_documents"][:_MAX_NAMED]:
        why = document["error"].removeprefix(f"{document['file']} ").removeprefix("cannot be read: ")
        lines.append(f"  {shown_name(document['id'])}: {why}")
    if summary["failed"] > _MAX_NAMED:
        lines.append(f"  and {summary['failed'] - _MAX_NAMED:,} more, with `failed` in the output")
    return lines if summary["failed"] else []


def _group_lines(summary: Record) -> list[str]:
    """What was seen of documents that share text, and so are found together by chance; what it means, and what to do."""
    shared = summary["shared_text"]
    lines = []
    for group in shared["groups"]:
        examples = ", ".join(map(shown_name, group["examples"]))
        seen = (
            f"{group['documents']:,} documents share much of their text ({examples}, ...). Chance makes all of them look "
            f"marked, or none, so they count as {counted(max(1, round(group['effective'])), 'document')}."
        )
        often = how_often(group["chance"], at_most=not group["undecided"])
        if group["undecided"]:
            fate = (
                f"{group['undecided']:,} of them are undecided: with unmarked documents that happens {often}, which is too "
                "often to rely on. Check documents with text of their own, or the parts that these do not share."
            )
        else:
            fate = f"They are named all the same: with unmarked documents that happens {often}."
        lines.append(f"{seen} {fate}")
    if shared["not_checked"]:
        lines.append(
            f"Whether {counted(shared['not_checked'], 'named document')} share text could not be tested. If they come from one "
            "template, all of them may be named by chance: look at one that has text of its own."
        )
    return lines


def shown_name(name: str) -> str:
    """A document's name as it is printed: paths from here, without control characters, and not longer than a line."""
    if name.startswith(here := f"{Path.cwd().as_posix()}/"):
        name = name.removeprefix(here)
    shown = "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in name)
    return shown if len(shown) <= _LONGEST_NAME else f"...{shown[3 - _LONGEST_NAME :]}"


def _rate_lines(summary: Record) -> list[str]:
    lines = []
    if first := summary.get("first_pass"):
        lines.append(
            f"{first['suspicious']:,} of {first['documents']:,} documents went on from the quick test to the full one."
        )
    if summary["documents_now"]:
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in summary["time_shares"].items())
        lines.append(
            f"{counted(summary['documents_now'], 'document')} in {summary['seconds']} s: {shares}; "
            f"{summary['units_embedded']:,} of {summary['units_asked']:,} units embedded."
        )
    if summary["workers_lost"]:
        lines.append(f"{counted(summary['workers_lost'], 'worker')} died on the way and were replaced.")
    return lines
