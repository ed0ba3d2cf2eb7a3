"""alimark calibrate: measures how often a key, and keys like it, find a mark in human text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import loading, options, show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from rich.table import Table

    from alimark.core._util.jsonl import Record
    from alimark.core.keys.key import Key

LikeKey = Annotated[Path, typer.Option("-k", "--key", help="Key file; fresh keys have the same parameters.")]
Sentences = Annotated[str, typer.Option(help="Lengths in sentences that texts are cut to, such as 12,8,4.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Also measure one fresh key for each text.")]
Keys = Annotated[int, typer.Option(help="Also measure the spread of the rates over so many fresh keys.")]
Centring = Annotated[bool, typer.Option("--centring", help="Measure the spread once more, centred by a corpus mean.")]
Draws = Annotated[int, typer.Option(help="Random keys behind each p-value.")]
CentreFile = Annotated[Path | None, typer.Option(help="Write the corpus mean to this file, for `keygen --centre`.")]

_STATISTICS = {"mean": "mean", "std": "standard deviation", "least": "least", "most": "most"}


def calibrate(
    key: LikeKey,
    human: options.HumanTextsOption = None,
    sentences: Sentences = "12",
    fresh: Fresh = False,
    keys: Keys = 0,
    centring: Centring = False,
    draws: Draws = 999,
    centre_out: CentreFile = None,
    as_json: options.JsonOutput = False,
) -> None:
    """Measure false-positive rates on human text: of this key, and of keys like it.

    A p-value is exact over random keys, for each text. Over many texts under
    one key, rates can differ from it where texts share a direction of the
    embedding. So check a key before you rely on it:

        alimark calibrate -k key.json --human texts.jsonl
        alimark calibrate -k key.json --human texts.jsonl --keys 200 --centring
    """
    from alimark.core.keys.key import Key
    from alimark.core.schemes.registry import aligns
    from alimark.core.text.human_text import human_texts

    try:
        lengths = [int(length) for length in sentences.split(",")]
    except ValueError:
        raise AlimarkError("--sentences takes whole numbers such as 12,8,4") from None
    loaded = Key.load(key)
    if (centring or centre_out is not None) and not aligns(loaded.scheme):
        raise AlimarkError("--centring and --centre-out work with AliMark's keys alone; leave them out")
    if not human:
        show.note("no --human text given: calibrating on Python's own manual, all of one subject")
    how = {"draws": draws, "fresh": fresh, "keys": keys, "centring": centring}
    reports = _reports(loaded, human_texts(human or []), lengths, how, centre_out)
    if as_json:
        show.print_json(list(reports))
        return
    for report in reports:  # each as soon as it is computed: the next length may take long
        show.print_table(rates_table(report))
        show.stdout().print(f"{report['conclusion']}\n", markup=False, soft_wrap=True)


def _reports(
    key: Key, texts: list[str], lengths: list[int], how: dict[str, Any], centre_out: Path | None
) -> Iterator[Record]:
    from alimark.audit.calibration import Detected, Embedded, HumanTexts, Sample, calibration_report, write_centre
    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.schemes.registry import aligns

    embedder = loading.load_embedder(key.embedder) if key.embedder else None
    for length in lengths:
        sample = Sample.of(texts, length, key.splitter)
        counts = f"{len(sample.texts)} texts, {sample.too_short} too short, {sample.repeats} repeats"
        show.note(f"{length} sentences: {counts}; embedding")
        ready: HumanTexts = Detected(sample.texts, embedder)
        if embedder is not None and aligns(key.scheme):
            ready = Embedded.of(sample.texts, key, embedder, RandomKeys(draws=how["draws"]))
            if centre_out is not None and length == lengths[0]:
                write_centre(centre_out, ready, embedder)
                show.note(f"wrote the corpus mean to {centre_out}")
        with show.progress() as bar:
            # Called with a title and a total; what it returns advances the bar.
            def start(title: str, total: int) -> partial[None]:
                return partial(bar.advance, bar.add_task(title, total=total))

            report = calibration_report(sample, ready, key, start, **how)
        yield report


def rates_table(report: Record) -> Table:
    """A table of the shares of texts with small p-values."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{report['texts']} texts of {report['sentences']} sentences")
    for level in report["levels"]:
        table.add_column(f"p <= {level:g}", justify="right", no_wrap=True)
    table.add_row("99% interval of a sound test", *(f"{100 * a:.2f}-{100 * b:.2f}%" for a, b in report["interval_99"]))
    for name, values in _rows(report):
        table.add_row(name, *(f"{100 * value:.2f}%" for value in values))
    return table


def _rows(report: Record) -> Iterator[tuple[str, list[float]]]:
    for whose, keys, z in (
        ("this key", "this_key", "z_as_normal"),
        ("one fresh key a text", "fresh_keys", "fresh_z_as_normal"),
    ):
        if keys in report:
            yield f"{whose}, ties broken at random", report[keys]["p_randomised"]
            yield f"{whose}, p-value as reported", report[keys]["p"]
        if z in report:
            yield f"{whose}, if z were looked up in a normal table", report[z]
    for name, statistics in report.get("spread", {}).items():
        if isinstance(statistics, dict):
            for statistic, shown in _STATISTICS.items():
                yield f"{report['spread']['keys']} keys, {name}, {shown}", statistics[statistic]
