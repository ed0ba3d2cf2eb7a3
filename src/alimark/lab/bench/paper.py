"""The figures of the paper's tables, to compare with ours; `paper.toml` holds them as printed.

Settings that a table varies are in a value's `grid`. A field that the paper does not name, such as the LLM in the table of
detection times, is empty. Figures that the paper gives only as plots are missing, because its source has no numbers for them.
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

from alimark.errors import AlimarkError
from alimark.lab.bench.results import PaperValue


def tables() -> list[str]:
    """The names of the tables in the order of the file, "main" first."""
    return list(_file())


def values(table: str) -> list[PaperValue]:
    """All figures of a table. AUROC and TPR are shares between 0 and 1, although the paper prints percent."""
    return deepcopy(_values(table))


@cache
def _values(table: str) -> list[PaperValue]:
    try:
        source = _file()[table]
    except KeyError:
        raise AlimarkError(f"no table of the paper is named {table!r}; the tables are {', '.join(tables())}") from None
    ((axis, marks),) = source["across"].items()
    columns = [(mark, metric) for mark in marks for metric in source["metrics"]]
    figures = []
    for block in source["block"]:
        shared = source.get("fixed", {}) | {name: value for name, value in block.items() if name != "rows"}
        for row in block["rows"]:
            lead = len(source["row"])
            where = shared | dict(zip(source["row"], row[:lead], strict=True))
            for (mark, metric), printed in zip(columns, row[lead:], strict=True):
                figures.append(_value(where | {axis: mark}, metric, printed))
    return figures


def _value(where: dict[str, Any], metric: str, printed: float) -> PaperValue:
    grid = dict(where)
    method, llm, data, attack = (grid.pop(name, "") for name in ("method", "llm", "data", "attack"))
    # Percentages are printed with one decimal; without rounding, a quarter of the shares differ in the last bit.
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


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(resources.files("alimark").joinpath("lab", "bench", "paper.toml").read_text("utf-8"))
