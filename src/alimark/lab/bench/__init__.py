"""The bench: experiments from recipes. Its stages from Python:

from alimark.lab.bench import recipe_files, report
from alimark.lab.bench.evaluate import evaluate
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

recipe = recipe_files.load(Path("smoke"), ["data.texts=10"])
run = Run(recipe, Workspace(Path("work")))
run.run()                                       # or run.run_stage("generate"), "attack", "detect", "quality"
report.write(Path("work"), [evaluate(run, "smoke")])
"""

from importlib.util import find_spec

from alimark.errors import MissingExtra


def need_lab() -> None:
    """Raises MissingExtra where a library of the bench is missing."""
    for library in ("pydantic", "matplotlib", "jinja2", "tomli_w", "scipy", "sklearn"):
        if not find_spec(library):
            raise MissingExtra(library, "lab")


class RunProgress:
    """Receives what a run does; this one shows nothing."""

    def stage(self, name: str, total: int, done: int) -> None:
        """Begin a stage of `total` jobs, of which `done` were finished by an earlier run."""

    def step(self) -> None:
        """Count a finished job."""

    def fault(self, message: str) -> None:
        """Say why a job failed."""
