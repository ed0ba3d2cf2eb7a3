"""What int8 costs: the share of marked texts found, and of human texts found by mistake, in float32 and in int8, paired.

    python benchmarks/precision.py found recipes/local/soft.toml work --set ...
    python benchmarks/precision.py human booksum.jsonl.gz c4.jsonl.gz --texts 500 --keys 10

`found` reads the attacked texts of a bench workspace and detects each under its key in both precisions. For every
watermark and attack it prints the shares found at p <= 0.01, the texts that only one of the two finds, and the difference
with its 95% interval (paired); then the same for what an audit does: a first pass in int8 by sentences alone, at a level of
0.1, and the full test in float32 of what passes. `human` tests passages of twelve human sentences under random keys, each key
on the same vectors in both precisions, and prints the shares with p at most 0.01 and 0.05 with 95% intervals over texts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.audit.auditor import FirstPass
from alimark.core._util.arrays import Floats
from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.base import Embedder, at_precision
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.text.human_text import read_texts
from alimark.errors import AlimarkError
from alimark.lab.bench.models import key_for, secret
from alimark.lab.bench.recipe import WatermarkRow, attacks
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

LEVEL = 0.01
FULL = DetectionSettings(draws=999)
SENTENCES = 12


class Marked(NamedTuple):
    """A text of the workspace, and the key that it was marked with."""

    attack: str
    text: str
    key: Key


def marked_texts(run: Run, watermark: WatermarkRow) -> Iterator[Marked]:
    """The texts of a watermark under each attack of the recipe."""
    jobs = []
    for cell in run.cells:
        if cell.watermark == watermark:
            for item in cell.items:
                key = key_for(watermark, secret(cell.recipe.seed, item.prompt), run.models)
                jobs += [(attack.label, run.attack_job(cell, item, attack).id, key) for attack in attacks(cell.recipe)]
    texts = run.texts([source for _, source, _ in jobs])
    return (Marked(attack, texts[source], key) for attack, source, key in jobs if texts.get(source))


def p_value(text: str, key: Key, embedder: Embedder, settings: DetectionSettings = FULL) -> float:
    """The p-value of a text; 1 where it cannot be searched."""
    [answer] = detect_batch([text], [key], embedder, settings)
    return 1.0 if isinstance(answer, AlimarkError) else answer[0].p_value


def is_found(text: Marked, exact: Embedder, fast: Embedder) -> tuple[bool, bool, bool]:
    """Whether a text is found in float32, in int8, and by an audit."""
    in_full = p_value(text.text, text.key, exact) <= LEVEL
    first = FirstPass()
    look = p_value(text.text, text.key, fast, first.settings(FULL))
    return in_full, p_value(text.text, text.key, fast) <= LEVEL, in_full and look <= first.level


def difference(exact: NDArray[np.bool_], fast: NDArray[np.bool_]) -> str:
    """The difference of two paired shares in percentage points, with its 95% interval."""
    only_exact, only_fast = int((exact & ~fast).sum()), int((fast & ~exact).sum())
    count = len(exact)
    middle = (only_fast - only_exact) / count
    # With half a pair added on either side, the interval is not of width 0 where all pairs agree.
    spread = only_exact + only_fast + 1 - (only_fast - only_exact) ** 2 / count
    half = 1.96 * math.sqrt(spread) / count
    return (
        f"{100 * exact.mean():.1f}% | {100 * fast.mean():.1f}% | {only_exact} | {only_fast} | "
        f"{100 * middle:+.1f} [{100 * (middle - half):+.1f}, {100 * (middle + half):+.1f}]"
    )


def compare_found(args: argparse.Namespace) -> None:
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace))
    hits: dict[tuple[str, str], list[tuple[bool, bool, bool]]] = {}
    for watermark in run.recipe.watermark:
        exact = run.models.embedder(str(watermark.key["embedder"]))
        fast = at_precision(exact, "int8")
        with run.workspace.kept_vectors(exact) as vectors:
            for number, text in enumerate(marked_texts(run, watermark), 1):
                hits.setdefault((watermark.label, text.attack), []).append(is_found(text, vectors, fast))
                if number % 100 == 0:  # a run that is stopped has shown something
                    print_found(hits)
    print_found(hits)


def print_found(hits: dict[tuple[str, str], list[tuple[bool, bool, bool]]]) -> None:
    """Prints the tables. `hits`: for each watermark and attack, which texts are found in float32, in int8 and by an audit."""
    hits = hits | {("all", "all"): [each for some in hits.values() for each in some]}
    for column, title in ((1, "int8"), (2, "an audit")):
        print(
            f"\n| watermark | attack | texts | float32 | {title} | float32 alone | {title} alone | difference, points |"
        )
        print("| --- " * 8 + "|")
        for (label, attack), some in hits.items():
            exact_hits, *others = np.array(some).T
            print(f"| {label} | {attack} | {len(some)} | {difference(exact_hits, others[column - 1])} |", flush=True)


def passages(paths: Sequence[Path], count: int) -> list[str]:
    cutter = splitter("nupunkt")
    texts: list[str] = []
    for number, path in enumerate(paths):
        wanted = count * (number + 1) // len(paths)
        for text in read_texts(path):
            sentences = cutter.sentences(text)
            if len(sentences) >= SENTENCES and len(texts) < wanted:
                texts.append(" ".join(sentence.strip() for sentence in sentences[:SENTENCES]))
    return texts


class Kept:
    """An embedder that keeps the vectors of one text, for many keys."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self._kept = embedder, dict[str, Floats]()
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if any(text not in self._kept for text in texts):
            self._kept = dict(zip(texts, self._embedder.embed(texts), strict=True))
        return np.stack([self._kept[text] for text in texts])


def compare_human(args: argparse.Namespace) -> None:
    exact = load_embedder(args.model)
    embedders = {"float32": Kept(exact), "int8": Kept(at_precision(exact, "int8"))}
    keys = [
        Key.generate(embedder=exact, decision=args.decision, secret=number.to_bytes(32, "big"))
        for number in range(1, args.keys + 1)
    ]
    texts = passages(args.human, args.texts)
    p = np.array(
        [[[p_value(text, key, embedder) for key in keys] for embedder in embedders.values()] for text in texts]
    )
    print(f"{args.model}, {args.decision} keys: {len(texts)} human texts under {len(keys)} keys each")
    for number, precision in enumerate(embedders):
        shares = []
        for level in (0.01, 0.05):
            each = (p[:, number] <= level).mean(axis=1)
            half = 1.96 * each.std(ddof=1) / math.sqrt(len(each))
            shares.append(f"p <= {level}: {100 * each.mean():.2f}% [{100 * (each.mean() - half):.2f}, "
                          f"{100 * (each.mean() + half):.2f}]")  # fmt: skip
        print(f"  {precision:8} {', '.join(shares)}")
    print(f"  correlation of log p: {np.corrcoef(np.log(p[:, 0].ravel()), np.log(p[:, 1].ravel()))[0, 1]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    found = verbs.add_parser("found")
    found.add_argument("recipe", type=Path)
    found.add_argument("workspace", type=Path)
    found.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    found.set_defaults(run=compare_found)
    human = verbs.add_parser("human")
    human.add_argument("human", type=Path, nargs="+", help="JSONL of human texts")
    human.add_argument("--model", default="all-MiniLM-L6-v2")
    human.add_argument("--decision", default="soft")
    human.add_argument("--texts", type=int, default=500)
    human.add_argument("--keys", type=int, default=10)
    human.set_defaults(run=compare_human)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
