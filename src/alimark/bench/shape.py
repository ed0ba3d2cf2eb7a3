"""How results are laid out, for tables and plots alike: what is compared with what, what it is called, and its colour."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from alimark.bench.results import Human, PaperValue, Quality, Results, Row

NO_ATTACK = "none"
REFERENCES = ("unmarked", "human")
"""What quality is compared with; no watermarks, so grey in plots."""

# Okabe and Ito's, without yellow and black, which white and dark pages swallow; then three that stay apart from those under
# deuteranopia and protanopia.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b2002b", "#5200ff", "#4d74ff",
)  # fmt: skip
GREYS = {"unmarked": "#a8a8a8", "human": "#7d7d7d"}

# The same attack under the name that the paper gives it: a chat model told to paraphrase.
_PAPERS_NAME = {"chat": "gpt-3.5"}


@dataclass(frozen=True)
class Variant:
    """What is compared within a set of texts: a method with its detection options, at a point of the grid."""

    method: str
    detection: str
    grid: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        grid = (f"{name.replace('_', ' ')} {value}" for name, value in self.grid)
        return ", ".join(part for part in (self.method, self.detection, *grid) if part)


@dataclass(frozen=True)
class Group:
    """Texts that are alike: written by one LLM, to prompts of one data set."""

    llm: str
    data: str


Placed = TypeVar("Placed", bound=Mapping[str, Any])


def variant(where: Mapping[str, Any]) -> Variant:
    """Of a row of any table of results."""
    grid = tuple((name, shown(value)) for name, value in where.get("grid", {}).items())
    return Variant(where["method"], where.get("detection", ""), grid)


def group(where: Mapping[str, Any]) -> Group:
    return Group(where["llm"], where["data"])


def variants(rows: Iterable[Mapping[str, Any]]) -> list[Variant]:
    """In order of appearance."""
    return list(dict.fromkeys(variant(row) for row in rows))


def grouped(rows: Iterable[Placed]) -> dict[Group, list[Placed]]:
    found: dict[Group, list[Placed]] = {}
    for row in rows:
        found.setdefault(group(row), []).append(row)
    return found


def group_label(own: Group, groups: Iterable[Group]) -> str:
    """What tells a group from the others; empty where there are no others."""
    every = set(groups)
    parts = [(own.data, {one.data for one in every}), (own.llm, {one.llm for one in every})]
    return " · ".join(part for part, all_parts in parts if part and len(all_parts) > 1)


def shown(value: Any) -> str:
    """A setting as one would write it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def attack_label(attack: str) -> str:
    return "no attack" if attack == NO_ATTACK else attack


def family(row: Row) -> str:
    """The attack without its rate: what a line of several rates is about."""
    if row["rate"] is None:
        return row["attack"]
    words = [word for word in row["attack"].split() if not _is(word, row["rate"])]
    return " ".join(words) or row["attack_name"]


def _is(word: str, rate: float) -> bool:
    try:
        return float(word) == rate
    except ValueError:
        return False


def negatives(results: Results, row: Row) -> list[float]:
    """Scores of the human texts that a row is compared with; a detector need not name an LLM for them."""

    def fits(human: Human) -> bool:
        return variant(human) == variant(row) and human["data"] == row["data"] and human["llm"] in (row["llm"], "")

    return next((human["scores"] for human in results["human"] if fits(human)), [])


def methods(several: Iterable[Results]) -> list[str]:
    """Every watermark of every recipe, in order of appearance."""
    found: dict[str, None] = {}
    for results in several:
        for part in ("rows", "human", "cost", "quality", "runtime", "examples"):
            found.update(dict.fromkeys(row["method"] for row in results[part]))
    return [method for method in found if method not in REFERENCES]


def colours(several: Sequence[Results]) -> dict[str, str]:
    """One for each method, the same on the whole page."""
    return GREYS | {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(methods(several))}


def quality(results: Results) -> list[Quality]:
    """How texts read. What they are compared with is not the grid's matter, unless there is more than one of it."""
    kinds = Counter((row["method"], group(row)) for row in results["quality"])
    alone = [row["method"] in REFERENCES and kinds[row["method"], group(row)] == 1 for row in results["quality"]]
    return [{**row, "grid": {}} if lone else row for row, lone in zip(results["quality"], alone)]


class Paper:
    """Finds the figure of the paper that stands beside one of ours."""

    def __init__(self, results: Results) -> None:
        self._values: dict[str, list[PaperValue]] = {}
        for value in results["paper"]:
            self._values.setdefault(value["metric"], []).append(value)
        self._first: dict[str, str] = {}
        for part in (results["rows"], results["runtime"]):
            for row in part:
                self._first.setdefault(row["method"], row["detection"])

    def find(
        self, row: Mapping[str, Any], metric: str, grid: Mapping[str, Any] | None = None
    ) -> tuple[float, str] | None:
        """The figure, and in what it differs from ours: another LLM, or the attack by another name."""
        wanted = dict(row.get("grid", {}) if grid is None else grid)
        attack = row.get("attack", NO_ATTACK)
        names = dict.fromkeys(
            [attack, row.get("attack_name", attack), _PAPERS_NAME.get(row.get("attack_name", ""), attack)]
        )
        for name in names:
            fits = [value for value in self._values.get(metric, ()) if self._fits(value, row, name, wanted)]
            # The same LLM if the paper has it, or else the first: the paper's main one.
            fits.sort(key=lambda value: not _same(value["llm"], row.get("llm", "")))
            if fits:
                llm = "" if _same(fits[0]["llm"], row.get("llm", "")) else fits[0]["llm"]
                return fits[0]["value"], ", ".join(part for part in (llm, "" if name == attack else name) if part)
        return None

    def _fits(self, value: PaperValue, row: Mapping[str, Any], attack: str, grid: Mapping[str, Any]) -> bool:
        if not (_same(value["method"], row["method"]) and _same(value["attack"], attack)):
            return False
        if value["data"] and not _same(value["data"], row.get("data", "")):
            return False
        more = {name: said for name, said in value["grid"].items() if name not in grid}
        if any(not _alike(value["grid"].get(name), said) for name, said in grid.items()):
            return False
        if not more:
            return "detection" not in row or row["detection"] == self._first[row["method"]]
        # Ways of detection are options of ours, and a setting that a table of the paper varies.
        return len(more) == 1 and _same(str(*more.values()), row.get("detection") or "all")


def _alike(one: Any, other: Any) -> bool:
    """Names of the hub may come with their owner's."""
    if isinstance(one, str) and isinstance(other, str):
        return _same(one.rpartition("/")[2], other.rpartition("/")[2])
    return bool(one == other)


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()
