"""The records that a recipe asks for, as jobs: one job is one record to make.

The id of a job is the hash of everything that its record depends on. Records of equal jobs are therefore shared between
recipes and runs, and a changed setting gives a new id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Generic, NamedTuple, TypeVar

from alimark.core._util.json_types import JsonObject
from alimark.core.generation.api import GenerationSettings
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.llm.base import Sampling
from alimark.core.schemes.registry import scheme
from alimark.lab.attacks import seed_for
from alimark.lab.bench.data import DataItem, DataSet
from alimark.lab.bench.data import load as load_data
from alimark.lab.bench.models import LEARNED, Lesson, embedder_name, learns
from alimark.lab.bench.recipe import Data, DetectionRow, GridPoint, OneAttack, Recipe, WatermarkRow, attacks, variants
from alimark.lab.bench.workspace import digest

_SCORES = 1
"""Increase this number when a change of detection changes scores: records of older releases are then not used."""

POOLED_ATTACKS = ("insert", "copy-paste")  # attacks that take sentences from other texts of the data set

HUMAN = "human:"  # start of a source that is a human text and not the id of a record


@dataclass(frozen=True)
class Cell:
    """One watermark on one data set at one point of the grid."""

    variant: GridPoint
    watermark: WatermarkRow
    data: DataSet = field(hash=False)

    @property
    def recipe(self) -> Recipe:
        return self.variant.recipe

    @cached_property
    def items(self) -> list[DataItem]:
        """The prompts that are continued; the data set may hold more human texts."""
        return self.data.items[: self.recipe.data.texts]

    @property
    def conditions(self) -> list[OneAttack | None]:
        """The attacks under which texts are scored; None: without an attack."""
        return [*([None] if self.recipe.clean else []), *attacks(self.recipe)]

    @cached_property
    def generation_parameters(self) -> JsonObject:
        """The key's parameters that a written text depends on; kept, because every job of the cell names them."""
        return _generation_parameters(self.watermark)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The ids of the cell's marked texts, by prompt, as far as `Plan.source` was asked."""
        return {}


class TextToWrite(NamedTuple):
    cell: Cell
    item: DataItem
    settings: GenerationSettings
    marked: bool
    answer: int


class TextToAttack(NamedTuple):
    cell: Cell
    item: DataItem
    attack: OneAttack
    parent: str
    """The id of the attacked text's record: a written text, or the result of the step before in a chain of attacks."""
    seed: int


class TextToScore(NamedTuple):
    cell: Cell
    detection: DetectionRow
    source: str  # the id of a text's record, or "human:" and the text
    secret_text: str  # the text that the key's secret is derived from: a prompt, or a human text
    number: int


class TextToRead(NamedTuple):
    prompt: str
    source: str


Content_co = TypeVar("Content_co", covariant=True)


@dataclass(frozen=True)
class Job(Generic[Content_co]):
    """A record to make: its id and what is needed to make it. Jobs with the same `group` use the same models."""

    id: str
    group: tuple[object, ...] = field(hash=False)
    content: Content_co = field(hash=False)
    earlier: Job[Content_co] | None = field(default=None, hash=False)
    """The job of the same stage that must be done before this one: the step before in a chain of attacks."""

    @property
    def chain(self) -> list[Job[Content_co]]:
        """The jobs to do one after the other, this one last."""
        return [*(self.earlier.chain if self.earlier else ()), self]


def _generation_parameters(watermark: WatermarkRow) -> JsonObject:
    """The key's parameters that a written text depends on; of soft keys with the defaults that depend on the embedder."""
    parameters = {name: value for name, value in watermark.key.items() if name != "decision"}
    if watermark.soft:
        return parameters | _soft_parameters(json.dumps(watermark.key, sort_keys=True))
    defaults = watermark.parameters()
    return parameters | {name: value for name, value in defaults.to_json().items() if name in defaults.earlier}


@cache
def _soft_parameters(public: str) -> JsonObject:
    """The parameters of a soft key with their defaults, such as the table of directions of the embedder."""
    given = json.loads(public)
    fitted = Fitted.load(given.pop("fitted")) if "fitted" in given else None
    return Key.generate(secret=bytes(32), fitted=fitted, **given).parameters.to_json()


