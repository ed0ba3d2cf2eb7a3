"""Writes the report of one or more runs as an HTML page and as Markdown.

    report.html     everything in one file, readable without a network and without scripts
    report.md       the same tables; its plots are in plots/*.svg

Everything is rendered before the first file is written. The same results give the same files.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alimark.core._util.files import write_whole
from alimark.lab.bench import need_lab, plots, tables
from alimark.lab.bench.export import in_markdown, to_markdown
from alimark.lab.bench.plots import Plot
from alimark.lab.bench.results import Example, Results
from alimark.lab.bench.shape import attack_label, colours
from alimark.lab.bench.tables import Table

if TYPE_CHECKING:
    from jinja2 import Template

_PLOTS = "plots"  # the folder of the plots, in the folder of the report

_ALL_TITLE = "Watermarks under attack"


@dataclass(frozen=True)
class Code:
    title: str
    text: str


Part = Table | Plot | Example | Code


class Section(NamedTuple):
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
    need_lab()
    palette = colours(results)
    chapters = [_chapter(recipe, slug, palette) for recipe, slug in zip(results, _slugs(results), strict=True)]
    page, text = html(chapters, palette), markdown(chapters)
    plots_of_page = [
        part for chapter in chapters for _, _, parts in chapter.sections for part in parts if isinstance(part, Plot)
    ]
    (folder / _PLOTS if plots_of_page else folder).mkdir(parents=True, exist_ok=True)
    for plot in plots_of_page:
        write_whole(folder / _PLOTS / f"{plot.name}.svg", plot.svg)
    written = folder / "report.html", folder / "report.md"
    for path, content in zip(written, (page, text), strict=True):
        write_whole(path, content.encode("utf-8", "replace"))
    return written


def _slugs(results: Sequence[Results]) -> list[str]:
    """Different names for the recipes, usable in file names and anchors."""
    slugs: list[str] = []
    for recipe in results:
        base = re.sub(r"[^a-z0-9]+", "-", recipe["name"].lower()).strip("-") or "recipe"
        names = (base, *(f"{base}-{number}" for number in range(2, len(results) + 1)))
        slugs.append(next(name for name in names if name not in slugs))
    return slugs


def _chapter(results: Results, slug: str, palette: dict[str, str]) -> Chapter:
    drawn = plots.draw(results, palette, slug)
    recipe = [Code("The recipe with every setting", results["recipe"])] if results["recipe"].strip() else []
    parts: list[tuple[str, str, Sequence[Part]]] = [
        ("detection", "Detection", [*tables.details(results), *drawn["detection"]]),
        ("attacks", "Changes by the attacks", drawn["attacks"]),
        ("human", "Human texts", tables.human(results)),
        ("quality", "Quality", tables.quality(results)),
        ("cost", "Cost", tables.cost(results)),
        ("runtime", "Runtime", tables.runtime(results)),
        ("data", "Data", tables.data(results)),
        ("examples", "Examples", results["examples"]),
        ("made", "Settings and versions", [*tables.made(results), *recipe]),
    ]
    sections = [Section(f"{slug}-{name}", title, content) for name, title, content in parts if content]
    return Chapter(slug, results["title"] or results["name"], tables.summary(results), sections)


# --- HTML, by Jinja2. Autoescape is on, so no text of the results becomes markup.


def html(chapters: Sequence[Chapter], palette: Mapping[str, str]) -> str:
    """The page with one chapter for each recipe; `palette` holds the colour of each method."""
    from markupsafe import Markup

    files = resources.files("alimark").joinpath("lab", "bench")
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    # The page loads nothing, and runs no script except this one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return _template("page.html.j2").render(
        chapters=chapters, title=chapters[0].title if len(chapters) == 1 else _ALL_TITLE, palette=palette, policy=policy,
        style=Markup(style), script=Markup(script),  # files of this package, never text of the results
    )  # fmt: skip


def _template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("alimark.lab.bench"), autoescape=True, finalize=_printable, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "classes": lambda column: " ".join(["num"] * column.number + ["paper"] * column.paper),
        "example_title": example_title,
        "in_base64": lambda svg: base64.b64encode(svg).decode(),
    }
    return environment.get_template(name)


def part_in_html(part: Table | Plot) -> str:
    """A table or a plot alone, for notebooks."""
    return str(_template("parts.html.j2").make_module({"palette": {}}).unfolded(part))  # type: ignore[attr-defined]


def _printable(value: object) -> object:
    """Replace control characters in every text that a template shows."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value)


# --- Markdown


def markdown(chapters: Sequence[Chapter]) -> str:
    """The report as Markdown; its plots are files."""
    several = len(chapters) > 1
    blocks = [f"# {_ALL_TITLE}"] if several or not chapters else []
    blocks += ["\n".join(f"- [{in_markdown(chapter.title)}](#{chapter.slug})" for chapter in chapters)] * several
    level = "##" if several else "#"
    for chapter in chapters:
        blocks += [f'<a id="{chapter.slug}"></a>'] * several
        blocks += filter(None, [f"{level} {in_markdown(chapter.title)}", in_markdown(chapter.summary)])
        for section in chapter.sections:
            blocks += [f"{level}# {in_markdown(section.title)}", *(_in_markdown(part) for part in section.parts)]
    return "\n\n".join(blocks) + "\n"


def _in_markdown(part: Part) -> str:
    if isinstance(part, Table):
        return to_markdown(part).rstrip("\n")
    if isinstance(part, Plot):
        return f"![{in_markdown(part.title)}]({_PLOTS}/{part.name}.svg)\n\n{in_markdown(part.caption)}"
    if isinstance(part, Code):
        fence = "`" * (2 + max((len(run) for run in re.findall(r"`+", part.text)), default=1))
        return f"**{in_markdown(part.title)}**\n\n{fence}toml\n{part.text.rstrip()}\n{fence}"
    blocks = [f"**{in_markdown(example_title(part))}**"]
    for passage in part["texts"]:
        figures = f" ({', '.join(passage['figures'])})" if passage["figures"] else ""
        blocks.append(f"{passage['kind']}{figures}:\n\n{_quote(passage['text'])}")
    return "\n\n".join(blocks)


def example_title(example: Example) -> str:
    return f"{example['method']} under {attack_label(example['attack'])}"


def _quote(text: str) -> str:
    """The text as a quotation; characters that would start a heading, a list or a rule are escaped."""
    lines = (
        re.sub(r"^(\s*\d*)([#+=.)-])", r"\1\\\2", line.strip()) for line in in_markdown(text, lines=True).splitlines()
    )
    return "\n".join(f"> {line}" for line in lines)
