"""What tables and plots of results share: what is compared with what, labels, colours, and the paper's figures."""

from __future__ import annotations

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
    def settings(self) -> list[str]:
        """The settings of the grid, each with its name."""
        return [f"{name.replace('_', ' ')} {value}" for name, value in self.grid]

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.method, self.detection, *self.settings) if part)


@dataclass(frozen=True)
class TextGroup:
    """Texts by the same LLM for prompts of the same data set."""

    llm: str
    data: str


RowLike = TypeVar("RowLike", bound=JsonMapping)


def variant(row: JsonMapping) -> Variant:
    """The variant of a row of any table of results."""
    grid = tuple((name, shown(value)) for name, value in row.get("grid", {}).items())
    return Variant(row["method"], row.get("detection", ""), grid)


def group(row: JsonMapping) -> TextGroup:
    return TextGroup(row["llm"], row["data"])


def variants(rows: Iterable[JsonMapping]) -> list[Variant]:
    """The different variants, in order of appearance."""
    return list(dict.fromkeys(variant(row) for row in rows))


def grouped(rows: Iterable[RowLike]) -> dict[TextGroup, list[RowLike]]:
    groups: dict[TextGroup, list[RowLike]] = {}
    for row in rows:
        groups.setdefault(group(row), []).append(row)
    return groups


def group_label(group: TextGroup, groups: Iterable[TextGroup]) -> str:
    """Data set and LLM of a group, as far as the groups differ in them."""
    every = set(groups)
    parts = [(group.data, {other.data for other in every}), (group.llm, {other.llm for other in every})]
    return " · ".join(part for part, all_parts in parts if part and len(all_parts) > 1)


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


def statistics(rows: Iterable[JsonMapping]) -> dict[str, list[str]]:
    """The methods by the statistic that they are ranked by. One may be under several, since each data set has its own."""
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        methods.setdefault(row["statistic"], {})[row["method"]] = None
    return {statistic: list(names) for statistic, names in methods.items()}


def statistic_note(rows: Iterable[JsonMapping]) -> str:
    """A sentence that names the statistic behind the figures of a table."""
    methods = statistics(rows)
    if len(methods) == 1:
        return f"Statistic: {TITLES[next(iter(methods))]}."
    parts = [f"{TITLES[name]} for {', '.join(members)}" for name, members in methods.items()]
    return f"Statistic: {'; '.join(parts)}."


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
