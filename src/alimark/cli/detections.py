"""Prints detections: the verdict, the p-value, the evidence behind them and the alignment with the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from alimark.cli import show

if TYPE_CHECKING:
    from rich.table import Table

    from alimark.detection.results import AlignedDetection, AlignedStep, Detection, Verdict

_COLOURS = {"found": "bold green", "not found": "bold", "too short to tell": "bold yellow"}


def print_detections(detections: Mapping[str, list[Detection]], fpr: float) -> None:
    """Prints the detections of each text, best key first; of a single text also the alignment."""
    from rich.markup import escape

    from alimark.detection.results import AlignedDetection

    console = show.stdout()
    for name, ranked in detections.items():
        best = ranked[0]
        for warning in best.warnings:
            show.note(f"warning: {name}: {warning}")
        verdict = best.verdict(fpr)
        console.print(f"{escape(name)}: [{_COLOURS[verdict]}]{verdict}[/]")
        for line in _lines(ranked, verdict, fpr):
            console.print(f"  {line}")
        if len(detections) == 1 and isinstance(best, AlignedDetection):
            console.print(alignment_table(best))


def _lines(ranked: list[Detection], verdict: Verdict, fpr: float) -> Iterator[str]:
    """The lines below the verdict."""
    from alimark.detection.results import AlignedDetection

    best = ranked[0]
    z = "" if best.z is None else f", z {best.z:.2f}"
    keys = "" if best.keys_tried == 1 else f", best of {best.keys_tried:,} keys"
    yield f"p {p_text(best)}, score {best.score:.2f}{z}, {len(best.sentences)} sentences, key {best.key_id}{keys}"
    if verdict == "too short to tell":
        if isinstance(best, AlignedDetection):
            need = f"about {verdict.needed}" if verdict.needed else "more than 40"
            yield f"{need} sentences would be needed at a false-positive rate of {fpr:g}"
        else:
            yield f"a text of this length has a p-value of {best.p_least:.2g} at the least"
    for name, value in best.evidence.items():
        yield f"{name.replace('_', ' ')}: {value}"
    for other in ranked[1:]:
        yield f"next: key {other.key_id}, p {p_text(other)}, score {other.score:.2f}"
    if isinstance(best, AlignedDetection):
        yield from _aligned_lines(best)


def _aligned_lines(detection: AlignedDetection) -> Iterator[str]:
    if payload := detection.payload:
        others = ", ".join(f"{value} ({share:.2g})" for value, share in payload.likeliest[1:3] if share > 0.001)
        next_likely = f"; next: {others}" if others else ""
        yield f"payload {payload.value}, right with probability {payload.confidence:.4g}{next_likely}"
    if restructured := detection.restructured:
        dropped = ", ".join(f"{count} {why}" for why, count in restructured.dropped.items())
        best = f"restructuring {restructured.best}" if restructured.best else "the text as it is"
        rejected = f" ({dropped})" if dropped else ""
        yield f"{len(restructured.texts)} restructurings by {restructured.llm} tried{rejected}; best: {best}"
    for passage in detection.passages:
        where = f"sentences {passage.first} to {passage.last}, blocks {passage.first_block} to {passage.last_block}"
        yield f"passage: {where}, p {passage.p_value:.3g}"
    if detection.near_flips:
        yield f"{detection.near_flips} bits lie within 1e-4 of a flip"


def p_text(detection: Detection) -> str:
    """The p-value as text; `<=` where no random key scored as high, so that it is only a bound."""
    floor = detection.keys_tried / (detection.draws + 1) if detection.draws else 0.0
    exact = detection.p_value > floor or detection.stopped_early
    text = f"{detection.p_value:.3g}" if exact else f"<= {detection.p_value:.2g}"
    return text if detection.p_tail is None else f"{text} (tail estimate {detection.p_tail:.1g})"


_LONGEST_BAR = 16
"""Cells of the bar of agreed bits; it is scaled down for larger blocks, so that the table fits a terminal."""


def alignment_table(detection: AlignedDetection) -> Table:
    """A table of the sentences, the blocks they were aligned with, and how many bits agreed."""
    from rich.table import Table
    from rich.text import Text

    size = detection.block_size
    cells = min(size, _LONGEST_BAR)
    table = Table(box=None, header_style="bold", pad_edge=False)
    widths = {"block": 5, "sentence": 8, "move": 14, "bits agreed": cells + 6}
    for name, width in widths.items():
        table.add_column(name, justify="right" if width < 10 else "left", no_wrap=True, min_width=width)
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=90)
    for step in detection.alignment:
        style = _style(step, size)
        agreed = ""
        if step.agreed is not None:
            full = round(step.agreed * cells / size)
            agreed = f"{'■' * full}{'·' * (cells - full)} {step.agreed}/{size}"
        move = step.kind + (f" ({step.part})" if step.part else "")
        block = "" if step.block is None else str(step.block)
        sentences = "+".join(str(i) for i in step.sentences)
        row_style = "" if agreed else style
        table.add_row(block, sentences, move, Text(agreed, style=style), Text(step.text), style=row_style)
    return table


def _style(step: AlignedStep, block_size: int) -> str:
    if step.agreed is None:
        return "dim"
    share = step.agreed / block_size
    return "green" if share >= 0.75 else "yellow" if share > 0.5 else "red"
