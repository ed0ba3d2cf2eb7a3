"""Prints detections: a sentence for everybody, verdict and p-value, the evidence and the alignment with the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from alimark.cli import show

if TYPE_CHECKING:
    from rich.table import Table

    from alimark.core.detection.aligned_results import AlignedDetection
    from alimark.core.detection.results import Detection, Verdict

_COLOURS = {"found": "bold green", "not found": "bold", "too short to tell": "bold yellow"}


def print_detections(detections: Mapping[str, list[Detection]], fpr: float, alignment: bool | None = None) -> None:
    """Prints the detections of each text, best key first.

    The alignment is printed where `alignment` is set and, unless it is unset, of a single text that carries the mark: in a
    text without one, agreement with the key is chance.
    """
    from rich.markup import escape

    from alimark.core.detection.aligned_results import AlignedDetection

    console = show.stdout()
    for name, ranked in detections.items():
        best = ranked[0]
        for warning in best.warnings:
            show.note(f"warning: {name}: {warning}")
        verdict = best.verdict(fpr)
        console.print(f"{escape(name)}: [{_COLOURS[verdict]}]{escape(best.statement(fpr))}[/]", soft_wrap=True)
        for line in _lines(ranked, verdict, fpr):
            console.print(f"  {line}", markup=False, soft_wrap=True)
        wanted = verdict.found and len(detections) == 1 if alignment is None else alignment
        if wanted and isinstance(best, AlignedDetection):
            console.print(alignment_table(best, console.width))


def _lines(ranked: list[Detection], verdict: Verdict, fpr: float) -> Iterator[str]:
    """The lines below the statement."""
    from alimark.core.detection.aligned_results import AlignedDetection
    from alimark.core.detection.fields import in_words
    from alimark.core.detection.statements import counted

    best = ranked[0]
    sentences = counted(len(best.sentences), "sentence")
    yield f"{verdict} at a false-positive rate of {fpr:g}: p {best.p_text}, {best.score_text}, {sentences}, key {best.key_id}"
    for name, value in best.evidence.items():
        yield f"{name.replace('_', ' ')}: {value}"
    for other in ranked[1:]:
        yield f"next: key {other.key_id}, p {other.p_text}, score {other.score:.2f}"
    if isinstance(best, AlignedDetection) and (caveat := best.caveat(fpr)):
        yield caveat
    yield from in_words(best)


_NARROW = 110  # terminals with fewer columns get a table with shorter bars
_LONGEST_TEXT = 90
_SMALL_P = 0.01
"""With a p-value up to this a text carries the mark, even where the probability of each sentence is estimated as 0."""


def alignment_table(detection: AlignedDetection, width: int = 160) -> Table:
    """A table of the sentences: what happened to them, how strongly they carry the mark, and how probably.

    A bar is as long as the share of random keys that fit the sentence less well. Colours follow the probability, which allows
    for the neighbours.
    """
    from rich.table import Table
    from rich.text import Text

    from alimark.core.detection.aligned_results import LIKELY, PERHAPS

    cells = 8 if width < _NARROW else 16
    table = Table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    chances = detection.sentence_chances
    weak = bool(chances) and detection.p_value <= _SMALL_P and max(chances) < PERHAPS
    table.caption = (
        "strength: how well a sentence fits this key; half a bar is chance. marked: its probability of the mark."
    )
    if weak:
        table.caption += " No sentence shows the mark by itself; the text as a whole does."
    widths = {"block": 5, "sentence": 8, "change": 15, "strength": max(cells, 8), "marked": 6}
    for name, least in widths.items():
        left = name in ("change", "strength")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=least)
    # The gaps between columns are one blank wide on either side.
    room = width - sum(widths.values()) - 2 * len(widths) - 1
    table.add_column("text", no_wrap=True, overflow="ellipsis", width=max(8, min(room, _LONGEST_TEXT)))
    for step in detection.alignment:
        chance = detection.step_chance(step)
        style, bar = "dim", ""
        if step.strength is not None:
            style = "green" if chance >= LIKELY else "yellow" if chance >= PERHAPS else ""
            full = round(step.strength * cells)
            bar = f"{'■' * full}{'·' * (cells - full)}"
        block = "" if step.block is None else str(step.block)
        sentences = "+".join(str(i) for i in step.sentences)
        marked = f"{100 * chance:.0f}%" if bar and chances and not weak else ""
        row_style = "" if bar else style
        table.add_row(block, sentences, step.in_words, Text(bar, style=style), marked, Text(step.text), style=row_style)
    return table
