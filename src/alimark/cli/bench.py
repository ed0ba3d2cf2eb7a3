"""alimark bench: runs experiments from recipes, and writes tables, plots and numbers with intervals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, options, show
from alimark.errors import AlimarkError
from alimark.lab.bench import RunProgress, need_lab

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.audit.replicas import Replicas
    from alimark.lab.bench.recipe import Recipe
    from alimark.lab.bench.results import Results
    from alimark.lab.bench.tables import Table

app = typer.Typer(no_args_is_help=True, help="Run experiments from recipes, and report their results.")

_FOLDER = Path("bench")
_MAX_FAULTS = 5  # faults that are printed; more are only recorded

RecipeFile = Annotated[
    Path, typer.Argument(help="A TOML file, or the name of a recipe that comes with alimark, such as smoke.")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder of records and results; several recipes may share it.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="PATH=VALUE, such as llm=smollm2-135m or data.texts=10; may be repeated."),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        help="Changes for another machine: the name of a file in the folder profiles beside the recipe, or a TOML file; may "
        "be repeated.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what a run would do, check all that it needs, and list what is missing."),
]


@app.command()
def run(
    recipe: RecipeFile,
    output: Output = _FOLDER,
    overrides: Overrides = None,
    profile: Profiles = None,
    engine: options.EngineName = "plain",
    address: options.Address = None,
    replicas: options.ReplicaCount = None,
    dry_run: DryRun = False,
) -> None:
    """Run a recipe: generate, attack, detect, measure, evaluate.

    Records are written as soon as they are finished, under an id that is
    computed from all settings behind them. So a run that was stopped can be
    continued, and a record that another recipe wrote is used again. Before the
    first text, all that is left to do is checked: models, libraries, data.

        alimark bench run smoke
        alimark bench run paper/main-opt --dry-run
        alimark bench run paper/main-opt --profile local --set data.texts=20 -o work
        alimark bench report work
    """  # fmt: skip
    need_lab()
    from alimark.lab.bench.recipe_files import load

    loaded = load(recipe, overrides or (), profile or ())
    if dry_run:
        _print_plan(loaded)
        _check(loaded)
        return
    _check(loaded, output)
    with show.progress() as progress, loading.replicas(engine, address, replicas) as writers:
        _run(loaded, output, recipe.stem, StageBar(progress), writers)


def compare(
    watermarks: Annotated[list[str], typer.Argument(help="Schemes, such as alimark and kgw.")],
    attack: Annotated[
        list[str] | None, typer.Option(help='"NAME RATE", or FILE.py:FUNCTION from text to text; repeatable.')
    ] = None,
    llm: Annotated[str, typer.Option(help="The language model.")] = "smollm2-135m",
    prompts: Annotated[str, typer.Option(help="A data set of the bench, or a JSONL file.")] = "manual",
    texts: Annotated[int, typer.Option(help="Prompts.")] = 10,
    sentences: Annotated[int, typer.Option(help="Sentences of a text.")] = 12,
    human: Annotated[int, typer.Option(help="Human texts; a threshold at 1% needs 100.")] = 100,
    embedder: Annotated[str, typer.Option(help="Embedder of the keys.", show_default="that of keygen")] = "",
    output: Output = Path("compare"),
) -> None:
    """Compare watermarks on the same prompts under the same attacks.

        alimark compare alimark kgw --attack "delete 0.3" --attack typos
        alimark compare alimark semstamp --attack mine.py:shout --texts 50

    Prints the shares found with intervals, false alarms and cost, and writes a
    report. A comparison that was stopped goes on in the same folder.
    """  # fmt: skip
    from alimark.lab.bench import report as reports
    from alimark.lab.compare import compare as run_comparison

    with show.progress() as progress:
        compared = run_comparison(
            watermarks, attacks=attack or ["delete 0.3", "typos"], llm=llm, prompts=prompts, texts=texts,
            sentences=sentences, human_texts=human, embedder=embedder, folder=output, progress=StageBar(progress),
        )  # fmt: skip
    _print_table(compared.table)
    show.note(f"{reports.write(output, [compared.results])[0]}; every text: alimark bench view {output}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")] = _FOLDER,
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder that the report goes to.", show_default="the folder of the run")
    ] = None,
) -> None:
    """Write the report of a run: an HTML page, and Markdown with its plots.

    A run that is not finished, or was stopped, is reported as far as it is.
    """
    need_lab()
    from alimark.lab.bench import report as reports
    from alimark.lab.bench.evaluate import all_results
    from alimark.lab.bench.workspace import Workspace

    results = all_results(Workspace(folder)) if (folder / "results").is_dir() else []
    if not results:
        raise AlimarkError(f"{folder} holds no results; run: alimark bench run RECIPE --output {folder}")
    page, text = reports.write(to or folder, results)
    show.note(f"{page}\n{text}")


@app.command()
def view(
    folders: Annotated[list[Path], typer.Argument(help="The folder of a run, or of several.")] = [_FOLDER],  # noqa: B006
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 0,
    fpr: Annotated[
        float, typer.Option(min=0, max=1, help="A mark counts as found at this p-value or a smaller one.")
    ] = 0.01,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Browse the texts of runs on a local page.

    The page lists all scored texts, filtered by watermark, attack and
    verdict, and grows while a run goes on. It shows each text beside its
    original with the words that differ and its alignment with the key, other
    texts from the same prompt, the tables of two runs side by side, and
    exports tables as CSV, LaTeX and Markdown. Only this machine can open it,
    under the address that is printed. Ctrl-C ends it.

        alimark bench view work
        alimark bench view work other-work
    """
    need_lab()
    import webbrowser

    from alimark.lab.bench.view.answers import Answers
    from alimark.lab.bench.view.server import ViewServer
    from alimark.lab.bench.workspace import Workspace

    for folder in folders:
        if not (folder / "records").is_dir():
            raise AlimarkError(f"{folder} holds no records; run: alimark bench run RECIPE --output {folder}")
    show.note("reading the records")
    answers = Answers([Workspace(folder) for folder in folders], fpr)
    if not answers.entries:
        show.note("no text is scored yet; the page shows them as they come")
    try:
        server = ViewServer(answers, port)
    except OSError as error:
        raise AlimarkError(f"port {port} cannot be used ({error.strerror}); choose another one with --port") from None
    show.note(f"{len(answers.entries):,} scored texts; open {server.url} in a browser (Ctrl-C ends the page)")
    if open_browser:
        webbrowser.open(server.url)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            show.note("ended")


