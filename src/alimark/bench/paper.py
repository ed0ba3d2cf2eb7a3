"""The figures of the paper's tables, to stand beside ours: `paper.toml`, which holds them as printed, as plain values.

Settings that a table varies are in a value's `grid`; what the paper does not say, such as the LLM of a detection's time, is "".
Figures that the paper only draws are not here, since its source has no numbers for them.
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

from alimark.bench.results import PaperValue
from alimark.errors import AlimarkError


def tables() -> list[str]:
    """In the order of the file: "main" first."""
    return list(_file())


def caption(table: str) -> str:
    return str(_table(table)["caption"])


def values(table: str) -> list[PaperValue]:
    """All figures of a table. AUROC and TPR are shares, whatever the paper prints."""
    return deepcopy(_values(table))


def value(table: str, method: str, llm: str, data: str, attack: str, metric: str, **grid: Any) -> float | None:
    """One figure; None where the table has none for this. `grid` names every setting that the table varies."""
    sought = {"method": method, "llm": llm, "data": data, "attack": attack, "metric": metric, "grid": grid}
    for one in _values(table):
        if one == sought | {"value": one["value"]}:
            return one["value"]
    return None


@cache
def _values(table: str) -> list[PaperValue]:
    source = _table(table)
    ((axis, marks),) = source["across"].items()
    columns = [(mark, metric) for mark in marks for metric in source["metrics"]]
    found = []
    for block in source["block"]:
        shared = source.get("fixed", {}) | {name: said for name, said in block.items() if name != "rows"}
        for row in block["rows"]:
            lead = len(source["row"])
            where = shared | dict(zip(source["row"], row[:lead], strict=True))
            for (mark, metric), printed in zip(columns, row[lead:], strict=True):
                found.append(_value(where | {axis: mark}, metric, printed))
    return found


def _value(where: dict[str, Any], metric: str, printed: float) -> PaperValue:
    grid = dict(where)
    method, llm, data, attack = (grid.pop(name, "") for name in ("method", "llm", "data", "attack"))
    # Percent have one decimal; unrounded, a quarter of them were off in the last bit.
    share = metric == "auroc" or metric.startswith("tpr@")
    return PaperValue(
        method=method,
        llm=llm,
        data=data,
        attack=attack,
        metric=metric,
        grid=grid,
        value=round(printed / 100, 4) if share else printed,
    )


def _table(name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _file()[name]
    except KeyError:
        raise AlimarkError(f"the paper's tables are {', '.join(tables())}; there is none named {name!r}") from None
    return found


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(resources.files("alimark").joinpath("bench", "paper.toml").read_text("utf-8"))
