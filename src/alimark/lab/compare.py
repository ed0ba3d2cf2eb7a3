"""Compares watermarks on the same prompts under the same attacks: a recipe of the bench, made and run in one call."""

from __future__ import annotations

import hashlib
import json
import runpy
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from alimark.core._util.files import write_whole
from alimark.core._util.progress import Line
from alimark.core.llm import DEFAULT_LLM
from alimark.errors import AlimarkError, AttackError
from alimark.lab.attacks import ATTACKS
from alimark.lab.attacks.base import TextAttack, setting
from alimark.lab.bench import RunProgress, need_lab

if TYPE_CHECKING:
    from alimark.lab.bench.models import Models
    from alimark.lab.bench.plots import Plot
    from alimark.lab.bench.recipe import Recipe, WatermarkRow
    from alimark.lab.bench.results import Results
    from alimark.lab.bench.tables import Table
    from alimark.lab.bench.workspace import Workspace

SomeAttack: TypeAlias = str | Mapping[str, object] | Callable[[str], str]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison gave; a notebook shows its table and its plot."""

    results: Results  # every figure with its interval, and the scores behind it
    folder: Path  # the texts and scores, for `alimark bench view` and `alimark bench report`

    @property
    def table(self) -> Table:
        """A row for each watermark: the share found under each attack, false alarms, cost and quality."""
        from alimark.lab.bench.tables import comparison

        return comparison(self.results)

    @property
    def plot(self) -> Plot:
        """The shares found under each attack; `plot.svg` is the picture."""
        from alimark.lab.bench import plots, shape

        return plots.draw(self.results, shape.colours([self.results]), "compare")["found"][0]

    def __str__(self) -> str:
        from alimark.lab.bench.export import to_markdown

        return to_markdown(self.table)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(dict.fromkeys(row['method'] for row in self.results['rows']))}; {self.folder})"

    def _repr_html_(self) -> str:
        from alimark.lab.bench.report import part_in_html

        return part_in_html(self.table) + part_in_html(self.plot)


def compare(
    watermarks: Sequence[str] | Mapping[str, str | Mapping[str, object]],
    *,
    attacks: Iterable[SomeAttack] = ("delete 0.3", "typos"),
    llm: str = DEFAULT_LLM,
    prompts: str | Path | Sequence[str] = "manual",
    texts: int = 10,
    sentences: int = 12,
    human_texts: int = 100,
    oracle: str | None = None,
    folder: str | Path | None = None,
    progress: RunProgress | None = None,
    **settings: object,
) -> Comparison:
    """Compares watermarks: each continues the same prompts, and every text is attacked and looked for.

    Args:
        watermarks: Names of schemes, such as "alimark" and "kgw"; or for each label a name, or a row of a recipe such as
            `{"scheme": "kgw", "key": {"delta": 4.0}}`.
        attacks: Names of attacks, with a rate where they have one ("delete 0.3"); rows of a recipe; functions of your own from
            text to text, or where they are ("mine.py:shout").
        llm: The name of the language model.
        prompts: A list of prompts; or a data set of the bench, or a JSONL file with `prompt` and `natural_text`.
        texts: How many prompts are taken from a data set or a file.
        sentences: The length of a text.
        human_texts: How many human texts each watermark is tried on; a threshold at 1% needs 100.
        oracle: The model that measures perplexity; by default `llm`, where transformers is installed, and "" measures none.
        folder: Where texts and scores are kept, so that a comparison that was stopped goes on; by default a new folder.
        progress: Receives what is done; by default a line shows it on a terminal and in notebooks.
        **settings: Further parts of a recipe, such as `seed=2` or `embedder="all-mpnet-base-v2"`.

    Raises:
        AlimarkError: A name or a setting is wrong, or something that is needed is missing.

    Example:
        >>> def shout(text: str) -> str:
        ...     return text.upper()
        >>> compared = compare(
        ...     ["alimark"], attacks=["delete 0.3", shout], llm="stand-in", embedder="stand-in", prompts=["It was late."],
        ...     sentences=4, human_texts=20,
        ... )
        >>> [row["attack"] for row in compared.results["rows"]]
        ['none', 'delete 0.3', 'shout']
    """
    need_lab()
    from alimark.lab.bench.recipe_files import parse
    from alimark.lab.bench.workspace import Workspace

    workspace = Workspace(Path(tempfile.mkdtemp(prefix="alimark-") if folder is None else folder))
    rows = watermarks if isinstance(watermarks, Mapping) else {name: name for name in watermarks}
    if oracle is None:
        oracle = llm if find_spec("transformers") and find_spec("torch") and llm != "stand-in" else ""
    content = {
        "title": "Comparison", "llm": {"name": llm}, "quality": {"oracle": oracle},
        "data": _data(prompts, texts, sentences, human_texts, workspace.folder), "fpr": [0.01, 0.05], "examples": 1,
        "watermark": [{"label": label, **({"scheme": row} if isinstance(row, str) else row)} for label, row in rows.items()],
        "attack": [_row(attack) for attack in attacks],
    }  # fmt: skip
    with Line("", 1) as line:
        return _run(parse(content | settings), workspace, progress or _Stages(line))


def _run(recipe: Recipe, workspace: Workspace, progress: RunProgress) -> Comparison:
    from alimark.lab.bench import requirements
    from alimark.lab.bench.evaluate import evaluate
    from alimark.lab.bench.models import Models
    from alimark.lab.bench.recipe_files import to_toml
    from alimark.lab.bench.results import save
    from alimark.lab.bench.run import Run

    requirements.check(recipe)
    models = Models()
    recipe = recipe.model_copy(update={"watermark": [_steered(row, recipe, models) for row in recipe.watermark]})
    workspace.save_recipe("compare", to_toml(recipe))
    run = Run(recipe, workspace, progress, models=models)
    run.run()
    results = evaluate(run, "compare")
    save(workspace.results("compare"), results)
    return Comparison(results, workspace.folder)


class _Stages(RunProgress):
    """Shows each stage of a run on one line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def stage(self, name: str, total: int, done: int) -> None:
        self._line.title, self._total, self._done = name, total, done

    def step(self) -> None:
        self._done += 1
        self._line.at(self._done, self._total)


