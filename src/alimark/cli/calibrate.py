"""alimark calibrate: how often a key, and keys like it, call human text marked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.calibration.rates import Embedded
    from alimark.detection.settings import DetectionSettings
    from alimark.embedding.base import Embedder
    from alimark.keys.key import Key


@dataclass(frozen=True)
class _Job:
    key: Key
    embedder: Embedder
    settings: DetectionSettings
    fresh: bool
    keys: int
    centring: bool


def calibrate(
    key: Annotated[Path, typer.Option("-k", "--key", help="Key file; fresh keys are made like it.")],
    human: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL of human texts (`text` or `natural_text`), plain or .gz; default: Python's own manual."
        ),
    ] = None,
    sentences: Annotated[str, typer.Option(help="Lengths that texts are cut to.")] = "12",
    fresh: Annotated[bool, typer.Option("--fresh", help="Also one fresh key for each text.")] = False,
    keys: Annotated[int, typer.Option(help="Also the spread of rates over so many fresh keys.")] = 0,
    centring: Annotated[
        bool, typer.Option("--centring", help="The spread once more, centred by a corpus mean.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Random keys behind each p-value.")] = 999,
    centre_out: Annotated[Path | None, typer.Option(help="Write the corpus mean, for `keygen --centre`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure false-positive rates on human text: of this key, and of keys like it.

    A p-value holds over keys, for each text. For one key over many texts it
    holds only as far as texts share no direction, so check a key before
    relying on it:

        alimark calibrate -k key.json --human texts.jsonl
        alimark calibrate -k key.json --human texts.jsonl --keys 200 --centring
    """
    from alimark.detection.settings import DetectionSettings
    from alimark.keys.key import Key
    from alimark.schemes.registry import aligns

    try:
        lengths = [int(n) for n in sentences.split(",")]
    except ValueError:
        raise AlimarkError("--sentences takes whole numbers such as 12,8,4") from None
    loaded = Key.load(key)
    texts = _texts(human)
    if not aligns(loaded.scheme):
        if centring or centre_out is not None:
            raise AlimarkError(
                "a corpus mean centres the projections of AliMark alone; leave --centring and --centre-out out"
            )
        _tell((_measure_rival(loaded, texts, length, draws, fresh, keys) for length in lengths), as_json)
        return
    job = _Job(loaded, show.load_embedder(loaded.embedder), DetectionSettings(draws=draws), fresh, keys, centring)
    _tell((_measure(job, texts, length, centre_out if length == lengths[0] else None) for length in lengths), as_json)