def _run(recipe: Recipe, output: Path, name: str, bar: StageBar, writers: Replicas | None) -> None:
    from alimark.lab.bench.evaluate import evaluate
    from alimark.lab.bench.recipe_files import to_toml
    from alimark.lab.bench.results import save
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    started = time.perf_counter()
    workspace = Workspace(output)
    work = Run(recipe, workspace, bar, replicas=writers)
    workspace.save_recipe(name, to_toml(recipe))
    with loading.quiet_ray(writers is not None):
        work.run()
    results = evaluate(work, name)
    save(workspace.results(name), results)
    _print_tables(results)
    show.note(f"{workspace.results(name)}, {time.perf_counter() - started:.0f} s; next: alimark bench report {output}")


def _check(recipe: Recipe, output: Path | None = None) -> None:
    """Raises an error that lists everything that a run needs and that is missing.

    With the folder of a run, only what is left of it is checked, and the models of the store are fetched.
    """
    from alimark.core.models import store
    from alimark.lab.bench import requirements
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    run = Run(recipe, Workspace(output)) if output and output.is_dir() else None
    needed = requirements.check(recipe, run)
    if output:
        loading.fetch_models(*sorted(needed.models))
    elif to_fetch := [name for name in sorted(needed.models) if not store.is_fetched(name)]:
        show.note(f"everything is there; a run fetches these models first: {', '.join(to_fetch)}")
    else:
        show.note("everything that a run needs is there")


def _print_plan(recipe: Recipe) -> None:
    from alimark.lab.bench.recipe import attacks, variants

    points = [point.recipe for point in variants(recipe)]
    cells = written = attacked = 0
    for point in points:
        rows, prompts = len(point.watermark), len(point.data.sets) * point.data.texts
        cells += rows * len(point.data.sets)
        written += prompts * sum(not row.human for row in point.watermark)
        attacked += prompts * rows * len(attacks(point))
    show.note(
        f"{recipe.title}: {len(points)} points of the grid, {cells} cells, at most {written} texts to write and "
        f"{attacked} to attack; attacks: {', '.join(attack.label for attack in attacks(points[0])) or 'none'}"
    )


_SHOWN = ("texts", "failed", "rejected answers", "AUROC", "TPR@1%", "TPR@5%", "p ≤ 0.01")
"""The columns of figures that the terminal shows; the report has all."""


def _print_tables(results: Results) -> None:
    """Print the detection rates, with intervals and, where texts failed, with failed ones as misses."""
    from alimark.lab.bench.shape import statistic_note
    from alimark.lab.bench.tables import details

    for full in details(results):
        _print_table(full, _SHOWN)
    show.note(statistic_note(results["rows"]))


def _print_table(full: Table, wanted: tuple[str, ...] = ()) -> None:
    """Print a table, with those of its columns of figures that are wanted, or all."""
    from rich import table as rich_tables

    columns = enumerate(full.columns)
    shown = {i: column for i, column in columns if not (wanted and column.number) or column.label in wanted}
    table = rich_tables.Table(box=None, header_style="bold", pad_edge=False, title=full.title, title_justify="left")
    for column in shown.values():
        table.add_column(column.label, justify="right" if column.number else "left")
    for line in full.lines:
        cells = [line[i] for i in shown]
        table.add_row(*(f"{cell.text} ({cell.small})" if cell.small else cell.text for cell in cells))
    show.print_table(table)


class StageBar(RunProgress):
    """Shows a bar for each stage on a terminal, and a line every few seconds elsewhere."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._faults = progress, 0

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total, self._done = name, total, done
        self._task = show.Task(self._progress, name, total, done)

    def step(self) -> None:
        self._done += 1
        self._task.show(f"{self._name}: {self._done} of {self._total}", self._done)

    def fault(self, message: str) -> None:
        """Print why a job failed, unless many did before."""
        self._faults += 1
        if self._faults <= _MAX_FAULTS:
            more = "; more of them are only recorded" if self._faults == _MAX_FAULTS else ""
            show.note(f"warning: {message}; recorded as failed{more}")
