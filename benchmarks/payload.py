"""Payloads: how often they are right, what they cost in detection, whether their confidence holds, and what they take.

    python benchmarks/payload.py table recipes/local/payload.toml work --set ...    # texts with payloads, from a workspace
    python benchmarks/payload.py reuse recipes/local/version3.toml work --set ...   # texts without payloads, see below
    python benchmarks/payload.py curve recipes/local/version3.toml work --set ... --figure payload.png
    python benchmarks/payload.py time                                               # seconds of a detection, in one run

`table` prints, for every watermark and attack of a recipe whose records exist, the share of texts found at p <= 0.01, the share
of payloads that are right, both with 95% intervals (Wilson), and then how often payloads of a stated confidence are right.

`reuse` needs no new texts. A text under a key without payloads is also a text that carries payload m under the key whose
blocks differ by the flips of m: it was chosen by the same directions. So texts of version 3 with any length and attack say how
payloads of any number of bits would fare. For each text a random payload is taken. The last column is many_keys with as many
keys as payloads: the share of texts whose p-value under their key without a payload is at most 0.01 over the number of keys.
So small p-values are estimated: by the inverse of the likelihood ratio or by a fitted tail, whichever is smaller. `delete` and
`reorder` are applied to the texts here; --attacks recipe takes those of the workspace.

`curve` cuts the same texts to their first 6, 12, ... sentences, attacks them, and prints and draws the share of payloads that
are wrong, by the number of bits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark import AliMark, Key, detect
from alimark.core._util.arrays import Packed
from alimark.core.detection.batching import signals_of
from alimark.core.detection.payloads import decode
from alimark.core.detection.preparing import prepare
from alimark.core.detection.scoring import Soft, SoftPayload
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.signals import Signals
from alimark.core.detection.stats.p_values import tail_estimate
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.projection import project
from alimark.lab.attacks import load_attack
from alimark.lab.bench.models import key_for, secret
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.recipe_points import attacks
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from share_found import wilson

BITS = (8, 16, 24)
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999, 1.0)
Outcome = tuple[bool, bool, float]
"""Whether a text was found, whether its payload is right, and the payload's confidence."""


def share(hits: list[bool]) -> str:
    if not hits:
        return "-"
    low, high = wilson(sum(hits), len(hits))
    return f"{100 * sum(hits) / len(hits):.0f} [{low:.0f}, {high:.0f}]"


def reliability(outcomes: list[Outcome]) -> None:
    """Prints how often payloads of each confidence are right, among the texts that were found."""
    found = [(right, confidence) for is_found, right, confidence in outcomes if is_found]
    print(f"\n| stated confidence | payloads | mean confidence | right |\n{'| --- ' * 4}|")
    for low, high in zip(BINS, BINS[1:], strict=False):
        inside = [(right, c) for right, c in found if low <= c < high or (high == 1 and c == 1)]
        if inside:
            mean = 100 * sum(c for _, c in inside) / len(inside)
            print(f"| {low:g} to {high:g} | {len(inside)} | {mean:.1f} | {share([right for right, _ in inside])} |")


def run_of(args: argparse.Namespace) -> Run:
    return Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=97))


def table(args: argparse.Namespace) -> None:
    run = run_of(args)
    [detection] = run.recipe.detection
    labels = [watermark.label for watermark in run.recipe.watermark]
    outcomes: list[Outcome] = []
    print("found at p <= 0.01; payloads right, of all texts\n")
    print(f"| attack | {' | '.join(labels)} |\n{'| --- ' * (len(labels) + 1)}|")
    for attack in (None, *attacks(run.recipe)):
        row = []
        for label in labels:
            cells = [cell for cell in run.cells if cell.watermark.label == label]
            jobs = {
                run.detect_job(
                    cell, detection,
                    (run.generate_job(cell, item) if attack is None else run.attack_job(cell, item, attack)).id,
                    item.prompt,
                ).id: key_for(cell.watermark, secret(cell.recipe.seed, item.prompt), run.models).payload
                for cell in cells for item in cell.items
            }  # fmt: skip
            records = run.workspace.records("detect", list(jobs))
            rows = [(records[job], sent) for job, sent in jobs.items() if "p_value" in records.get(job, {})]
            found = [record["p_value"] <= 0.01 for record, _ in rows]
            right = [(record.get("payload") or {}).get("value") == sent for record, sent in rows if sent is not None]
            row.append(share(found) + (f"; {share(right)}" if right else "") + f" of {len(rows)}")
            outcomes += [
                (True, record["payload"]["value"] == sent, record["payload"]["confidence"])
                for record, sent in rows if record.get("payload")
            ]  # fmt: skip
        print(f"| {'none' if attack is None else attack.label} | {' | '.join(row)} |", flush=True)
    reliability(outcomes)


