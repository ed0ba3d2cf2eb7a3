"""One of several processes that run a recipe: python -m alimark.lab.bench.worker RECIPE FOLDER STAGE NUMBER PROCESSES."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from alimark.errors import AlimarkError
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Stage, Workspace


def main(recipe: str, folder: str, stage: str, number: str, processes: str) -> None:
    """Run this process's share of a stage. Each process writes its own files, so that none waits for another."""
    workspace = Workspace(Path(folder), part=int(number) + 1)
    run = Run(load(Path(recipe)), workspace, share=(int(number), int(processes)))
    run.run_stage(cast(Stage, stage))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AlimarkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
