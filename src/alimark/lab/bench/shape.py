"""What tables and plots of results share: what is compared with what, labels, colours, and the paper's figures."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from alimark.lab.bench.metrics import TITLES
from alimark.lab.bench.results import Human, JsonMapping, Results, Row

NO_ATTACK = "none"

# The palette of Okabe and Ito, without yellow and black, which are hard to see on white and dark pages; then three colours that
# people with deuteranopia or protanopia can tell from the others.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b2002b", "#5200ff", "#4d74ff",
)  # fmt: skip
GREY = "#7d7d7d"


@dataclass(frozen=True)
class Variant:
    """A method with its detection options at one point of the grid: the things that a report compares."""

    method: str
    detection: str
    grid: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        settings = [f"{name.replace('_', ' ')} {value}" for name, value in self.grid]
        return ", ".join(part for part in (self.method, self.detection, *settings) if part)


RowLike = TypeVar("RowLike", bound=JsonMapping)


def variant(row: JsonMapping) -> Variant:
    """The variant of a row of any table of results."""
    grid = tuple((name, shown(value)) for name, value in row.get("grid", {}).items())
    return Variant(row["method"], row.get("detection", ""), grid)


def variants(rows: Iterable[JsonMapping]) -> list[Variant]:
    """The different variants, in order of appearance."""
    return list(dict.fromkeys(variant(row) for row in rows))


def grouped(rows: Sequence[RowLike]) -> dict[str, list[RowLike]]:
    """The rows by data set and LLM. A group has the names that differ between groups; with one group the name is empty."""
    varied = [name for name in ("data", "llm") if len({row[name] for row in rows}) > 1]
    groups: dict[str, list[RowLike]] = {}
    for row in rows:
        groups.setdefault(" · ".join(filter(None, (row[name] for name in varied))), []).append(row)
    return groups


def shown(value: object) -> str:
    """The value of a setting as text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def attack_label(attack: str) -> str:
    return "no attack" if attack == NO_ATTACK else attack


def family(row: Row) -> str:
    """The attack without its rate."""
    if row["rate"] is None:
        return row["attack"]
    rates = (str(row["rate"]), f"{row['rate']:g}")
    return " ".join(word for word in row["attack"].split() if word not in rates)


def statistic_note(rows: Iterable[JsonMapping]) -> str:
    """A sentence that names the statistic behind the figures of a table. A method may have one for each data set."""
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        methods.setdefault(TITLES[row["statistic"]], {})[row["method"]] = None
    if len(methods) == 1:
        return f"Statistic: {next(iter(methods))}."
    return f"Statistic: {'; '.join(f'{title} for ' + ', '.join(members) for title, members in methods.items())}."


def negatives(results: Results, row: Row) -> list[float]:
    """The scores of the human texts that a row is compared with; their rows may leave out the LLM."""

    def fits(human: Human) -> bool:
        return variant(human) == variant(row) and human["data"] == row["data"] and human["llm"] in (row["llm"], "")

    return next((human["scores"] for human in results["human"] if fits(human)), [])


def colours(several: Sequence[Results]) -> dict[str, str]:
    """The colour of each method of all recipes, the same on the whole page."""
    every = [results[part] for results in several for part in ("rows", "human", "cost", "runtime")]
    methods = dict.fromkeys(row["method"] for part in every for row in part)
    return {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(methods)}