def texts_to_reuse(
    run: Run, args: argparse.Namespace, cut: int | None = None
) -> Iterator[tuple[str, list[tuple[str, Key]]]]:
    """For each attack the attacked texts with their keys; `cut` texts have only so many sentences before they are attacked."""
    cells = [cell for cell in run.cells if cell.watermark.label == args.label]
    items = [(cell, item) for cell in cells for item in cell.items][: args.texts]
    keys = [key_for(cell.watermark, secret(cell.recipe.seed, item.prompt), run.models) for cell, item in items]
    written = run.texts([run.generate_job(cell, item).id for cell, item in items])
    plain = [written.get(run.generate_job(cell, item).id, "") for cell, item in items]
    if cut:
        plain = [" ".join(splitter(key.splitter).sentences(text)[:cut]) for text, key in zip(plain, keys, strict=True)]
    for name in args.attacks:
        if name == "none":
            texts = plain
        elif name == "recipe":
            for attack in attacks(run.recipe):
                ids = [run.attack_job(cell, item, attack).id for cell, item in items]
                attacked = run.texts(ids)
                yield attack.label, [(attacked[i], key) for i, key in zip(ids, keys, strict=True) if attacked.get(i)]
            continue
        else:
            attack_name, rate = name.split("=")
            change = load_attack(attack_name, rate=float(rate))
            texts = [change(text, number) if text else "" for number, text in enumerate(plain)]
        yield name, [(text, key) for text, key in zip(texts, keys, strict=True) if text]


def evidence(text: str, key: Key, run: Run, settings: DetectionSettings) -> tuple[Soft, Signals, int]:
    """The rule without a payload, a text's signals under it, and the number of blocks.

    The text is read as it stands: keys of text version 0 would read it a second time, after normalisation.
    """
    embedder = run.models.embedder(key.embedder)
    prepared = prepare(text, key, embedder, settings)
    signals = signals_of(prepared.units, project(embedder.embed(prepared.units.texts), key), key, settings)
    plain = Soft.of(key, settings)
    return plain, signals, plain.length(len(prepared.sentences))


def as_with_payload(
    plain: Soft, key: Key, length: int, bits: int, rng: np.random.Generator
) -> tuple[int, Packed, SoftPayload]:
    """A random payload, the blocks under which the text carries it, and the rule that reads it."""
    code = PayloadCode(bits, key.block_size)
    sent, runs = int(rng.integers(code.count)), key.derivation.run_numbers(length)
    blocks = key.blocks(length) ^ code.flips(sent, int(runs[-1]) + 1)[runs]
    return sent, blocks, SoftPayload(plain.version, plain.restructure, plain.first_blocks, code, key.run)


def reuse(args: argparse.Namespace) -> None:
    run, settings = run_of(args), DetectionSettings()
    outcomes: list[Outcome] = []
    columns = " | ".join(f"{bits} bits: found; right | {2**bits:,} keys" for bits in BITS)
    print(f"| attack | texts | no payload | {columns} |\n{'| --- ' * (3 + 2 * len(BITS))}|")
    for name, texts in texts_to_reuse(run, args):
        found: dict[int, list[bool]] = {bits: [] for bits in (0, *BITS)}
        right: dict[int, list[bool]] = {bits: [] for bits in BITS}
        many: dict[int, list[bool]] = {bits: [] for bits in BITS}
        for number, (text, key) in enumerate(texts):
            rng = np.random.default_rng(number)
            plain, signals, length = evidence(text, key, run, settings)
            nulls = key.null_blocks(0, args.draws, length)

            def p_values(rule: Soft, blocks: NDArray[np.uint64]) -> tuple[float, float]:
                """The p-value by random keys, and an estimate of one too small for them."""
                jobs = np.arange(args.draws + 1)
                scores = rule.scores([signals], np.concatenate([blocks[None], nulls]), 0 * jobs, jobs)  # noqa: B023
                estimate = min(np.exp(-scores[0]), tail_estimate(scores[0], scores[1:]) or 1.0)
                return (1 + (scores[1:] >= scores[0]).sum()) / (args.draws + 1), estimate

            p_value, estimate = p_values(plain, key.blocks(length))
            found[0].append(p_value <= 0.01)
            for bits in BITS:
                sent, blocks, rule = as_with_payload(plain, key, length, bits, rng)
                hit, payload = p_values(rule, blocks)[0] <= 0.01, decode(rule, signals, blocks)
                found[bits].append(hit)
                right[bits].append(hit and payload.value == sent)
                many[bits].append(estimate <= 0.01 / rule.code.count)
                outcomes.append((hit, payload.value == sent, payload.confidence))
        cells = " | ".join(f"{share(found[bits])}; {share(right[bits])} | {share(many[bits])}" for bits in BITS)
        print(f"| {name} | {len(texts)} | {share(found[0])} | {cells} |", flush=True)
    reliability(outcomes)


