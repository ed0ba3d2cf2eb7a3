"""What a recipe stands for: the points of its grid, and its attacks with one value for each setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from alimark.errors import AlimarkError
from alimark.lab.bench.recipe import Attack, Recipe
from alimark.lab.bench.recipe_changes import put


@dataclass(frozen=True)
class Variant:
    """A recipe at one point of its grid."""

    grid: dict[str, Any]
    recipe: Recipe


def variants(recipe: Recipe) -> Iterator[Variant]:
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
        yield Variant(grid, changed_recipe.model_copy(update={"watermark": watermarks}))


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


def _expanded(attack: Attack, earlier: OneAttack | None) -> Iterator[OneAttack]:
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
