"""What runs found out, for people: one page that stands by itself, and the same as Markdown.

    report.html     everything in one file: no network, no script needed to read it
    report.md       the same tables; its plots lie beside it as plots/*.png

All of it is made before any of it is written, and the same results give the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alimark._util.files import write_whole
from alimark.bench import html, markdown, plots, rates, tables
from alimark.bench.cells import Table
from alimark.bench.results import Example, Results
from alimark.bench.shape import colours
from alimark.bench.sheet import Plot


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
    """A recipe."""

    slug: str
    title: str
    summary: str
    sections: Sequence[Section]


def write(folder: Path, results: Sequence[Results]) -> tuple[Path, Path]:
    """Writes report.html and report.md, and the plots that the latter shows; returns the two."""
    plots.require()
    palette = colours(results)
    chapters = [_chapter(one, slug, palette) for one, slug in zip(results, _slugs(results))]
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


def _slugs(results: Sequence[Results]) -> list[str]:
    """Names fit for files and anchors, each different."""
    found: list[str] = []
    for one in results:
        letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in one["name"].lower())
        slug = "-".join(part for part in letters.split("-") if part) or "recipe"
        number, own = 2, slug
        while own in found:
            own, number = f"{slug}-{number}", number + 1
        found.append(own)
    return found


def _chapter(results: Results, slug: str, palette: dict[str, str]) -> Chapter:
    drawn = plots.draw(results, palette, slug)
    parts: dict[str, tuple[str, list[Part]]] = {
        "detection": ("Detection", [*rates.overview(results), *rates.details(results), *drawn["detection"]]),
        "attacks": ("What the attacks did", [*drawn["attacks"]]),
        "human": ("Human texts", [*tables.human(results), *drawn["human"]]),
        "quality": ("Quality", [*tables.quality(results), *drawn["quality"]]),
        "cost": ("Cost", [*tables.cost(results)]),
        "runtime": ("Runtime", [*tables.runtime(results), *drawn["runtime"]]),
        "data": ("Data", [*tables.data(results)]),
        "examples": ("Examples", [*results["examples"]]),
        "made": ("How it was made", [*tables.made(results), *_recipe(results)]),
    }
    sections = [Section(f"{slug}-{name}", title, own) for name, (title, own) in parts.items() if own]
    return Chapter(slug, results["title"] or results["name"], rates.summary(results), sections)


def _recipe(results: Results) -> list[Part]:
    return [Code("The recipe, every setting resolved", results["recipe"])] if results["recipe"].strip() else []


def _plots(chapter: Chapter) -> list[Plot]:
    return [part for section in chapter.sections for part in section.parts if isinstance(part, Plot)]
