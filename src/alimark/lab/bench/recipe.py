"""Recipes: a recipe is a TOML file that describes an experiment. It is checked before anything runs.

    title = "AliMark under deletion"
    seed = 1
    embedder = "all-mpnet-base-v2"      # of every watermark whose row names no other

    [data]
    sets = ["booksum", "texts.jsonl"]   # names, or JSONL files
    texts = 50                          # prompts of each set
    sentences = 12

    [llm]
    name = "smollm2-135m"

    [[watermark]]
    label = "AliMark"
    key = { decision = "hard", block_size = 8 }
    generate = { candidates = 64 }

    [[watermark]]
    label = "SIR"
    scheme = "sir"                      # learns from text: the run does it first, see [fit]

    [[attack]]
    name = "delete"
    rate = [0.1, 0.3, 0.5]              # a list: one attack for each value

    [[attack]]
    name = "chat"
    then = { name = "delete", rate = 0.2 }   # a chain: sentences of the rewritten text are deleted

    [grid]                              # every combination is run
    "watermark.key.block_size" = [4, 8]

A setting that is left out has the default that stands below, or for keys, sampling, detection and attacks the default of the
library. Not all of them are the paper's: the recipes of the paper state its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from alimark.core._util.json_types import JsonObject
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.core.parameters import SCHEMES, SchemeParameters, parameters_class
from alimark.errors import AlimarkError
from alimark.lab.bench.metrics import Statistic
from alimark.lab.rivals.token_level import DEFAULT_TOKENIZER

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Part):
    """Prompts and human texts."""

    sets: list[str]  # names (booksum, c4, nq, manual) or JSONL files
    texts: Positive = 100  # the number of prompts from each data set
    skip: Annotated[int, Field(ge=0)] = 0
    """Prompts to skip at the start of each data set, so that tuning and testing can use different ones."""
    sentences: Positive = 12
    short: Literal["drop", "repeat"] = "drop"
    """What to do with human texts that have fewer sentences: "drop" leaves them out and counts them, "repeat" repeats a text
    until it is long enough, as the paper's public code does."""
    human_texts: Positive = 500
    """The number of human texts to score from each data set, by default as many as in the paper."""
    human_keys: Positive = 1  # the number of fresh keys that each human text is scored under


class FitSettings(_Part):
    """The texts that schemes such as SIR and k-SemStamp learn from before the first text is written. They are never scored."""

    sets: list[str] = []
    """Data sets as in `data`. If empty, the rows of each data set learn from it: from its texts after those that are used."""
    texts: Positive = 500  # the most texts to learn from, of each data set


class Llm(_Part):
    """The language model that writes the texts. Sampling settings that are left out have the defaults of `alimark.Sampling`."""

    name: str = "smollm2-135m"
    label: str = ""  # the name in tables; by default `name`
    temperature: float | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: Positive | None = None
    may_end: bool | None = None
    options: dict[str, Any] = {}  # options of the engine, such as { device = "cuda" }

    @property
    def shown(self) -> str:
        return self.label or self.name

    @property
    def sampling(self) -> JsonObject:
        """The sampling settings that the recipe gives."""
        given = self.model_dump(exclude={"name", "label", "options"})
        return {name: value for name, value in given.items() if value is not None}

    @property
    def model(self) -> str:
        """The name of the model without the engine in front of it."""
        from alimark.core.llm import plain_name

        return plain_name(self.name)


_OF_EVERY_KEY = ("embedder", "splitter", "preset", "fitted")


class WatermarkRow(_Part):
    label: str = "AliMark"
    scheme: str = "alimark"
    key: dict[str, Any] = {}
    """Public parameters of the keys: embedder (by default the recipe's), splitter, and AliMark's block_size, decision and span,
    or a rival's preset, fitted (a file of `alimark fit`; by default the run learns what the scheme needs) and parameters. The
    tokenizer of a token-level key is by default that of the recipe's language model. Each text has a different key."""
    generate: dict[str, Any] = {}  # candidates (by default the scheme's number), wave, prompt_style
    fit: dict[str, Any] = {}  # options of the learning, as `alimark fit --set` takes them
    human: bool = False
    """Whether the texts of this row are human ones of the data set, without a mark, to see what attacks do to them."""

    def of(self, recipe: Recipe) -> WatermarkRow:
        """The watermark with what its row leaves to the recipe: the embedder, and the tokenizer of the language model."""
        if self.scheme not in SCHEMES:
            return self
        kind, key = parameters_class(self.scheme), dict(self.key)
        if kind.embeds and recipe.embedder:
            key.setdefault("embedder", recipe.embedder)
        # The default is not named, because records of earlier releases do not name it.
        if token_level(kind) and recipe.llm.model != DEFAULT_TOKENIZER:
            key.setdefault("tokenizer", recipe.llm.model)
        return self.model_copy(update={"key": key})

    def parameters(self) -> SchemeParameters:
        """The parameters of the keys, with the defaults that do not depend on the embedder; raises KeyFileError."""
        of_scheme = {name: value for name, value in self.key.items() if name not in _OF_EVERY_KEY}
        return parameters_class(self.scheme).of(of_scheme, preset=self.key.get("preset"))

    @property
    def soft(self) -> bool:
        """Whether the keys are AliMark's, with soft decisions."""
        parameters = self.parameters()
        return isinstance(parameters, AliMarkParameters) and parameters.soft


