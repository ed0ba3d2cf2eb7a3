"""Compares this detector with scores that the public code gave, by its own rule and table.

    python tools/reference_cases.py --cases cases.json --table ber_map_8.json

`cases.json` is a list of {sentences, merged, left, right, splittable, secret, score, score_without_restructuring},
blocks as 8-bit integers with the first bit highest; `ber_map_8.json` maps a length to the mean and std that the public
code uses.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from alimark.core.detection.stats.null_tables import reference_rule
from alimark.core.frozen.kernels.hard import search
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits

M = 8


def score(case: dict[str, Any], restructure: str, table: Path) -> float:
    count = len(case["sentences"])
    units, valid = np.zeros((count, 2, 4), np.uint64), np.zeros((count, 2, 4), bool)
    units[:, 0, WHOLE], valid[:, 0, WHOLE] = case["sentences"], True
    units[1:, 1, WHOLE], valid[1:, 1, WHOLE] = case["merged"], True
    units[:, 0, LEFT], units[:, 0, RIGHT] = case["left"], case["right"]
    valid[:, 0, LEFT] = valid[:, 0, RIGHT] = case["splittable"]
    rule = reference_rule(M, count + 1, table=table)
    secret = np.resize(np.array(case["secret"], np.uint64), int(rule.most[-1]))
    return float(search(units, valid, secret[None], M, Limits.of(restructure), rule).z[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    options = parser.parse_args()
    cases = json.loads(options.cases.read_text("utf-8"))
    for restructure, field in (("single", "score"), ("none", "score_without_restructuring")):
        gap = max(abs(score(case, restructure, options.table) - case[field]) for case in cases)
        print(f"{len(cases)} cases, restructure {restructure}: largest difference {gap:.3g}")


if __name__ == "__main__":
    main()
