"""Learns the probabilities of version 3's model of rewriting from marked texts and their rewrites by training attackers.

    python benchmarks/soft_chances.py recipes/local/version3.toml work --set ... --group "rewritten=chat,translate pt" ...

For each group of attacks the rule is found that makes the rewritten texts most likely under their keys (the forward algorithm,
maximised by gradient; the hidden alignment is summed over, as in Baum-Welch). Half of the prompts are for learning; the shares
found at p <= 0.01 / 0.05 by random keys are of the other half. Then variants of the detector are compared on that half. Meant
for prompts and attackers that no test uses.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from alimark.core._util.arrays import Floats
from alimark.core.detection.scoring import Soft
from alimark.core.frozen.kernels.soft import search_soft
from alimark.core.frozen.kernels.types import Limits, SoftRule
from alimark.core.frozen.soft_rules import SOFT_VERSIONS, SoftVersion
from alimark.core.keys.projection import project
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from soft_rules import Text, texts_of

VERSION = SOFT_VERSIONS[3]
START = SoftRule(
    worth=VERSION.rules[0].worth, foreign=0.1, replaced=0.05, moved=0.3, repeated=0.1, skipped=0.1, further=0.6,
    two=0.0, three=0.0, joined=0.0, jump=0.02,
)  # fmt: skip
PASTED = START._replace(foreign=0.03, replaced=0.03, outside=0.6, leaving=0.1, staying=0.85, resumed=0.05)
SHARES = ("foreign", "replaced", "repeated", "skipped", "jump", "leaving")
"""Probabilities of moves, which sum to less than 1; the rest is the usual move."""
ALONE = ("moved", "further", "outside", "staying", "resumed")
_PRIOR = 0.02  # keeps probabilities that the texts say nothing about where they started


class Learner:
    """The likelihood of a group of rewritten texts under their keys, as a function of a rule."""

    def __init__(self, texts: list[Text]) -> None:
        self._rule = Soft(VERSION, restructure=False)
        self._cases = []
        for text in texts:
            signals = self._rule.signals(text.units, project(text.vectors, text.key))
            length = self._rule.length(text.units.count)
            self._cases.append((signals.tables, signals.joinable, text.key.blocks(length)[None], length))

    def likelihood(self, rule: SoftRule) -> float:
        """The mean log-likelihood ratio of the texts."""
        zero = np.zeros(1, np.int64)
        return float(
            np.mean([
                search_soft(
                    tables, joinable, blocks, np.array([length]), [rule], starts=np.array([0, len(tables)]),
                    texts=zero, keys=zero,
                )[0]
                for tables, joinable, blocks, length in self._cases
            ])
        )  # fmt: skip

    def learned(self, start: SoftRule, worth: bool) -> SoftRule:
        """The rule that makes the texts most likely; `worth` says whether it may change."""
        free = [name for name in (*SHARES, *ALONE) if getattr(start, name) > 0] + ["worth"] * worth
        first = _encoded(start, free)

        def loss(values: NDArray[np.float64]) -> float:
            if np.abs(values).max() > 9:
                return 1e6
            return _PRIOR * float(((values - first) ** 2).mean()) - self.likelihood(_decoded(values, free, start))

        return _decoded(minimize(loss, first, method="L-BFGS-B", options={"maxiter": 50}).x, free, start)


def _encoded(rule: SoftRule, free: list[str]) -> NDArray[np.float64]:
    usual = 1 - sum(getattr(rule, name) for name in SHARES)
    values = []
    for name in free:
        value = getattr(rule, name)
        if name == "worth":
            values.append(math.log(value))
        else:
            values.append(math.log(value / (usual if name in SHARES else 1 - value)))
    return np.array(values)


def _decoded(values: NDArray[np.float64], free: list[str], start: SoftRule) -> SoftRule:
    odds = {name: math.exp(value) for name, value in zip(free, values, strict=True)}
    usual = 1 / (1 + sum(odds[name] for name in free if name in SHARES))
    changed = {name: odds[name] * usual for name in free if name in SHARES}
    changed |= {name: odds[name] / (1 + odds[name]) for name in free if name in ALONE}
    return start._replace(**changed, **({"worth": odds["worth"]} if "worth" in odds else {}))


def p_values(texts: list[Text], version: SoftVersion, draws: int) -> Floats:
    """The p-value of each text by random keys."""
    rule = Soft(version, restructure=False)
    values = []
    for text in texts:
        signals = rule.signals(text.units, project(text.vectors, text.key))
        length = rule.length(text.units.count)
        blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, draws, length)])
        jobs = np.arange(len(blocks))
        scores = rule.scores([signals], blocks, 0 * jobs, jobs)
        values.append((1 + (scores[1:] >= scores[0]).sum()) / (draws + 1))
    return np.array(values)


def table(texts: dict[str, list[Text]], versions: dict[str, SoftVersion], draws: int) -> None:
    print("\n| | " + " | ".join(texts) + " | mean |\n" + "| --- " * (len(texts) + 2) + "|")
    for name, version in versions.items():
        shares = []
        for group in texts.values():
            values = p_values(group, version, draws)
            shares.append((100 * np.mean(values <= 0.01), 100 * np.mean(values <= 0.05)))
        cells = " | ".join(f"{one:.0f} / {five:.0f}" for one, five in [*shares, np.mean(shares, axis=0)])
        print(f"| {name} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--group", action="append", required=True, metavar="NAME=ATTACK,ATTACK...",
                        help="attacks, by their labels, that one rule is learned for")  # fmt: skip
    parser.add_argument("--label", default="version 3", help="the recipe's watermark")
    parser.add_argument("--draws", type=int, default=400)
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=99))
    [watermark] = [row for row in run.recipe.watermark if row.label == args.label]
    texts = list(texts_of(run, watermark, Limits(0, 0, 0)))
    prompts = list(dict.fromkeys(text.prompt for text in texts))
    learning = set(prompts[::2])
    rules: list[SoftRule] = []
    for group in args.group:
        name, _, labels = group.partition("=")
        chosen = [text for text in texts if text.attack in labels.split(",") and text.prompt in learning]
        learner, start = Learner(chosen), PASTED if name == "pasted" else START
        rule = learner.learned(start, worth=not rules)
        rules.append(rule._replace(worth=rules[0].worth) if rules else rule)
        shown = {field: round(value, 3) for field, value in rule._asdict().items() if value}
        print(
            f"{name}: {len(chosen)} texts, {learner.likelihood(start):.2f} -> {learner.likelihood(rule):.2f}, {shown}"
        )
    held: dict[str, list[Text]] = {}
    for text in texts:
        if text.prompt not in learning:
            held.setdefault(text.attack, []).append(text)
    mixed = VERSION._replace(rules=tuple(rules), weights=None)
    versions = {
        "version 2's rules": VERSION._replace(rules=SOFT_VERSIONS[2].rules, weights=None),
        "the first rule alone": VERSION._replace(rules=(rules[0],), weights=None),
        "learned": mixed,
        "as released": VERSION,
        **{f"shrink {value:g}": mixed._replace(shrink=value) for value in (5.0, 12.0, 40.0)},
        **{f"{value:g} blocks a sentence": mixed._replace(blocks=value) for value in (1.5, 2.0, 3.0)},
        **{f"norm weight {value:g}": mixed._replace(norm_weight=value) for value in (0.0, 0.3, 0.6)},
    }
    table(held, versions, args.draws)


if __name__ == "__main__":
    main()
