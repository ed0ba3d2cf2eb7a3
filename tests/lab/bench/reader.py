"""Parses a written report, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from alimark.lab.bench import report
from alimark.lab.bench.results import Results


@dataclass
class Written:
    folder: Path
    html: str
    markdown: str

    @property
    def page(self) -> Page:
        return Page(self.html)


@dataclass
class Shown:
    """A table: headings, and rows of cells; small print of a cell follows after "|"."""

    title: str
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def row(self, *start: str) -> list[str]:
        (match,) = [row for row in self.rows if row[: len(start)] == list(start)]
        return match


class Page(HTMLParser):
    """The tags, tables and headings of a page; fails if tags do not match."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[Shown] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append(Shown(dict(attrs).get("aria-label") or ""))
        if tag == "tr" and self.tables:
            self.tables[-1].rows.append([])
        if tag == "td":
            self.tables[-1].rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open and self.open[-1] not in ("tr", "tbody"):
            self.tables[-1].rows[-1][-1] += f"|{data}" if self.open[-1] == "small" else data
        elif "thead" in self.open and self.open[-1] == "th":
            self.tables[-1].headings.append(data)
        elif self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)

    def named(self, start: str) -> list[Shown]:
        return [table for table in self.tables if table.title.startswith(start)]

    def plots(self) -> list[str]:
        return [attributes["alt"] or "" for tag, attributes in self.tags if tag == "img"]


def write(folder: Path, *results: Results) -> Written:
    page, text = report.write(folder, results)
    assert (page, text) == (folder / "report.html", folder / "report.md")
    return Written(folder, page.read_text("utf-8"), text.read_text("utf-8"))
