"""Shows the progress of an audit on stderr, and prints its summary."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from alimark.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from alimark.core._util.jsonl import Record

_MAX_FAULTS = 5
"""Faults that are printed; more are only counted."""
_MAX_NAMED = 20
"""Documents that are named on the console; the output names all."""
_LONGEST_NAME = 60


class DocumentBar:
    """Shows the documents done and their rate."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._ticker, self._total = progress, show.Ticker(), total
        self._task = progress.add_task("documents", total=total)
        self._answered = 0
        self._started = time.perf_counter()

    def step(self, skipped: int, answered: int) -> None:
        """Counts a batch: documents that were answered in an earlier run, and those answered now."""
        self._answered += answered
        rate = self._answered / (time.perf_counter() - self._started)
        self._progress.update(self._task, advance=skipped + answered, description=f"documents ({rate:.1f}/s)")
        self._ticker.tick(f"{self._answered} of {self._total} documents, {rate:.1f} a second")


class BlockBar:
    """Shows the blocks of a corpus done, the documents in them and their rate."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._ticker = progress, show.Ticker()
        self._task: TaskID | None = None
        self._documents = self._faults = 0
        self._blocks = self._blocks_done = 0
        self._started = time.perf_counter()

    def planned(self, blocks: int, done: int) -> None:
        """Called once, with the number of blocks and of those that an earlier run finished."""
        self._blocks, self._blocks_done = blocks, done
        self._task = self._progress.add_task("blocks", total=blocks, completed=done)
        if done:
            show.note(f"{done} of {blocks} blocks were done before")
        self._started = time.perf_counter()

    def step(self, documents: int) -> None:
        """Counts documents that were answered."""
        self._documents += documents
        rate = self._documents / (time.perf_counter() - self._started)
        if self._task is not None:
            description = f"blocks ({self._documents:,} documents, {rate:.1f}/s)"
            self._progress.update(self._task, description=description)
        self._ticker.tick(
            f"{self._documents:,} documents, {rate:.1f} a second, {self._blocks_done} of {self._blocks} blocks"
        )

    def block(self) -> None:
        """Counts a block that is finished."""
        self._blocks_done += 1
        if self._task is not None:
            self._progress.advance(self._task)

    def fault(self, message: str) -> None:
        """Prints a fault, such as a lost worker, unless there were many."""
        self._faults += 1
        if self._faults <= _MAX_FAULTS:
            show.note(f"note: {message}")
        elif self._faults == _MAX_FAULTS + 1:
            show.note("note: further faults of this kind are only counted")


def print_summary(summary: Record) -> None:
    """Prints the summary of an audit into a JSONL file."""
    answers = f"{summary['documents']:,} answers"
    others = summary["documents"] - summary["documents_read"]
    lines = [
        f"{summary['documents_read']:,} documents in, {answers} out, {summary['failed']:,} of them failed",
        *([f"{others:,} answers are of documents that are not among the inputs of this run"] if others else []),
        *_found_lines(summary),
        *_group_lines(summary),
        *_first_pass_lines(summary),
        f"{summary['documents_now']:,} documents in {summary['seconds']} s, {summary['documents_per_second']} a second; "
        f"share of time: {_shares(summary)}",
    ]
    show.stdout().print("\n".join(lines), markup=False)


def print_corpus_summary(summary: Record) -> None:
    """Prints the summary of an audit into a folder, with counts by key and by source."""
    lines = [
        f"{summary['documents']:,} documents, {summary['failed']:,} failed",
        *(f"  {count:,}: {why}" for why, count in summary["failures"].items()),
        *_found_lines(summary),
        *_untested_lines(summary),
        *(f"  {count:,} under key {key}" for key, count in summary["found_by_key"].items()),
        *(
            f"  {counts['found']:,} of {counts['documents']:,} in {printable(name)}"
            for name, counts in list(summary["found_by_source"].items())[:10]
            if counts["found"] and summary["sources"] > 1
        ),
        *_rate_lines(summary),
    ]
    show.stdout().print("\n".join(lines), markup=False)


def _found_lines(summary: Record) -> list[str]:
    """What was found, with the names of the documents."""
    sound = summary["documents"] - summary["failed"]
    lines = [
        f"{summary['found_at_fpr']:,} with p <= {summary['fpr']:g} (about {summary['fpr'] * sound:,.1f} expected were none "
        "marked)",
        f"{summary['found_at_fdr']:,} found at a false discovery rate of {summary['fdr']:g}",
    ]
    for document in summary["found_documents"][:_MAX_NAMED]:
        lines.append(f"  {printable(document['id'])}: p {document['p_value']:.2g}, q {document['q_value']:.2g}")
    if summary["found_at_fdr"] > _MAX_NAMED:
        lines.append(f"  and {summary['found_at_fdr'] - _MAX_NAMED:,} more, marked `found` in the output")
    return lines


def _untested_lines(summary: Record) -> list[str]:
    """A note where documents of a corpus may have been found together by chance."""
    if summary["found_at_fdr"] < 2:
        return []
    return [
        "whether the documents share text was not tested: if they come from one template, all of them may be found by "
        "chance; audit those that were found once more, into a .jsonl file"
    ]


def _group_lines(summary: Record) -> list[str]:
    """What was seen of documents that share text, and so are found together by chance."""
    shared = summary["shared_text"]
    lines = []
    for group in shared["groups"]:
        examples = ", ".join(map(printable, group["examples"]))
        fate = (
            f"{group['undecided']:,} of them are undecided"
            if group["undecided"]
            else "chance is no explanation, they stay"
        )
        lines.append(
            f"{group['documents']:,} documents, of which {group['found']:,} looked marked ({examples}, ...), share so much "
            f"text that they count as {group['effective']:.1f}: under {100 * group['chance']:.2g}% of random keys, half as "
            f"many would look as marked; {fate}"
        )
    if shared["not_checked"]:
        lines.append(
            f"whether the documents share text could not be tested for {shared['not_checked']:,}: if they come from one "
            "template, all of them may be found by chance"
        )
    return lines


def printable(name: str) -> str:
    """A name from a document as it may be printed: without control characters, and not longer than a line."""
    shown = "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in name)
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 3] + "..."


def _shares(summary: Record) -> str:
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in summary["time_shares"].items())


def _first_pass_lines(summary: Record) -> list[str]:
    if "first_pass" not in summary:
        return []
    first = summary["first_pass"]
    return [f"first pass: {first['suspicious']:,} of {first['documents']:,} documents went on to the full test"]


def _rate_lines(summary: Record) -> list[str]:
    lines = _first_pass_lines(summary)
    if summary["documents_now"]:
        lines.append(
            f"{summary['documents_now']:,} documents in {summary['seconds']} s, "
            f"{summary['documents_per_second']} a second at work; "
            f"{summary['units_embedded']:,} of {summary['units_asked']:,} units embedded; workers' time: {_shares(summary)}"
        )
    if summary["workers_lost"]:
        lines.append(f"{summary['workers_lost']} workers were lost on the way and replaced")
    return lines
