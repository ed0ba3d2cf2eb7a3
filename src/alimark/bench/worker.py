"""One of several processes that work on a recipe: python -m alimark.bench.worker RECIPE FOLDER STAGE MINE ALL."""

from __future__ import annotations

import sys
from pathlib import Path

from alimark.bench.recipe import load
from alimark.bench.run import Run
from alimark.bench.workspace import Workspace
from alimark.errors import AlimarkError


def main(recipe: str, folder: str, stage: str, mine: str, every: str) -> None:
    """Each writes to files of its own, so that none waits for another."""
    work = Run(load(Path(recipe)), Workspace(Path(folder), part=int(mine) + 1), share=(int(mine), int(every)))
    getattr(work, f"run_{stage}")()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AlimarkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
