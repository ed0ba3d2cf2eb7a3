"""alimark bench: from a recipe to tables, plots and numbers with intervals."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import loading, show
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.bench.recipe import Recipe
    from alimark.scale.generation import Replicas

app = typer.Typer(no_args_is_help=True, help="Run experiments from recipes, and report what they found.")

_FOLDER = Path("bench")
_MOST_FAULTS = 5


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/smoke.toml.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of records and results; several recipes may share it.")
    ] = _FOLDER,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE, such as llm=smollm2-135m or data.texts=10; may be repeated."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share the work; each loads its own models.")
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(help="Who writes the texts: plain (this process) or ray (replicas of the model on a cluster)."),
    ] = "plain",
    address: Annotated[str | None, typer.Option(help="A running Ray cluster; by default this machine alone.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas of the model; default, as many as there is room for.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and tell what would be done.")] = False,
) -> None:
    """Run a recipe: generate, attack, detect, measure, evaluate.

    Records are written as they are finished and known by what made them: a
    run that was stopped goes on, and what another recipe made is not made
    again.

        alimark bench run recipes/smoke.toml
        alimark bench run recipes/local/main.toml --set data.texts=20 -o work
        alimark bench report work
    """  # fmt: skip
    from alimark.bench import recipe as recipes

    loaded = recipes.load(recipe, overrides or ())
    if dry_run:
        _tell(loaded)
        return
    with _bars() as bars, loading.replicas(engine, address, replicas) as writers:
        if processes > 1:
            if writers:
                raise AlimarkError("--processes share this machine and --engine ray a cluster; take one of them")
            _together(loaded, output, processes)
        _run(loaded, output, recipe.stem, bars, writers)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")] = _FOLDER,
    to: Annotated[Path | None, typer.Option("--to", help="Where the report goes; by default into that folder.")] = None,
) -> None:
    """Write the report of a run: one HTML page, and Markdown with its plots."""
    from alimark.bench import report as reports
    from alimark.bench import results
    from alimark.bench.workspace import Workspace

    paths = Workspace(folder).all_results() if (folder / "results").is_dir() else []
    if not paths:
        raise AlimarkError(f"{folder} holds no results; run: alimark bench run RECIPE --output {folder}")
    page, text = reports.write(to or folder, [results.load(path) for path in paths])
    show.note(f"{page}\n{text}")


def _run(loaded: Recipe, output: Path, name: str, bars: _Bars, writers: Replicas | None) -> None:
    from alimark.bench.evaluate import evaluate
    from alimark.bench.results import save
    from alimark.bench.run import Run
    from alimark.bench.workspace import Workspace

    started = time.perf_counter()
    workspace = Workspace(output)
    work = Run(loaded, workspace, bars, replicas=writers)
    _fetch(loaded)
    with loading.quiet_ray(writers is not None):
        work.run()
    found = evaluate(work, name)
    save(workspace.results(name), found)
    _table(found)
    show.note(f"{workspace.results(name)}, {time.perf_counter() - started:.0f} s; next: alimark bench report {output}")


def _fetch(loaded: Recipe) -> None:
    from alimark.bench.recipe import variants
    from alimark.keys.key import DEFAULT_EMBEDDER

    names = {loaded.meaning, loaded.quality.oracle}
    for variant in variants(loaded):
        names |= {variant.recipe.llm.name.split(":", 1)[-1]}
        names |= {str(one.key.get("embedder", DEFAULT_EMBEDDER)) for one in variant.recipe.watermark}
        names |= {str(one.settings["llm"]) for one in variant.recipe.attack if isinstance(one.settings.get("llm"), str)}
    loading.fetch_models(*sorted(names))


def _tell(loaded: Recipe) -> None:
    from alimark.bench.recipe import attacks, variants

    points = list(variants(loaded))
    cells = sum(len(one.recipe.data.sets) * len(one.recipe.watermark) for one in points)
    texts = sum(len(one.recipe.data.sets) * len(one.recipe.watermark) * one.recipe.data.texts for one in points)
    hits = sum(
        len(one.recipe.data.sets) * len(one.recipe.watermark) * one.recipe.data.texts * len(attacks(one.recipe))
        for one in points
    )
    show.note(
        f"{loaded.title}: {len(points)} points of the grid, {cells} cells, at most {texts} texts to write and {hits} to "
        f"attack; attacks: {', '.join(one.label for one in attacks(points[0].recipe)) or 'none'}"
    )


def _table(found: Any) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("method", "data", "attack", "texts", "failed", "AUROC", "TPR@1%", "TPR@5%", "p <= 0.01"):
        table.add_column(title, justify="left" if title in ("method", "data", "attack") else "right")
    for row in found["rows"]:
        grid = ", ".join(f"{name}={value}" for name, value in row["grid"].items())
        method = " ".join(part for part in (row["method"], row["detection"], grid) if part)
        rates = [_percent(row["tpr"].get(rate)) for rate in ("0.01", "0.05")]
        table.add_row(
            method, row["data"], row["attack"], str(row["texts"]), str(row["failed"]), f"{row['auroc']['value']:.3f}", *rates,
            _percent(row["tpr_nominal"].get("0.01")),
        )  # fmt: skip
    show.stdout().print(table)


def _percent(found: Any) -> str:
    return "-" if found is None else f"{found['value']:.0%} ({found['low']:.0%}-{found['high']:.0%})"


class _Bars:
    """A bar for each stage on a terminal, a line now and then elsewhere."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._ticker = bar, show.Ticker()
        self._task: Any = None
        self._name, self._total, self._done, self._faults = "", 0, 0, 0

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._done = name, total, done
        self._task = self._bar.add_task(name, total=total, completed=done) if total else None

    def step(self, count: int = 1) -> None:
        self._done += count
        if self._task is not None:
            self._bar.advance(self._task, count)
        self._ticker.tick(f"{self._name}: {self._done} of {self._total}")

    def fault(self, message: str) -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            more = "; more of them are only recorded" if self._faults == _MOST_FAULTS else ""
            show.note(f"warning: {message}; recorded as failed{more}")


@contextmanager
def _bars() -> Iterator[_Bars]:
    with show.progress() as bar:
        yield _Bars(bar)


def _together(loaded: Recipe, output: Path, processes: int) -> None:
    """Processes that each take the jobs whose ids fall to them, stage by stage; what one leaves the last run makes."""
    import subprocess

    from alimark._util.files import write_whole
    from alimark.bench.recipe import to_toml

    output.mkdir(parents=True, exist_ok=True)
    shared = output / ".recipe.toml"
    write_whole(shared, to_toml(loaded).encode("utf-8"))
    for stage in ("generate", "attack", "detect", "meaning", "quality"):
        command = [sys.executable, "-m", "alimark.bench.worker", str(shared), str(output), stage]
        workers = [subprocess.Popen([*command, str(i), str(processes)]) for i in range(processes)]
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
