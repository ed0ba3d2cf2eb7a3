"""Shows the progress of an audit on stderr, and prints its summary."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from alimark.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.core._util.jsonl import Record

_MAX_FAULTS = 5
"""Faults that are printed; more are only counted."""
_MAX_NAMED = 20
"""Documents that are named on the console; the output names all."""
_LONGEST_NAME = 60


class AuditBar:
    """Shows the share of an audit that is done, the documents answered and their rate."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._ticker = progress, show.Ticker()
        self._documents = self._faults = self._works = 0
        self._done = 0.0

    def planned(self, works: int, done: int) -> None:
        """Begins, with the units of work and those that an earlier run finished."""
        self._works, self._done = works, done
        if done:
            show.note(f"{done} of {works} blocks were done before")
        self._task = self._progress.add_task("documents", total=100, completed=100 * done // max(1, works))
        self._started = time.perf_counter()

    def step(self, documents: int, share: float) -> None:
        """Counts documents that were answered, and the share of a unit of work that is done with them."""
        self._documents += documents
        self._done += share
        rate = self._documents / (time.perf_counter() - self._started)
        percent = 100 * self._done / self._works
        described = f"{self._documents:,} documents, {rate:.1f} a second"
        self._progress.update(self._task, description=described, completed=percent)
        self._ticker.tick(f"{described}, {percent:.0f}%")

    def fault(self, message: str) -> None:
        """Prints a fault, such as a lost worker, unless there were many."""
        self._faults += 1
        if self._faults <= _MAX_FAULTS:
            show.note(f"note: {message}")
        elif self._faults == _MAX_FAULTS + 1:
            show.note("note: further faults of this kind are only counted")


def print_summary(summary: Record) -> None:
    """Prints the summary of an audit, with counts by key and by source where there are several."""
    others = summary["documents"] - summary["documents_read"]
    several_keys, several_sources = len(summary["found_by_key"]) > 1, summary["sources"] > 1
    lines = [
        f"{summary['documents_read']:,} documents in, {summary['documents']:,} answers out, {summary['failed']:,} of them "
        "failed",
        *(f"  {count:,}: {why}" for why, count in summary["failures"].items()),
        *([f"{others:,} answers are of documents that are not among the inputs of this run"] if others else []),
        *_found_lines(summary),
        *_group_lines(summary),
        *(f"  {count:,} under key {key}" for key, count in summary["found_by_key"].items() if several_keys),
        *(
            f"  {counts['found']:,} of {counts['documents']:,} in {printable(name)}"
            for name, counts in list(summary["found_by_source"].items())[:10]
            if counts["found"] and several_sources
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


def _rate_lines(summary: Record) -> list[str]:
    lines = []
    if first := summary.get("first_pass"):
        lines.append(
            f"first pass: {first['suspicious']:,} of {first['documents']:,} documents went on to the full test"
        )
    if summary["documents_now"]:
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in summary["time_shares"].items())
        lines.append(
            f"{summary['documents_now']:,} documents in {summary['seconds']} s, {summary['documents_per_second']} a second at "
            f"work; {summary['units_embedded']:,} of {summary['units_asked']:,} units embedded; workers' time: {shares}"
        )
    if summary["workers_lost"]:
        lines.append(f"{summary['workers_lost']} workers were lost on the way and replaced")
    return lines