def curve(args: argparse.Namespace) -> None:
    run, settings = run_of(args), DetectionSettings()
    errors: dict[tuple[str, int], list[list[bool]]] = {(name, bits): [] for name in args.attacks for bits in BITS}
    for length in args.lengths:
        for name, texts in texts_to_reuse(run, args, length):
            for bits in BITS:
                errors[name, bits].append([])
            for number, (text, key) in enumerate(texts):
                rng = np.random.default_rng(number)
                plain, signals, blocks_in_all = evidence(text, key, run, settings)
                for bits in BITS:
                    sent, blocks, rule = as_with_payload(plain, key, blocks_in_all, bits, rng)
                    errors[name, bits][-1].append(decode(rule, signals, blocks).value != sent)
    print(f"| attack | bits | {' | '.join(f'{length} sentences' for length in args.lengths)} |")
    print("| --- " * (2 + len(args.lengths)) + "|")
    for (name, bits), columns in errors.items():
        print(f"| {name} | {bits} | {' | '.join(share(column) for column in columns)} |")
    if args.figure:
        wrong = {case: [100 * float(np.mean(column)) for column in columns] for case, columns in errors.items()}
        draw(args.figure, args.lengths, wrong)


def draw(path: Path, lengths: list[int], wrong: dict[tuple[str, int], list[float]]) -> None:
    """A panel for each attack, a line for each number of bits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for name, _ in wrong))
    figure, panels = plt.subplots(1, len(names), figsize=(3.2 * len(names), 2.8), sharey=True, layout="constrained")
    for axes, name in zip(np.atleast_1d(panels), names, strict=True):
        for bits, colour in zip(BITS, ("#0b6e4f", "#8a94a6", "#c0562f"), strict=True):
            axes.plot(lengths, wrong[name, bits], color=colour, marker="o", markersize=4, label=f"{bits} bits")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("sentences")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#eceef2", zorder=0)
    np.atleast_1d(panels)[0].set_ylabel("payloads that are wrong (%)")
    np.atleast_1d(panels)[-1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def timing(args: argparse.Namespace) -> None:
    """Times whole detections of one text of random words, with the embedding and 1,000 random keys."""
    embedder = load_embedder("all-MiniLM-L6-v2")
    rng = np.random.default_rng(1)
    words = [line.strip() for line in "river lamp winter engine garden letter doctor harbour music stone".split()]
    text = " ".join(
        f"The {' '.join(rng.choice(words, 9))} was near the {rng.choice(words)}." for _ in range(args.sentences)
    )
    marks = {
        f"{bits} bits" if bits else "no payload": AliMark(
            Key.generate(embedder=embedder, secret=bytes(32), payload_bits=bits), embedder=embedder
        )
        for bits in (0, *BITS)
    }
    times: dict[str, list[float]] = {name: [] for name in marks}
    for _ in range(args.repeat + 1):  # the first round compiles
        for name, mark in marks.items():
            start = time.perf_counter()
            mark.detect(text)
            times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values[1:])) for name, values in times.items()}
    for count in args.keys:
        keys = [Key.generate(embedder=embedder, secret=number.to_bytes(32, "big")) for number in range(count)]
        start = time.perf_counter()
        detect(text, keys, embedder=embedder, best=1, draws=1000)
        medians[f"many_keys, {count:,} keys"] = time.perf_counter() - start
    print(f"{args.sentences} sentences\n\n| detection | seconds | times no payload |\n| --- | --- | --- |")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.3f} | {seconds / medians['no payload']:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    for name, work in (("table", table), ("reuse", reuse), ("curve", curve)):
        part = parts.add_parser(name)
        part.add_argument("recipe", type=Path)
        part.add_argument("workspace", type=Path)
        part.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
        part.set_defaults(work=work)
        if name != "table":
            part.add_argument("--label", default="version 3", help="the recipe's watermark without payloads")
            part.add_argument("--attacks", nargs="+", default=["none", "delete=0.3", "reorder=0.3"])
            part.add_argument("--texts", type=int, default=100)
        if name == "reuse":
            part.add_argument("--draws", type=int, default=299)
        if name == "curve":
            part.add_argument("--lengths", type=int, nargs="+", default=[6, 12, 18, 24, 36, 48])
            part.add_argument("--figure", type=Path, help="PNG to draw")
    part = parts.add_parser("time")
    part.add_argument("--sentences", type=int, default=24)
    part.add_argument("--repeat", type=int, default=9)
    part.add_argument("--keys", type=int, nargs="*", default=[256, 65_536])
    part.set_defaults(work=timing)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
