"""Runs the stages of a recipe in several processes, each of which takes a share of the jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core._util.files import write_whole
from alimark.errors import AlimarkError
from alimark.lab.bench.recipe_toml import to_toml
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import STAGES, Workspace

if TYPE_CHECKING:
    from alimark.lab.bench.recipe import Recipe


def run_processes(recipe: Recipe, output: Path, count: int) -> None:
    """Runs every stage in `count` processes; a job belongs to a process by its id.

    What the schemes learn from text is learned before, in this process. A stage begins when all processes have finished
    the one before. What a process leaves undone, a plain run does afterwards.

    Raises:
        AlimarkError: A process ended with an error, which it has printed on stderr.
    """
    Run(recipe, Workspace(output)).fit()
    shared = output / ".recipe.toml"
    write_whole(shared, to_toml(recipe).encode("utf-8"))
    for stage in STAGES:
        command = [sys.executable, "-m", "alimark.lab.bench.worker", str(shared), str(output), stage]
        workers = [subprocess.Popen([*command, str(i), str(count)]) for i in range(count)]
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(codes):
            raise AlimarkError(
                f"a process of the {stage} stage ended with an error (see above); what was finished is kept"
            )
    shared.unlink()