@cache
def _data_set(name: str, sentences: int, short: str, skip: int, most: int) -> DataSet:
    """A data set, read once: the points of a grid and the rows of a recipe share it."""
    return load_data(name, sentences, short=short, most=most, skip=skip)


def _used(data: Data) -> int:
    """The number of texts of each data set that are continued or scored."""
    return max(data.human_texts, data.texts)


class Plan:
    """All jobs of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._lessons: dict[str, Lesson] = {}

    @cached_property
    def cells(self) -> list[Cell]:
        return [
            Cell(variant, self._with_fitted(watermark, name, variant.recipe), self.data_set(name, variant.recipe))
            for variant in variants(self.recipe)
            for name in variant.recipe.data.sets
            for watermark in variant.recipe.watermark
        ]

    @property
    def lessons(self) -> dict[str, Lesson]:
        """What the run learns from text, by the name of the file."""
        _ = self.cells
        return self._lessons

    def data_set(self, name: str, recipe: Recipe) -> DataSet:
        """The prompts and human texts of a data set that the recipe uses."""
        data = recipe.data
        return _data_set(name, data.sentences, data.short, data.skip, _used(data))

    def fit_set(self, name: str, recipe: Recipe) -> DataSet:
        """The texts of a data set of `[fit]`."""
        return _data_set(name, recipe.data.sentences, recipe.data.short, 0, recipe.fit.texts)

    def lesson(self, watermark: WatermarkRow, name: str, recipe: Recipe) -> Lesson:
        """What the rows of a data set learn: from the data sets of `[fit]`, else from the texts after those that are used."""
        data, used = recipe.data, _used(recipe.data)
        if recipe.fit.sets:
            texts = [text for other in recipe.fit.sets for text in self.fit_set(other, recipe).human]
        else:
            texts = _data_set(name, data.sentences, data.short, data.skip, used + recipe.fit.texts).human[used:]
        return Lesson(watermark.scheme, embedder_name(watermark), watermark.fit, texts)

    def _with_fitted(self, watermark: WatermarkRow, name: str, recipe: Recipe) -> WatermarkRow:
        """The watermark with the file that the run learns, if the scheme needs one and the recipe names none."""
        if not learns(watermark):
            return watermark
        lesson = self.lesson(watermark, name, recipe)
        self._lessons[lesson.file] = lesson
        return watermark.model_copy(update={"key": watermark.key | {"fitted": f"{LEARNED}{lesson.file}"}})

    # Generation

    def generate_job(self, cell: Cell, item: DataItem, *, marked: bool = True, answer: int = 0) -> Job[TextToWrite]:
        """A text that continues a prompt; `answer` numbers several texts for the same prompt."""
        recipe, options = cell.recipe, dict(cell.watermark.generate)
        if marked:
            options.setdefault("candidates", scheme(cell.watermark.scheme).candidates)
        settings = GenerationSettings(recipe.data.sentences, **options, sampling=Sampling(**recipe.llm.sampling))
        parameters = cell.generation_parameters
        inputs = {
            "stage": "generate", "prompt": item.prompt, "llm": recipe.llm.name, "settings": settings.to_dict(),
            "seed": recipe.seed, "answer": answer,
            **({"scheme": cell.watermark.scheme, "key": parameters} if marked else {}),
        }  # fmt: skip
        group = (recipe.llm.name, digest(recipe.llm.options), digest(settings.to_dict()), digest(parameters),
                 cell.watermark.scheme, marked)  # fmt: skip
        return Job(digest(inputs), group, TextToWrite(cell, item, settings, marked, answer))

    def source(self, cell: Cell, item: DataItem) -> str:
        """Where the text of a row is: the id of the record of a marked text, or for a row of human texts the text itself."""
        if cell.watermark.human:
            return f"{HUMAN}{item.human}"
        if item.prompt not in cell.sources:
            cell.sources[item.prompt] = self.generate_job(cell, item).id
        return cell.sources[item.prompt]

    def generate_jobs(self) -> Iterator[Job[TextToWrite]]:
        """Marked texts for all prompts, then the further texts whose quality is measured."""
        for cell in self.cells:
            for item in cell.items if not cell.watermark.human else ():
                yield self.generate_job(cell, item)
        for cell in self.cells:
            wanted = cell.recipe.quality
            for item in cell.items[: wanted.texts] if wanted.oracle and wanted.unmarked else ():
                yield self.generate_job(cell, item, marked=False)
            for item in cell.items[: wanted.prompts] if not cell.watermark.human else ():
                for answer in range(wanted.answers):
                    for marked in (True, False) if wanted.unmarked else (True,):
                        yield self.generate_job(cell, item, marked=marked, answer=answer)

    # Attacks

    def attack_job(self, cell: Cell, item: DataItem, attack: OneAttack) -> Job[TextToAttack]:
        """An attack on a written text, or the last step of a chain; `chain` has the jobs of all steps."""
        earlier = self.attack_job(cell, item, attack.earlier) if attack.earlier else None
        parent = earlier.id if earlier else self.source(cell, item)
        pool = cell.data.name if attack.name in POOLED_ATTACKS else ""
        settings = dict(attack.settings)
        inputs = {"stage": "attack", "parent": parent, "attack": attack.name, "settings": settings, "pool": pool,
                  "seed": cell.recipe.seed}  # fmt: skip
        content = TextToAttack(cell, item, attack, parent, seed_for(attack.name, cell.recipe.seed, parent))
        return Job(digest(inputs), (attack.name, digest(settings), pool), content, earlier)

    def attack_jobs(self) -> Iterator[Job[TextToAttack]]:
        for cell in self.cells:
            for attack in attacks(cell.recipe):
                for item in cell.items:
                    yield self.attack_job(cell, item, attack)

    # Detection

    def detect_job(
        self, cell: Cell, detection: DetectionRow, source: str, secret_text: str, number: int = 0
    ) -> Job[TextToScore]:
        """`source` is the id of the record whose text is scored, or "human:" and the text."""
        inputs = {"stage": "detect", "source": source, "key": cell.generation_parameters,
                  "scheme": cell.watermark.scheme, "secret": secret_text, "number": number, "seed": cell.recipe.seed,
                  "options": detection.options, "llm": detection.llm, "scores": _SCORES}  # fmt: skip
        group = (cell.watermark.scheme, digest(cell.watermark.key), digest(detection.options), detection.llm)
        return Job(digest(inputs), group, TextToScore(cell, detection, source, secret_text, number))

    def detect_jobs(self) -> Iterator[Job[TextToScore]]:
        for cell in self.cells:
            for detection in cell.recipe.detection:
                for item in cell.items:
                    for attack in cell.conditions:
                        source = self.attack_job(cell, item, attack).id if attack else self.source(cell, item)
                        yield self.detect_job(cell, detection, source, item.prompt)
                yield from (job for _, job in self.human_jobs(cell, detection))

    def human_jobs(self, cell: Cell, detection: DetectionRow) -> Iterator[tuple[int, Job[TextToScore]]]:
        """Each human text's number, and the text under each of its fresh keys."""
        for number, text in enumerate(cell.data.human[: cell.recipe.data.human_texts]):
            for fresh in range(cell.recipe.data.human_keys):
                yield number, self.detect_job(cell, detection, f"{HUMAN}{text}", text, fresh + 1)

    # Quality

    def quality_jobs(self, cell: Cell) -> Iterator[tuple[str, Job[TextToRead]]]:
        """The kind of each text (the watermark's label, "unmarked" or "human"), and the job."""
        wanted = cell.recipe.quality
        for item in cell.items[: wanted.texts] if wanted.oracle else ():
            sources = {cell.watermark.label: self.source(cell, item), "human": f"{HUMAN}{item.human}"}
            if wanted.unmarked:
                sources["unmarked"] = self.generate_job(cell, item, marked=False).id
            for kind, source in sources.items():
                yield kind, self.reading_job(cell, item, source)

    def reading_jobs(self) -> Iterator[Job[TextToRead]]:
        return (job for cell in self.cells for _, job in self.quality_jobs(cell))

    def reading_job(self, cell: Cell, item: DataItem, source: str) -> Job[TextToRead]:
        """The perplexity of a text that follows its prompt."""
        oracle = cell.recipe.quality.oracle
        inputs = {"stage": "quality", "source": source, "prompt": item.prompt, "oracle": oracle}
        return Job(digest(inputs), (oracle,), TextToRead(item.prompt, source))
