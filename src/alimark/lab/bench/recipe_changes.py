"""Changes of a recipe before it is checked: single settings, as with `--set`, and profiles.

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

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from alimark.errors import AlimarkError
from alimark.lab.bench.recipe import OPTIONAL, JsonObject

_SHORT = {"llm": "llm.name"}


def put(content: JsonObject, path: str, value: object) -> JsonObject:
    """A copy with `value` at `path`. In a list of tables, a number or a label selects one; otherwise all are changed."""
    changed = deepcopy(content)
    _put(changed, _SHORT.get(path, path).split("."), value, path)
    return changed


def _put(here: Any, parts: Sequence[str], value: Any, path: str) -> None:
    first, rest = parts[0], parts[1:]
    if isinstance(here, list):
        if labelled := [table for table in here if rest and table.get("label") == first]:
            _put(labelled[0], rest, value, path)
            return
        if not first.isdigit():
            for table in here:
                _put(table, parts, value, path)
            return
        if int(first) >= len(here):
            raise AlimarkError(f"{path}: the list has only {len(here)} tables, counted from 0")
        if rest:
            _put(here[int(first)], rest, value, path)
        else:
            here[int(first)] = value
    elif not isinstance(here, dict):
        raise AlimarkError(f"{path}: {first} cannot be set, since what it belongs to has no settings")
    elif rest:
        # A recipe may leave out [[watermark]] or [[detection]]; then there is one, with the defaults.
        _put(here.setdefault(first, [{}] if first in ("watermark", "detection") else {}), rest, value, path)
    else:
        here[first] = value


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
    changed: JsonObject = _renamed(content, profile.get("names", {}))
    if "attack" in changed:
        changed["attack"] = [_replaced(attack, profile.get("attack", {})) for attack in changed["attack"]]
    for watermark in changed.get("watermark", ()):
        for path, value in profile.get("watermark", {}).get(watermark.get("label"), {}).items():
            _put(watermark, path.split("."), value, path)
    # Two values of the recipe may have become one.
    changed["grid"] = {path: _without_repeats(values) for path, values in changed.get("grid", {}).items()}
    for path, value in profile.get("set", {}).items():
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


def _replaced(attack: JsonObject, others: dict[str, JsonObject]) -> JsonObject:
    """The attack that a profile puts in the place of this one; the further steps of a chain are left out with it."""
    return deepcopy(others.get(attack.get("name", ""), attack))


def _without_repeats(values: list[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) if value not in values[:place]]
