"""Reads and writes recipes: finds the file, applies profiles and single settings, and checks every point of the grid.

A profile is a TOML file that changes recipes for another machine, such as `recipes/paper/profiles/local.toml`:

    [names]                             # values that are replaced wherever they stand
    "facebook/opt-1.3b" = "smollm2-135m"

    [attack]                            # attacks that are replaced, by name
    pegasus = { name = "translate", via = "pt" }

    [watermark.PMark]                   # settings for the row of that label, where a recipe has one
    "key.samples" = 8

    [set]                               # settings for every recipe, as with --set
    "data.sets" = ["manual"]
"""

import tomllib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from alimark.core._util.files import read_text
from alimark.core._util.json_types import JsonObject
from alimark.core.parameters import SCHEMES
from alimark.errors import AlimarkError
from alimark.lab.bench.recipe import (
    OPTIONAL,
    Recipe,
    WatermarkRow,
    attacks,
    detection_options,
    put,
    put_inside,
    variants,
)

_FOLDERS = (Path(__file__).parent / "recipes", Path(__file__).parents[4] / "recipes")
"""Where named recipes are: in an installed package, and in the repository."""


def find_recipe(name: Path) -> Path:
    """The path of a recipe: a TOML file, or the name of a recipe that comes with alimark, such as `paper/main-opt`."""
    if name.suffix == ".toml" or name.is_file():
        return name
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
    known = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}
    known = {name: path for name, path in known.items() if path.parent.name != "profiles"}
    if name.as_posix() not in known:
        raise AlimarkError(
            f"{name} is neither a file nor the name of a recipe; known: {', '.join(known)}. The path of a recipe of your own "
            "ends in .toml."
        )
    return known[name.as_posix()]


def load(path: Path, overrides: Sequence[str] = (), profiles: Sequence[str] = (), *, was_run: bool = False) -> Recipe:
    """Read and check a recipe file.

    Args:
        path: The recipe: a file, or a name as for `find_recipe`.
        overrides: `path=value`; a value that is not TOML is taken as a string.
        profiles: Profiles, applied in order before the overrides: the name of a file in the folder `profiles` beside the
            recipe, without `.toml`, or the path of a file.
        was_run: Whether a run has checked the recipe, maybe with attacks that only its process had.

    Raises:
        AlimarkError: A file cannot be read, or the recipe cannot be used.
    """
    path = find_recipe(path)
    content = _read(path)
    for profile in profiles:
        content = profiled(content, _read(_profile_path(path, profile)), profile)
    for override in overrides:
        content = overridden(content, override)
    return parse(content, str(path), was_run=was_run)


def _read(path: Path) -> JsonObject:
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AlimarkError(f"{path} is not TOML: {error}") from None


def _profile_path(recipe: Path, profile: str) -> Path:
    if profile.endswith(".toml"):
        return Path(profile)
    folder = recipe.parent / "profiles"
    if not (folder / f"{profile}.toml").is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.toml"))) or "none"
        raise AlimarkError(
            f"{folder} has no profile {profile!r} (it has: {known}); give one of these, or the path of a TOML file"
        )
    return folder / f"{profile}.toml"


def parse(content: JsonObject, where: str = "the recipe", *, was_run: bool = False) -> Recipe:
    """Check a recipe at every point of its grid, before anything runs."""
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {fault['msg']}" for fault in error.errors()
        )
        raise AlimarkError(f"{where} cannot be used: {faults}") from None
    for variant in variants(recipe) if not was_run else ():
        _check(variant.recipe, where)
    return recipe


def _check(recipe: Recipe, where: str) -> None:
    """Check the settings that other packages define, by building the objects that they set."""
    from alimark.core.detection.settings import DetectionSettings
    from alimark.core.llm.base import Sampling
    from alimark.lab.attacks import load_attack

    try:
        Sampling(**recipe.llm.sampling)
        for detection in recipe.detection:
            DetectionSettings(**detection_options(detection))
        for watermark in recipe.watermark:
            _check_generation(watermark, recipe)
            if watermark.scheme in SCHEMES:  # an unknown scheme is an error of the run only
                watermark.parameters()
        for attack in attacks(recipe):
            for step in attack.steps:
                load_attack(step.name, **step.settings)
    except (TypeError, ValueError, AlimarkError) as error:
        raise AlimarkError(f"{where} cannot be used: {error}") from None


def _check_generation(watermark: WatermarkRow, recipe: Recipe) -> None:
    """Check the settings of a row's `generate`; sentences and sampling belong to other parts of the recipe."""
    from alimark.core.generation.settings import GenerationSettings

    known = [field.name for field in fields(GenerationSettings) if field.name not in ("sentences", "sampling")]
    if unknown := ", ".join(sorted(set(watermark.generate) - set(known))):
        raise AlimarkError(f"`generate` of {watermark.label} has no setting {unknown}; it has: {', '.join(known)}")
    GenerationSettings(recipe.data.sentences, **watermark.generate)


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML with every setting, so that a report says how to repeat the run."""
    return tomli_w.dumps(recipe.model_dump(exclude_none=True))


# --- Changes before the check


def overridden(content: JsonObject, override: str) -> JsonObject:
    """The content of a recipe with one setting changed, given as `path=value`; a value that is not TOML is a string."""
    where, equals, value = override.partition("=")
    if not equals:
        raise AlimarkError(f"--set takes PATH=VALUE, such as llm=smollm2-135m, not {override!r}")
    return put(content, where.strip(), _value(value.strip()))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


_PROFILE_TABLES = ("names", "attack", "watermark", "set")


def profiled(content: JsonObject, profile: JsonObject, where: str) -> JsonObject:
    """The content of a recipe as a profile changes it."""
    if unknown := sorted(set(profile) - set(_PROFILE_TABLES)):
        raise AlimarkError(
            f"the profile {where} has the unknown tables {', '.join(unknown)}; known: {', '.join(_PROFILE_TABLES)}"
        )
    names, attacks_of, rows, settings = (profile.get(table, {}) for table in _PROFILE_TABLES)
    changed: JsonObject = _renamed(content, names)
    if "attack" in changed:  # the further steps of a chain are left out with the attack that is replaced
        changed["attack"] = [deepcopy(attacks_of.get(attack.get("name"), attack)) for attack in changed["attack"]]
    for watermark in changed.get("watermark", ()):
        for path, value in rows.get(watermark.get("label"), {}).items():
            put_inside(watermark, path.split("."), value, path)
    for path, values in changed.get("grid", {}).items():  # two values of the recipe may have become one
        changed["grid"][path] = [value for i, value in enumerate(values) if value not in values[:i]]
    for path, value in settings.items():
        if (table := path.split(".")[0]) in changed or table not in OPTIONAL:  # what a recipe leaves out stays out
            changed = put(changed, path, value)
    return changed


def _renamed(value: Any, names: dict[str, Any]) -> Any:
    """A copy in which every text that is a key of `names` is replaced by its value."""
    if isinstance(value, dict):
        return {name: _renamed(item, names) for name, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
