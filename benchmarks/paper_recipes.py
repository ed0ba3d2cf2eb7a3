"""Every recipe of the paper: what a run of it lacks on this machine, and a small run of it with local models.

    python benchmarks/paper_recipes.py check                     # what `alimark bench run --dry-run` says of each
    python benchmarks/paper_recipes.py run work [probing ...]    # 3 short texts of each kind, with the time of each recipe

The small runs use the profiles `local` and `small` of `recipes/paper/profiles`, and share their records in one folder, so that
the time of a recipe is that of what the recipes before it did not make. Each run ends with a report. A run that was stopped
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes" / "paper"
_ALIMARK = [sys.executable, "-m", "alimark", "bench"]


def _chosen(names: list[str]) -> list[Path]:
    return sorted(path for path in RECIPES.glob("*.toml") if not names or path.stem in names)


def check(options: argparse.Namespace) -> int:
    for recipe in _chosen(options.recipes):
        done = subprocess.run([*_ALIMARK, "run", recipe, "--dry-run"], capture_output=True, text=True, check=False)
        print(f"{recipe.stem}: status {done.returncode}\n{done.stderr}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Runs each recipe and reports on it. The exit status is the number of recipes that failed."""
    failed = 0
    profiles = ["--profile", "local", "--profile", "small"]
    for recipe in _chosen(options.recipes):
        started = time.perf_counter()
        words = ([*_ALIMARK, "run", recipe, *profiles, "-o", options.output], [*_ALIMARK, "report", options.output])
        finished = all(subprocess.run(command, stdout=sys.stderr, check=False).returncode == 0 for command in words)
        rows = ""
        if finished:
            results = json.loads((options.output / "results" / f"{recipe.stem}.json").read_bytes())
            rows = f"{len(results['rows'])} rows, {sum(row['failed'] for row in results['rows'])} texts failed"
        failed += not finished
        print(f"{recipe.stem}: {time.perf_counter() - started:.0f} s, {rows or 'FAILED'}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("check", help="what each recipe lacks as it stands")
    verb.set_defaults(do=check)
    verb.add_argument("recipes", nargs="*", help="names of recipes; all of them by default")
    verb = verbs.add_parser("run", help="a small run of each recipe")
    verb.set_defaults(do=run)
    verb.add_argument("output", type=Path)
    verb.add_argument("recipes", nargs="*", help="names of recipes; all of them by default")
    options = parser.parse_args()
    return int(options.do(options))


if __name__ == "__main__":
    sys.exit(main())
