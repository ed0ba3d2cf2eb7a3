"""What other units would give the soft detector: three sentences as one, halves in the middle, halves at clause boundaries.

    python benchmarks/soft_units.py recipes/local/soft.toml work --set data.texts=40 --set llm=transformers:smollm2-135m

Version 1 knows sentences and pairs of neighbours; a sentence that holds two blocks is taken whole. Here a block may be carried
by three neighbours together, and of a sentence that holds two blocks each half may carry one. Shares of texts with p <= 0.01
/ p <= 0.05, as in benchmarks/soft_rules.py and for the same prompts.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core._util.compiling import kernel
from alimark.core.frozen.kernels.soft import _worths, worth_tables
from alimark.core.frozen.kernels.types import SoftRule
from alimark.core.frozen.soft_rules import SOFT_VERSIONS
from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import halve, merge, with_full_stop
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.lab.bench.models import key_for, secret
from alimark.lab.bench.recipe import Watermark
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.recipe_points import attacks
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

NOW = SOFT_VERSIONS[1]
WHOLE, PAIR, THREE, MIDDLE, CLAUSE = 0, 1, 2, 3, 5  # units of a sentence; halves take two places

_CLAUSE = re.compile(
    r"(?<=[,;:])\s+|\s+[-–—]+\s+|\s+(?=(?:and|but|or|so|because|which|who|that|when|while|where|although|though|if|as|"
    r"since|until)\s)"
)


def clauses(unit: str) -> tuple[str, str] | None:
    """The unit cut at the clause boundary nearest its middle; in the middle where it has none."""
    cuts = [cut for cut in _CLAUSE.finditer(unit) if min(cut.start(), len(unit) - cut.end()) >= 10]
    if not cuts:
        return halve(unit)
    best = min(cuts, key=lambda cut: abs(cut.start() - len(unit) / 2))
    return with_full_stop(unit[: best.start()].rstrip(" ,;:-–—")), unit[best.end() :]


def units_of(sentences: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Of each sentence its units in their order, empty where there is none."""
    for i, sentence in enumerate(sentences):
        joined = [merge(sentences[i - back : i + 1]) if i >= back else "" for back in (1, 2)]
        yield sentence, *joined, *(halve(sentence) or ("", "")), *(clauses(sentence) or ("", ""))


@dataclass(frozen=True)
class Text:
    attack: str
    key: Key
    units: Floats
    """Projections of the units of each sentence, as the detector scales them."""
    valid: Any


def texts_of(run: Run, watermark: Watermark) -> Iterator[Text]:
    jobs = []
    for cell in (one for one in run.cells if one.watermark == watermark):
        for item in cell.items:
            key = key_for(watermark, secret(cell.recipe.seed, item.prompt), run.models)
            jobs.append(("none", run.generate_job(cell, item).id, key))
            jobs += [(one.label, run.attack_job(cell, item, one).id, key) for one in attacks(cell.recipe)]
    texts = run.texts([source for _, source, _ in jobs])
    with run.workspace.kept_vectors(run.models.embedder(watermark.key["embedder"])) as vectors:
        for attack, source, key in jobs:
            if texts.get(source):
                units = list(units_of(splitter(key.splitter).units(texts[source])))
                valid = np.array([[bool(one) for one in some] for some in units])
                flat = project(vectors.embed([one for some in units for one in some if one]), key)
                every = np.zeros((*valid.shape, flat.shape[1]))
                every[valid] = flat
                centred = every - every[:, WHOLE].sum(axis=0) / (len(units) + NOW.shrink)
                scaled = centred / np.maximum(np.sqrt((centred**2).mean(axis=2, keepdims=True)), 1e-12)
                yield Text(attack, key, scaled, valid)


