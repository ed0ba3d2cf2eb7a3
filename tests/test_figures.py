"""Figures in README and docs stand beside a command that prints them, or their section links to a page where they do.

A figure is a number with a unit, or with a second one in the row of a table. Sections without a command are in a list, with
what their figures are; the list must not hold a section that has none. `python tests/test_figures.py` prints all figures.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
ALLOWED = {
    ("docs/attacks.md", "Models"): "limits of the checks",
    ("docs/audits.md", "How it works"): "sizes of blocks and caches",
    ("docs/documents.md", "Evidence"): "probabilities of the colours",
    ("docs/serving.md", "Metrics and alerts"): "thresholds of alerts",
    ("docs/serving.md", "Settings"): "limits of requests",
    ("docs/threat-model.md", "What was tried"): "sizes of hostile inputs, and a limit of time",
    ("docs/soft.md", "Detection"): "constants of the score, which tests compare with the code",
}
"""The sections whose figures no command prints, and what they are. Nothing that was measured belongs here."""
_SKIPPED = ("docs/decisions/", "docs/project/", "docs/reference/", "docs/_build/")
_LEVELS = ("1%", "5%", "95%", "99%")  # false-positive rates and intervals that are asked for
_COMMAND = re.compile(
    r"^ {4,}(?:python (?:benchmarks|tools)/\w+\.py|(?:time )?alimark (?:bench|calibrate|audit|compare)|make \w+)"
    r"|`(?:python )?(?:\w+/)?\w+\.py",
    re.MULTILINE,
)
_UNIT = r"(?:%|percent\b|ms\b|s\b|seconds?\b|minutes?\b|hours?\b|[kMG]i?B\b|times as\b)"
_FIGURE = re.compile(rf"(?<![\w.$#/-])(\d[\d,.]*\d|\d)\s?{_UNIT}")
_ROW, _CELL = re.compile(r"^\|.*$", re.MULTILINE), re.compile(r"(?<=\| )(\d[\d,.]*\d|\d)(?=[ %])")
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")
_CODE = re.compile(r"^```[\s\S]*?^```|`[^`\n]*`|^ {4}.*$|\]\([^)]*\)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#:]+\.md)")


class Section(NamedTuple):
    heading: str
    text: str
    printed: bool
    """Whether a command that prints figures stands in the section, or at the start of a page of measurements."""


@cache
def sections(page: str) -> tuple[Section, ...]:
    text = (REPOSITORY / page).read_text("utf-8")
    starts = [0, *(match.start() for match in re.finditer(r"^#+ ", text, re.MULTILINE)), len(text)]
    parts = [text[start:end] for start, end in zip(starts, starts[1:], strict=False) if text[start:end].strip()]
    whole = page.startswith("docs/measurements/") and bool(_COMMAND.search(parts[0]))
    return tuple(
        Section(part.partition("\n")[0].strip("# "), part, whole or bool(_COMMAND.search(part))) for part in parts
    )


@cache
def printed_numbers(page: Path) -> frozenset[str]:
    """The numbers that stand beside a command on a page."""
    parts = sections(str(page.relative_to(REPOSITORY))) if page.exists() else ()
    return frozenset(number for part in parts if part.printed for number in _NUMBER.findall(_CODE.sub("", part.text)))


def figures() -> Iterator[tuple[str, str, str, bool]]:
    """The page and the section of each figure, the figure, and whether a command prints it."""
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        page = str(path.relative_to(REPOSITORY))
        for part in sections(page) if not page.startswith(_SKIPPED) else ():
            text = _CODE.sub("", part.text)
            listed = [(match[0], match[1]) for match in _FIGURE.finditer(text) if match[0] not in _LEVELS]
            listed += [
                (cell, cell) for row in _ROW.findall(text) if len(cells := _CELL.findall(row)) > 1 for cell in cells
            ]
            linked = [printed_numbers((path.parent / target).resolve()) for target in _LINK.findall(part.text)]
            for figure, number in listed:
                yield page, part.heading, figure, part.printed or any(number in numbers for numbers in linked)


def test_every_figure_has_a_command_that_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    every = list(figures())
    unprinted = Counter((page, heading) for page, heading, _, printed in every if not printed)
    assert len(every) > 500
    with capsys.disabled():
        print(f"\n{len(every)} figures in README and docs, {unprinted.total()} of them without a command")  # noqa: T201
    assert {place: ALLOWED.get(place, "not allowed") for place in unprinted} == ALLOWED


if __name__ == "__main__":
    for page, heading, figure, printed in figures():
        print(f"{'printed' if printed else ALLOWED.get((page, heading), 'NO COMMAND')}: {page}, {heading}: {figure}")  # noqa: T201
