"""Writes the report of one or more runs as an HTML page and as Markdown.

    report.html     everything in one file, readable without a network and without scripts
    report.md       the same tables; its plots are in plots/*.png

Everything is rendered before the first file is written. The same results give the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from alimark.core._util.files import write_whole
from alimark.errors import MissingExtra
from alimark.lab.bench import html, markdown, plots, rates, tables
from alimark.lab.bench.cells import Table
from alimark.lab.bench.results import Example, Results
from alimark.lab.bench.shape import colours
from alimark.lab.bench.sheet import Plot


@dataclass(frozen=True)
class Code:
    title: str
    text: str


Part = Table | Plot | Example | Code


@dataclass(frozen=True)
class Section:
    slug: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Chapter:
    """The part of a report on one recipe."""

    slug: str
    title: str
    summary: str
    sections: Sequence[Section]


def write(folder: Path, results: Sequence[Results]) -> tuple[Path, Path]:
    """Write report.html, report.md and the plots of the latter; return the paths of the first two."""
    _require("matplotlib", "jinja2")
    palette = colours(results)
    chapters = [_chapter(recipe, slug, palette) for recipe, slug in zip(results, _slugs(results))]
    page, text = html.page(chapters, palette), markdown.page(chapters)
    drawn = {part.name: part.png for chapter in chapters for part in _plots(chapter)}
    folder.mkdir(parents=True, exist_ok=True)
    if drawn:
        (folder / markdown.PLOTS).mkdir(exist_ok=True)
    for name, png in drawn.items():
        write_whole(folder / markdown.PLOTS / f"{name}.png", png)
    written = folder / "report.html", folder / "report.md"
    write_whole(written[0], page.encode("utf-8", "replace"))
    write_whole(written[1], text.encode("utf-8", "replace"))
    return written


def _require(*libraries: str) -> None:
    """Raise an error before anything is computed if a library is missing."""
    for library in libraries:
        try:
            import_module(library)
        except ImportError:
            raise MissingExtra(library, "bench") from None


def _slugs(results: Sequence[Results]) -> list[str]:
    """Different names for the recipes, usable in file names and anchors."""
    slugs: list[str] = []
    for recipe in results:
        letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in recipe["name"].lower())
        base = "-".join(part for part in letters.split("-") if part) or "recipe"
        number, slug = 2, base
        while slug in slugs:
            slug, number = f"{base}-{number}", number + 1
        slugs.append(slug)
    return slugs


def _chapter(results: Results, slug: str, palette: dict[str, str]) -> Chapter:
    drawn = plots.draw(results, palette, slug)
    parts: dict[str, tuple[str, list[Part]]] = {
        "detection": ("Detection", [*rates.overview(results), *rates.details(results), *drawn["detection"]]),
        "attacks": ("Changes by the attacks", [*drawn["attacks"]]),
        "human": ("Human texts", [*tables.human(results), *drawn["human"]]),
        "quality": ("Quality", [*tables.quality(results), *drawn["quality"]]),
        "cost": ("Cost", [*tables.cost(results)]),
        "runtime": ("Runtime", [*tables.runtime(results), *drawn["runtime"]]),
        "data": ("Data", [*tables.data(results)]),
        "examples": ("Examples", [*results["examples"]]),
        "made": ("Settings and versions", [*tables.made(results), *_recipe(results)]),
    }
    sections = [Section(f"{slug}-{name}", title, content) for name, (title, content) in parts.items() if content]
    return Chapter(slug, results["title"] or results["name"], rates.summary(results), sections)


def _recipe(results: Results) -> list[Part]:
    return [Code("The recipe with every setting", results["recipe"])] if results["recipe"].strip() else []


def _plots(chapter: Chapter) -> list[Plot]:
    return [part for section in chapter.sections for part in section.parts if isinstance(part, Plot)]
