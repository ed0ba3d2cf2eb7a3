"""The figures of the paper's tables, to compare with ours; `paper.toml` holds them as printed.

Settings that a table varies are in a value's `grid`. A field that the paper does not name, such as the LLM in the table of
detection times, is empty. Figures that the paper gives only as plots are missing, because its source has no numbers for them.
"""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from alimark.errors import AlimarkError
from alimark.lab.bench.results import JsonMapping, PaperValue, Results

_PAPERS_NAME = {"chat": "gpt-3.5"}
"""The paper's name for the same attack: a chat model that is told to paraphrase."""


def tables() -> list[str]:
    """The names of the tables in the order of the file, "main" first."""
    return list(_file())


def values(table: str) -> list[PaperValue]:
    """All figures of a table. AUROC and TPR are shares between 0 and 1, although the paper prints percent."""
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
    value = round(printed / 100, 4) if share else printed
    return PaperValue(method=method, llm=llm, data=data, attack=attack, metric=metric, grid=grid, value=value)


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(resources.files("alimark").joinpath("lab", "bench", "paper.toml").read_text("utf-8"))


class Paper:
    """Finds the figure of the paper that corresponds to one of ours."""

    def __init__(self, results: Results) -> None:
        self._values: dict[str, list[PaperValue]] = {}
        for value in results["paper"]:
            self._values.setdefault(value["metric"], []).append(value)
        self._first: dict[str, str] = {}
        for part in (results["rows"], results["runtime"]):
            for row in part:
                self._first.setdefault(row["method"], row["detection"])

    def find(self, row: JsonMapping, metric: str, grid: JsonMapping | None = None) -> tuple[float, str] | None:
        """The figure, and how its setting differs from ours: another LLM, or another name of the attack."""
        wanted = dict(row.get("grid", {}) if grid is None else grid)
        attack = row.get("attack", "none")
        names = dict.fromkeys(
            [attack, row.get("attack_name", attack), _PAPERS_NAME.get(row.get("attack_name", ""), attack)]
        )
        for name in names:
            fits = [value for value in self._values.get(metric, ()) if self._fits(value, row, name, wanted)]
            # The same LLM if the paper has it, or else the first one, which is the paper's main LLM.
            fits.sort(key=lambda value: not _same(value["llm"], row.get("llm", "")))
            if fits:
                llm = "" if _same(fits[0]["llm"], row.get("llm", "")) else fits[0]["llm"]
                same = name in (attack, row.get("attack_name"))  # the label also names settings, such as a preset
                return fits[0]["value"], ", ".join(part for part in (llm, "" if same else name) if part)
        return None

    def _fits(self, value: PaperValue, row: JsonMapping, attack: str, grid: JsonMapping) -> bool:
        if not (_same(value["method"], row["method"]) and _same(value["attack"], attack)):
            return False
        if value["data"] and not _same(value["data"], row.get("data", "")):
            return False
        more = {name: setting for name, setting in value["grid"].items() if name not in grid}
        if any(not _alike(value["grid"].get(name), setting) for name, setting in grid.items()):
            return False
        if not more:
            return "detection" not in row or row["detection"] == self._first[row["method"]]
        # What we call detection options, a table of the paper has as a setting that it varies.
        return len(more) == 1 and _same(str(*more.values()), row.get("detection") or "all")


def _alike(first: object, second: object) -> bool:
    """Whether two settings are equal; names on the model hub may begin with their owner."""
    if isinstance(first, str) and isinstance(second, str):
        return _same(first.rpartition("/")[2], second.rpartition("/")[2])
    return bool(first == second)


def _same(first: str, second: str) -> bool:
    return first.casefold() == second.casefold()