def _tell(results: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Tables come as soon as they are known: the next length may take long."""
    if as_json:
        show.print_json(list(results))
    else:
        for result in results:
            _print(result)


def _measure_rival(key: Key, texts: list[str], length: int, draws: int, fresh: bool, keys: int) -> dict[str, Any]:
    """By detecting every text, which any scheme can do."""
    import numpy as np

    from alimark.calibration import human_text as corpus
    from alimark.calibration import rates as measure
    from alimark.detection.stats.p_values import RandomKeys
    from alimark.schemes.api import load

    kept, short, repeats = corpus.cut(texts, length, key.splitter)
    if len(kept) < 20:
        raise AlimarkError(f"only {len(kept)} distinct texts have {length} sentences; at least 20 are needed")
    mark, settings = show.load_mark(key), RandomKeys(draws=draws)
    own = measure.values_of(mark, kept, settings)
    result: dict[str, Any] = {
        "sentences": length, "texts": len(kept), "too_short": short, "repeats": repeats, "key_id": key.id,
        "levels": list(measure.LEVELS),
        "interval_99": [measure.binomial_interval(len(kept), level) for level in measure.LEVELS],
        "this_key": {"p": measure.shares(own.p), "p_randomised": measure.shares(own.p_randomised)},
        "z_as_normal": measure.z_shares(own.raw),
    }  # fmt: skip
    embedder = getattr(mark, "embedder", None)
    if fresh:
        each = [measure.values_of(load(measure.another(key), embedder=embedder), [text], settings) for text in kept]
        p, randomised, raw = (
            np.concatenate([getattr(one, name) for one in each]) for name in ("p", "p_randomised", "raw")
        )
        result["fresh_keys"] = {"p": measure.shares(p), "p_randomised": measure.shares(randomised)}
        result["fresh_z_as_normal"] = measure.z_shares(raw)
    if keys:
        some = (measure.values_of(load(measure.another(key), embedder=embedder), kept, settings) for _ in range(keys))
        rates = np.array([measure.shares(one.p_randomised) for one in some])
        result["spread"] = {"keys": keys, "texts": len(kept), "as is": _summary(rates)}
    return result


def _texts(human: list[Path] | None) -> list[str]:
    from alimark.calibration import human_text as corpus

    if not human:
        show.note("no --human text given: calibrating on Python's own manual, all of one subject")
        return list(corpus.language_reference())
    return [text for path in human for text in corpus.read_texts(path)]


def _measure(job: _Job, texts: list[str], length: int, centre_out: Path | None) -> dict[str, Any]:
    from alimark.calibration import human_text as corpus
    from alimark.calibration import rates as measure

    kept, short, repeats = corpus.cut(texts, length, job.key.splitter)
    if len(kept) < 20:
        raise AlimarkError(f"only {len(kept)} distinct texts have {length} sentences; at least 20 are needed")
    show.note(f"{length} sentences: {len(kept)} texts, {short} too short, {repeats} repeats; embedding")
    embedded = measure.Embedded.of(kept, job.key, job.embedder, job.settings)
    if centre_out is not None:
        _write_centre(centre_out, embedded, job.embedder)
    own = measure.p_values(embedded, job.key, job.settings)
    result: dict[str, Any] = {
        "sentences": length,
        "texts": len(kept),
        "too_short": short,
        "repeats": repeats,
        "key_id": job.key.id,
        "levels": list(measure.LEVELS),
        "interval_99": [measure.binomial_interval(len(kept), level) for level in measure.LEVELS],
        "this_key": {"p": measure.shares(own.p), "p_randomised": measure.shares(own.p_randomised)},
    }
    if not job.key.soft:
        result["z_as_normal"] = measure.z_shares(own.raw)
    with show.progress() as bar:
        if job.fresh:
            task = bar.add_task("one key a text", total=len(kept))
            values = measure.fresh_keys(embedded, job.key, job.embedder, job.settings, lambda n: bar.advance(task, n))
            result["fresh_keys"] = {
                "p": measure.shares(values.p),
                "p_randomised": measure.shares(values.p_randomised),
            }
            if not job.key.soft:
                result["fresh_z_as_normal"] = measure.z_shares(values.raw)
        if job.keys:
            result["spread"] = _spread(job, embedded, bar)
    return result


def _spread(job: _Job, embedded: Embedded, bar: Any) -> dict[str, Any]:
    """Per-key rates on every second text; the mean that centres them comes from the others.

    Alternate texts and not halves, since several files make one corpus: a mean of one file alone fits the others badly.
    """
    from alimark.calibration import rates as measure

    test = embedded.part(range(1, len(embedded.units), 2))
    centres = {"as is": job.key.centre}
    if job.centring:
        centres["centred"] = embedded.part(range(0, len(embedded.units), 2)).mean()
    spread: dict[str, Any] = {"keys": job.keys, "texts": len(test.units)}
    for name, centre in centres.items():
        task = bar.add_task(f"{job.keys} keys, {name}", total=job.keys)

        def step(n: int, task: Any = task) -> None:
            bar.advance(task, n)

        rates = measure.per_key_rates(test, job.key, job.embedder, job.settings, job.keys, step, centre=centre)
        spread[name] = _summary(rates)
    return spread


def _summary(rates: Any) -> dict[str, list[float]]:
    """Of per-key rates, (keys, levels)."""
    statistics = (
        ("mean", rates.mean(axis=0)), ("std", rates.std(axis=0)), ("least", rates.min(axis=0)), ("most", rates.max(axis=0)),
    )  # fmt: skip
    return {name: [round(float(x), 4) for x in values] for name, values in statistics}


def _write_centre(path: Path, embedded: Embedded, embedder: Embedder) -> None:
    from alimark._util.files import write_whole

    content = {
        "embedder": embedder.name,
        "fingerprint": embedder.fingerprint,
        "texts": len(embedded.units),
        "mean": [float(x) for x in embedded.mean()],
    }
    write_whole(path, json.dumps(content).encode() + b"\n")
    show.note(f"wrote the corpus mean to {path}")


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{result['texts']} texts of {result['sentences']} sentences", no_wrap=True)
    for level in result["levels"]:
        table.add_column(f"p <= {level:g}", justify="right")

    def row(name: str, values: Iterable[float]) -> None:
        table.add_row(name, *(f"{100 * value:.2f}%" for value in values))

    table.add_row("99% interval of a sound test", *(f"{100 * a:.2f}-{100 * b:.2f}%" for a, b in result["interval_99"]))
    row("this key, ties broken at random", result["this_key"]["p_randomised"])
    row("this key, p-value as reported", result["this_key"]["p"])
    if "z_as_normal" in result:
        row("this key, z read as a normal deviate", result["z_as_normal"])
    if "fresh_keys" in result:
        row("one fresh key a text, ties broken at random", result["fresh_keys"]["p_randomised"])
        row("one fresh key a text, p-value as reported", result["fresh_keys"]["p"])
        if "fresh_z_as_normal" in result:
            row("one fresh key a text, z as a normal deviate", result["fresh_z_as_normal"])
    for name, values in result.get("spread", {}).items():
        if isinstance(values, dict):
            for statistic in ("mean", "std", "least", "most"):
                row(f"{result['spread']['keys']} keys, {name}, {statistic}", values[statistic])
    show.stdout().print(table)