def token_level(kind: type[SchemeParameters]) -> bool:
    """Whether keys with these parameters name a tokenizer."""
    return "tokenizer" in {field.name for field in fields(kind)}


class DetectionRow(_Part):
    label: str = ""
    options: dict[str, Any] = {}
    """Fields of `alimark.DetectionSettings`; a rival uses only those that it has: draws, stop_after, tail."""
    llm: str = ""  # the chat model for learned restructuring


class AttackRow(BaseModel):
    """An attack's name and its settings; a setting that is a list makes one attack for each value."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    then: AttackRow | None = None
    """An attack on the result of this one. The result of a chain's first steps is shared with recipes' attacks of the same
    settings, so that a model rewrites a text once."""

    @property
    def settings(self) -> JsonObject:
        return dict(self.model_extra or {})


class QualitySettings(_Part):
    oracle: str = ""  # the model that computes perplexity; if empty, perplexity is not measured
    unmarked: bool = True  # whether unmarked texts are written as well, to compare with
    texts: Positive = 50  # the number of texts of each kind
    answers: Annotated[int, Field(ge=0)] = 0
    """The number of answers to one prompt, for diversity; 0 does not measure it."""
    prompts: Positive = 5  # the number of prompts that get several answers


class RuntimeSettings(_Part):
    sentences: list[Positive] = []  # lengths of text at which detection is timed
    texts: Positive = 1  # the number of texts of each length; the mean over them is reported
    repeats: Positive = 3  # how often each text is detected; its fastest time counts


OPTIONAL = ("attack", "meaning", "quality", "runtime")
"""The parts that a recipe may leave out, or take back with "none"."""


class Recipe(_Part):
    title: str
    about: str = ""
    seed: int = 1
    embedder: str = ""
    """The embedder of the keys of every watermark whose row names no other; if empty, that of `Key.generate`."""
    embedder_device: str = ""
    """The device of all embedders, in writing, detection and evaluation: "cuda", or the CPU if empty."""
    data: Data
    fit: FitSettings = FitSettings()
    llm: Llm = Llm()
    watermark: Annotated[list[WatermarkRow], Field(min_length=1)] = [WatermarkRow()]
    detection: Annotated[list[DetectionRow], Field(min_length=1)] = [DetectionRow()]
    attack: list[AttackRow] = []
    clean: bool = True  # whether texts are also scored before any attack
    statistic: Statistic = "score"
    """What texts are ranked by in AUROC, TPR and ROC curves: "z", the method's own z, as in the paper; "score", standardised by
    random keys for each text; or "p", the p-value by random keys. A method without a z is ranked by its score. Records hold all
    three, so that nothing runs again after a change."""
    fpr: list[Share] = [0.01, 0.05, 0.005, 0.001]
    meaning: str = ""
    """The embedder that measures how similar attacked texts are to the originals; if empty, this is not measured."""
    quality: QualitySettings = QualitySettings()
    runtime: RuntimeSettings = RuntimeSettings()
    examples: Annotated[int, Field(ge=0)] = 3
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    paper: list[str] = []  # tables of the paper whose figures the report shows beside ours

    @property
    def writes(self) -> bool:
        """Whether a language model writes texts: marked ones, or unmarked ones whose quality is measured."""
        return any(not mark.human for mark in self.watermark) or bool(self.quality.oracle and self.quality.unmarked)

    @model_validator(mode="before")
    @classmethod
    def _without(cls, content: Any) -> Any:
        """Reads `quality = "none"` as a recipe without that part; the same for runtime, attack and meaning."""
        if not isinstance(content, dict):
            return content
        return {name: value for name, value in content.items() if name not in OPTIONAL or value != "none"}

    @model_validator(mode="after")
    def _labels_differ(self) -> Recipe:
        for what, rows in (("watermark", self.watermark), ("detection", self.detection)):
            if len({row.label for row in rows}) < len(rows):
                raise ValueError(f"two of [[{what}]] have the same label; give each a different one")
        return self


def detection_options(detection: DetectionRow) -> JsonObject:
    """The options of a detection, with tuples instead of TOML's lists: restructure = [1, 1] is (1, 1)."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in detection.options.items()}


# --- What a recipe stands for: the points of its grid, and its attacks with one value for each setting

_SHORT = {"llm": "llm.name"}