def _data(
    prompts: str | Path | Sequence[str], texts: int, sentences: int, human_texts: int, folder: Path
) -> dict[str, object]:
    """The recipe's `data`. A list of prompts is paired with texts of Python's manual, which serve as human ones."""
    from alimark.lab.bench.data import MANUAL, load

    data: dict[str, object] = {"texts": texts, "sentences": sentences, "human_texts": human_texts}
    if isinstance(prompts, str | Path):
        return data | {"sets": [str(prompts)]}
    items = load(MANUAL, sentences, most=max(len(prompts), human_texts)).items
    if not 1 <= len(prompts) <= len(items):
        raise AlimarkError(f"a list holds 1 to {len(items)} prompts, not {len(prompts)}; put more into a JSONL file")
    given = [*prompts, *(item.prompt for item in items[len(prompts) :])]
    lines = [json.dumps({"prompt": each, "natural_text": item.human}) for each, item in zip(given, items, strict=True)]
    write_whole(folder / "prompts.jsonl", "\n".join(lines).encode("utf-8"))
    return data | {"sets": [str(folder / "prompts.jsonl")], "texts": len(prompts)}


def _row(attack: SomeAttack) -> dict[str, object]:
    """The row of a recipe for an attack. A function becomes an attack of its own name, in this process."""
    if isinstance(attack, Mapping):
        return dict(attack)
    if isinstance(attack, str):
        file, colon, name = attack.rpartition(":")
        if not (colon and file.endswith(".py")):
            name, _, rate = attack.partition(" ")
            try:
                return {"name": name} | ({"rate": float(rate)} if rate else {})
            except ValueError:
                raise AttackError(f"an attack is a name with or without a rate (delete 0.3), not {attack!r}") from None
        try:
            attack = runpy.run_path(file)[name]
        except (OSError, KeyError) as error:
            raise AttackError(f"there is no function {name} in {file} ({type(error).__name__})") from None
    if not callable(attack):
        raise AttackError(f"an attack is a name, a row of a recipe or a function from text to text, not {attack!r}")
    kind = _attack_class(attack)
    ATTACKS.replace(kind.name, kind)
    return {"name": kind.name, "code": kind.of().settings["code"]}


def _attack_class(function: Callable[[str], str]) -> type[TextAttack]:
    code = getattr(function, "__code__", None)
    content = repr((code.co_code, code.co_consts, code.co_names) if code else function)

    @dataclass(frozen=True)
    class Own(TextAttack):
        name = getattr(function, "__name__", "own").strip("<>")
        code: str = setting(hashlib.sha256(content.encode()).hexdigest()[:12], "What the function computes.")

        def rewrite(self, text: str, random: Random) -> str:
            try:
                result: Any = function(text)
            except Exception as error:  # whatever the function raises
                raise AttackError(f"{self.name} raised {type(error).__name__}: {error}") from error
            if not isinstance(result, str) or not result.strip():
                raise AttackError(f"{self.name} returned {type(result).__name__}, or nothing; it has to return a text")
            return result

    return Own


def _steered(row: WatermarkRow, recipe: Recipe, models: Models) -> WatermarkRow:
    """A row of AliMark that leaves candidates and steering open, with those that `generate` has by default."""
    from alimark.core.generation.settings import candidates_and_steering
    from alimark.core.schemes.api import load
    from alimark.core.schemes.registry import aligns
    from alimark.lab.bench.models import embedder_for, key_for

    if row.generate or row.human or not aligns(row.scheme):
        return row
    whole = row.of(recipe)
    mark = load(key_for(whole, bytes(32), models), embedder=embedder_for(whole, models))
    steerable = mark.steerable(models.llm(recipe.llm.name, recipe.llm.options))
    count, steering = candidates_and_steering(None, None, None, mark.candidates, steerable=steerable)
    return row.model_copy(update={"generate": {"candidates": count, "steering": steering}})
