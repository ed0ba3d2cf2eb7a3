"""The tables of docs/soft.md and docs/measurements/cost.md that come from the records in the repository.

    python benchmarks/tables.py                                   # what `make tables` does, with the figure
    python benchmarks/tables.py --figure docs/steering.svg
    python benchmarks/tables.py --detect                          # scores every text and rewrite anew, with the embedder

benchmarks/keep_records.py wrote the records: texts and rewrites with their p-values, perplexities and cosines. Shares, ratios,
repeated words and all intervals are computed here. No language model is needed, and only `--detect` needs the embedder. The
secrets of the keys are in the records: everybody knows them, so such a mark shows nothing about who wrote a text.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark import AliMark, Key
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.lab.bench.quality import distinct, repetition
from quality import interval
from share_found import wilson

Floats = NDArray[np.float64]
Row = dict[str, Any]
RECORDS = Path(__file__).with_name("records") / "price"
SPLIT = splitter(DEFAULT_SPLITTER)
UNMARKED = "unmarked"
CHAT = "chat"


class Records:
    """The records of one run: its settings, and the lines of each kind of text."""

    def __init__(self, folder: Path) -> None:
        content = json.loads((folder / "settings.json").read_text("utf-8"))
        self.watermarks: dict[str, Row] = {row["label"]: row for row in content["recipe"]["watermark"]}
        self.quoted: list[Row] = json.loads((folder / "quoted.json").read_text("utf-8"))
        self.rows = {label: lines for label in (*self.watermarks, UNMARKED) if (lines := list(read(folder, label)))}
        self.labels = [label for label in self.watermarks if label in self.rows]

    def named(self, label: str) -> str:
        """A watermark with its candidates and its steering."""
        options = self.watermarks[label]["generate"]
        return f"{label} | {options['candidates']}, {options.get('steering', 0):g}"


def read(folder: Path, label: str) -> Iterator[Row]:
    """The lines of one kind of text."""
    path = folder / f"{label}.jsonl.gz"
    if path.exists():
        yield from map(json.loads, gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())


def mean_of(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def share(found: int, count: int) -> str:
    """A share in per cent with its interval; "-" of nothing."""
    if not count:
        return "-"
    low, high = wilson(found, count)
    return f"{100 * found / count:.0f} [{low:.0f}, {high:.0f}] of {count}"


def p_values(rows: Sequence[Row], attack: str | None) -> list[float]:
    """The p-values of texts, or of their sound rewrites."""
    scored = rows if attack is None else [row["attacks"].get(attack, {}) for row in rows]
    return [float(row["p_value"]) for row in scored if "p_value" in row]


def attacked(rows: Sequence[Row], attack: str) -> int:
    """How many texts were attacked and scored, those with a failed rewrite among them."""
    return sum(any(name in row["attacks"].get(attack, {}) for name in ("p_value", "error")) for row in rows)


def cost_table(records: Records) -> list[str]:
    """What each strength samples, and what is found."""
    lines = [
        "| | candidates, steering | sampled a text | sampled for a written token | no attack | chat rewrite "
        "| with failed rewrites as misses |",
        "| --- " * 7 + "|",
    ]
    for label in records.labels:
        rows = records.rows[label]
        sampled, written = mean_of(rows, "sampled"), mean_of(rows, "written")
        clean, rewritten = p_values(rows, None), p_values(rows, CHAT)
        found, all_of_them = sum(p <= 0.01 for p in rewritten), attacked(rows, CHAT)
        lines.append(
            f"| {records.named(label)} | {sampled:,.0f} | {sampled / written:.1f} "
            f"| {share(sum(p <= 0.01 for p in clean), len(clean))} | {share(found, len(rewritten))} "
            f"| {share(found, all_of_them)} |"
        )
    return lines


def lengths(text: str) -> list[int]:
    """The words of each sentence of a text."""
    return [len(unit.split()) for unit in SPLIT.units(text)]


MEASURES: dict[str, Callable[[Row], float | None]] = {
    "perplexity, ratio": lambda row: None if row["perplexity"] is None else float(np.log(row["perplexity"])),
    "distinct word pairs": lambda row: distinct(row["text"]),
    "repeated runs of four words": lambda row: repetition(row["text"]),
    "cosine of neighbours": lambda row: row["neighbours"],
    "words of a sentence": lambda row: float(np.mean(lengths(row["text"]))),
    "sentences of over 80 words": lambda row: float(np.mean([length > 80 for length in lengths(row["text"])])),
}


def compared(rows: Sequence[Row], others: Sequence[Row], measure: Callable[[Row], float | None]) -> Floats:
    """The measure of each text less that of the other text after the same prompt, where both are known."""
    of_prompt = {row["prompt"]: measure(row) for row in others}
    pairs = ((measure(row), of_prompt.get(row["prompt"])) for row in rows)
    return np.array([value - other for value, other in pairs if value is not None and other is not None])


def quality_table(records: Records) -> list[str]:
    """What marking does to the text, beside unmarked text after the same prompts."""
    plain = records.rows.get(UNMARKED, [])
    means = []
    for name, measure in MEASURES.items():
        values = [value for row in plain if (value := measure(row)) is not None]
        mean = float(np.mean(values)) if values else float("nan")
        means.append(f"{np.exp(mean):.1f}" if name.endswith("ratio") else f"{mean:.3g}")
    lines = [f"| | texts | {' | '.join(MEASURES)} |", "| --- " * (len(MEASURES) + 2) + "|"]
    lines.append(f"| unmarked | {len(plain)} | {' | '.join(means)} |")
    for label in records.labels:
        cells = []
        for name, measure in MEASURES.items():
            less = compared(records.rows[label], plain, measure)
            if not len(less):
                cells.append("-")
                continue
            mean, low, high = interval(less, np.random.default_rng(1))
            ratio = name.endswith("ratio")
            cells.append(
                f"{np.exp(mean):.3f} [{np.exp(low):.3f}, {np.exp(high):.3f}] of {len(less)}"
                if ratio
                else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
            )
        lines.append(f"| {label} | {len(records.rows[label])} | {' | '.join(cells)} |")
    return lines


def figure(records: Records, path: Path) -> None:
    """Draws the share found after the chat rewrite against the tokens that are sampled for a text."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    # The same bytes from the same records, and letters as letters.
    mpl.rcParams.update({"svg.hashsalt": "alimark", "svg.fonttype": "none"})
    drawing = plt.figure(figsize=(6.4, 3.8), layout="constrained")
    axes = drawing.subplots()
    steered = [
        (label, mean_of(rows, "sampled"), sum(p <= 0.01 for p in p_values(rows, CHAT)), attacked(rows, CHAT))
        for label in records.labels
        if attacked(rows := records.rows[label], CHAT)
    ]
    quoted = [(row["label"], row["sampled"], row["found"], row["count"]) for row in records.quoted]
    for kind, points, colour in (("steered", steered, "C0"), ("not steered (earlier run)", quoted, "0.55")):
        tokens, shares = [point[1] for point in points], [100 * found / count for *_, found, count in points]
        bounds = np.array([wilson(found, count) for *_, found, count in points]).T
        errors = np.abs(bounds - shares)
        axes.errorbar(tokens, shares, errors, marker="o", capsize=3, color=colour, label=kind)
        for label, token, _, _ in points:
            place = shares[tokens.index(token)]
            axes.annotate(label, (token, place), xytext=(6, -12), textcoords="offset points", color=colour)
    axes.set(xscale="log", xlim=(700, 200_000), ylim=(0, 100), xlabel="tokens sampled for a text of 12 sentences")
    axes.set_ylabel("found after a chat rewrite, % of all texts")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    drawing.savefig(path, metadata={"Date": None})


def detect_again(records: Records) -> list[str]:
    """Scores every text and rewrite under its key; says how many p-values differ from the records."""
    lines = []
    for label in records.labels:
        public = records.watermarks[label]["key"]
        differ = count = 0
        for row in records.rows[label]:
            texts = [row, *(made for made in row["attacks"].values() if "p_value" in made)]
            mark = AliMark(Key.generate(secret=bytes.fromhex(row["secret"]), **public))
            again = mark.detect([text["text"] for text in texts])
            count += len(texts)
            differ += sum(
                abs(detection.p_value - text["p_value"]) > 1e-9 for detection, text in zip(again, texts, strict=True)
            )
        lines.append(f"{label}: {count} texts and rewrites were scored again, {differ} p-values differ")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--figure", type=Path, help="also draw the curve into this file")
    parser.add_argument("--detect", action="store_true", help="also score every text anew")
    options = parser.parse_args()
    records = Records(options.records)
    print("\n".join([*cost_table(records), "", *quality_table(records)]))
    if options.figure:
        figure(records, options.figure)
    if options.detect:
        print("\n" + "\n".join(detect_again(records)))


if __name__ == "__main__":
    main()