@kernel()
def _forward(worths: Any, valid: Any, rule: Any, third: float, halved: float, halves: int) -> Any:
    """As the version's, and `third`: that three sentences carry a block together, `halved`: that halves carry one each."""
    gain, foreign, replaced, moved, repeated, skipped, further, two, three, joined, jump = rule
    count, size = worths.shape[0], worths.shape[2]
    usual = 1 - foreign - replaced - repeated - skipped - two - three - joined - jump - third - halved
    less, total = -gain * gain / 2, 0.0
    # What was likely one, two and three sentences ago, in units of the latest.
    at, before, earlier = np.zeros(size + 1), np.zeros(size + 1), np.zeros(size + 1)
    now, lost, likelier = np.zeros(size + 1), np.zeros(size + 1), np.zeros(size + 1)
    at[0] = 1.0
    for i in range(count):
        own = worths[i]
        likelier[1:] = np.exp(gain * own[0] + less)
        other = 1 - moved + moved * likelier[1:].mean()
        now[0] = at[0] * foreign * other
        for j in range(1, size + 1):
            if j > 1:
                lost[j] = further * lost[j - 1] + (1 - further) * at[j - 2]
            here = at[j - 1] * usual + at[j] * repeated + lost[j] * skipped + jump / size
            value = (at[j] * foreign + at[j - 1] * replaced) * other + here * likelier[j]
            if j > 1:
                value += at[j - 2] * two * np.exp(gain * (own[0, j - 2] + own[0, j - 1]) / np.sqrt(2.0) + less)
                if halved > 0 and valid[i, halves]:
                    both = own[halves, j - 2] + own[halves + 1, j - 1]
                    value += at[j - 2] * halved * np.exp(gain * both + 2 * less)
            if j > 2:
                held = own[0, j - 3] + own[0, j - 2] + own[0, j - 1]
                value += at[j - 3] * three * np.exp(gain * held / np.sqrt(3.0) + less)
            if valid[i, 1]:
                value += before[j - 1] * joined * np.exp(gain * own[1, j - 1] + less)
            if valid[i, 2]:
                value += earlier[j - 1] * third * np.exp(gain * own[2, j - 1] + less)
            now[j] = value
        whole = now.sum()
        total += np.log(whole)
        earlier, before, at = before / whole, at / whole, now / whole
    return total


Score = Callable[[Text, Any], Floats]


def scored(rule: SoftRule, third: float = 0.0, halved: float = 0.0, halves: int = MIDDLE) -> Score:
    def score(text: Text, blocks: Any) -> Floats:
        tables = worth_tables(text.units)
        found = []
        for row in blocks[:, : math.ceil(NOW.blocks * len(text.units))]:
            worths = np.empty((len(tables), tables.shape[1], len(row)))
            _worths(tables, row, worths)
            found.append(_forward(worths, text.valid, tuple(rule), third, halved, halves))
        return np.array(found)

    return score


[RULE] = NOW.rules
VARIANTS = {
    "version 1": scored(RULE),
    "three sentences": scored(RULE, third=0.02),
    "halves in the middle": scored(RULE._replace(two=0.0), halved=0.06),
    "halves at clauses": scored(RULE._replace(two=0.0), halved=0.06, halves=CLAUSE),
    "whole, or halves in the middle": scored(RULE._replace(two=0.03), halved=0.03),
    "whole, or halves at clauses": scored(RULE._replace(two=0.03), halved=0.03, halves=CLAUSE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--draws", type=int, default=300)
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=98))
    [watermark] = (one for one in run.recipe.watermark if one.soft)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in VARIANTS}
    for text in texts_of(run, watermark):
        length = math.ceil(NOW.blocks * len(text.units))
        blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, args.draws, length)])
        for name, score in VARIANTS.items():
            scores = score(text, blocks)
            p = (1 + (scores[1:] >= scores[0]).sum()) / (args.draws + 1)
            found[name].setdefault(text.attack, []).append(p)
    names = list(found["version 1"])
    print("| | " + " | ".join(names) + " |\n" + "| --- " * (len(names) + 1) + "|")
    for name, by_attack in found.items():
        shares = ([100 * np.mean(np.array(p) <= level) for level in (0.01, 0.05)] for p in by_attack.values())
        print(f"| {name} | " + " | ".join(f"{one:.0f} / {five:.0f}" for one, five in shares) + " |")


if __name__ == "__main__":
    main()