def put(content: JsonObject, path: str, value: object) -> JsonObject:
    """A copy with `value` at `path`. In a list of tables, a number or a label selects one; otherwise all are changed."""
    changed = deepcopy(content)
    put_inside(changed, _SHORT.get(path, path).split("."), value, path)
    return changed


def put_inside(here: object, parts: Sequence[str], value: object, path: str) -> None:
    """Set what the parts of a path lead to; `path` names it in errors."""
    first, rest = parts[0], parts[1:]
    if isinstance(here, list):
        if labelled := [table for table in here if rest and table.get("label") == first]:
            put_inside(labelled[0], rest, value, path)
            return
        if not first.isdigit():
            for table in here:
                put_inside(table, parts, value, path)
            return
        if int(first) >= len(here):
            raise AlimarkError(f"{path}: the list has only {len(here)} tables, counted from 0")
        if rest:
            put_inside(here[int(first)], rest, value, path)
        else:
            here[int(first)] = value
    elif not isinstance(here, dict):
        raise AlimarkError(f"{path}: {first} cannot be set, since what it belongs to has no settings")
    elif rest:
        # A recipe may leave out [[watermark]] or [[detection]]; then there is one, with the defaults.
        put_inside(here.setdefault(first, [{}] if first in ("watermark", "detection") else {}), rest, value, path)
    else:
        here[first] = value


@dataclass(frozen=True)
class GridPoint:
    """A recipe at one point of its grid."""

    grid: dict[str, Any]
    recipe: Recipe


def variants(recipe: Recipe) -> Iterator[GridPoint]:
    """The recipe at every point of its grid."""
    content = recipe.model_dump(exclude={"grid"})
    for values in itertools.product(*recipe.grid.values()):
        changed = content
        for path, value in zip(recipe.grid, values, strict=True):
            changed = put(changed, path, value)
        try:
            changed_recipe = Recipe.model_validate(changed)
        except ValidationError as error:
            raise AlimarkError(f"the grid leads to a recipe that cannot be used: {error.errors()[0]['msg']}") from None
        grid = {path.rpartition(".")[2]: value for path, value in zip(recipe.grid, values, strict=True)}
        watermarks = [watermark.of(changed_recipe) for watermark in changed_recipe.watermark]
        yield GridPoint(grid, changed_recipe.model_copy(update={"watermark": watermarks}))


@dataclass(frozen=True)
class OneAttack:
    """An attack with one value for each of its settings."""

    name: str
    label: str
    settings: dict[str, Any]
    earlier: OneAttack | None = None
    """The attack whose result this one attacks; None where it attacks the text as it was written."""

    @property
    def steps(self) -> list[OneAttack]:
        """The attacks of a chain, this one last."""
        return [*(self.earlier.steps if self.earlier else ()), self]

    @property
    def full_name(self) -> str:
        """The names of all steps."""
        return ", ".join(step.name for step in self.steps)

    @property
    def rate(self) -> float | None:
        """The rate, for curves that begin at the text without an attack; a chain has no such curve."""
        rate = self.settings.get("rate")
        return None if rate is None or self.earlier else float(rate)


def attacks(recipe: Recipe) -> list[OneAttack]:
    """All attacks of a recipe, and of a chain its last step; `OneAttack.steps` has the others.

    A label contains the attack's name, its rate and the settings that are varied, and for a chain the labels of all steps.
    """
    result = [expanded for attack in recipe.attack for expanded in _expanded(attack, None)]
    if len({attack.label for attack in result}) < len(result):
        raise AlimarkError(
            "two attacks of the recipe have the same name and rate; give a list of values to one instead"
        )
    return result


_ALWAYS_SHOWN = ("rate", "via", "prompt", "rounds", "preset")


def _expanded(attack: AttackRow, earlier: OneAttack | None) -> Iterator[OneAttack]:
    """The attack with each combination of values, followed by its further steps."""
    several = {name: value for name, value in attack.settings.items() if isinstance(value, list)}
    shown = [name for name in attack.settings if name in several or name in _ALWAYS_SHOWN]
    for values in itertools.product(*several.values()):
        settings = attack.settings | dict(zip(several, values, strict=True))
        label = " ".join(filter(None, [attack.name, *(_shown(name, settings[name]) for name in shown)]))
        step = OneAttack(attack.name, f"{earlier.label}, {label}" if earlier else label, settings, earlier)
        if attack.then is None:
            yield step
        else:
            yield from _expanded(attack.then, step)


def _shown(name: str, value: object) -> str:
    """A setting's value in a label."""
    if name == "preset":
        return f"(preset {value})" if value else ""
    if name == "rounds":
        return f"{value} round" if value == 1 else f"{value} rounds"
    if name == "prompt" and " " in str(value):
        return f'"{" ".join(str(value).replace("{text}", "").split())}"'
    return f"{value}"
