"""Reads PDF files through PDFium (pypdfium2), and puts lines together to paragraphs.

PDFium gives characters with their places, in the order in which the file draws them. That is the reading order in nearly every
file; where a file draws two columns line by line, they are taken apart. Running heads, page numbers and the numbers of
footnotes are left out, hyphenated words are joined, and footnotes follow the text.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from alimark.audit.documents.blocks import join_blocks, tidy
from alimark.errors import TextError

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

_MARGIN = 0.2  # the share of a page's height, at its top and at its bottom, in which running heads stand
_MOST_DAMAGED = 100
_STREAM = re.compile(rb"stream\r?\n")
_MOST_UNPACKED, _MOST_RATIO = 1 << 20, 100
"""Drawing commands of so many bytes are refused where they unpack to more than so many times their size; usual is ten."""
_COLUMN_LINES = 5  # so many lines with a gap at the same place are columns
_HYPHEN = "\x02"  # PDFium's sign for a hyphen at the end of a line, which may belong to the word or not
_LINE_END_HYPHENS = ("-", "\u2010", "\u00ad", _HYPHEN)
_LINE_BREAKS = (10, 13)
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_BROKEN = re.compile(rf"([^\W\d_]+){_HYPHEN}([^\W\d_]+)")
_HYPHENATED_SHARE = 0.04
"""Where more lines than this end with a hyphen, the program that set the text hyphenates words."""
_WORD_END = re.compile(
    r"[^aeiouy]{0,2}(?:tion|sion|ing|ment|ness|able|ible|ally|ly|ity|ities|ous|ive|ence|ance|ation|ers?|ed|es|al|ical?|ful|less)s?"
)
_PAGE_NUMBER = re.compile(
    r"(?:page|seite|p\.)?\s*[-–(\[]?\s*(?:\d{1,4}|[ivxlc]{1,6})\s*(?:(?:/|of|von|de|sur)\s*\d{1,4})?\s*[-–)\]]?", re.I
)
_BROWSER_HEAD = re.compile(r"\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4},? \d{1,2}:\d{2}|(?:https?|file)://\S+", re.I)
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡]{1,3})\s*(?=\S)")
_SENTENCE_END = re.compile(r"""[.!?…:。！？]["'”’»)\]]*$""")


@dataclass(frozen=True)
class _Letter:
    """A character with its place on the page in points; the box reaches from the descent to the ascent of the font."""

    sign: str
    left: float
    right: float
    bottom: float
    top: float

    @property
    def size(self) -> float:
        return self.top - self.bottom

    @property
    def is_blank(self) -> bool:
        """Whether it is a blank; those that PDFium adds have no place."""
        return self.sign.isspace() or self.right <= self.left


@dataclass
class _Line:
    """A line of text, or the part of one up to a wide gap."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    size: float
    after_gap: bool  # whether it stands on the same line as the part before it


@dataclass
class _PdfPage:
    height: float
    width: float
    lines: list[_Line]


def read(data: bytes, most: int) -> tuple[str, list[str]]:
    """Returns the text of a PDF file up to about `most` characters, and notes about what was left out."""
    pages = _pages(data, most)
    heads = _remove_running_heads(pages)
    for page in pages:
        page.lines = _in_reading_order(page)
    usual_size = _usual(round(line.size, 1) for page in pages for line in page.lines for _ in range(len(line.text)))
    paragraphs: list[str] = []
    notes: list[str] = []
    for page in pages:
        note_lines = _note_lines(page, usual_size)
        _continue(paragraphs, _paragraphs([line for line in page.lines if line not in note_lines]))
        notes += [_NOTE.sub("", note, count=1) for note in _paragraphs(note_lines, notes=True)]
    text = _join_hyphens(join_blocks([*paragraphs, *notes]), sum(len(page.lines) for page in pages))
    return text, [f"running heads and page numbers left out: {heads}"] if heads else []


def _check_streams(data: bytes) -> None:
    """Raises TextError where a few bytes of drawing commands unpack to so many that they would fill the memory."""
    for match in _STREAM.finditer(data):
        described = data[max(0, match.start() - 1000) : match.start()].rpartition(b" obj")[2]
        if b"FlateDecode" not in described or b"/Image" in described:
            continue
        inflating = zlib.decompressobj()
        with suppress(zlib.error):
            unpacked = len(inflating.decompress(data[match.end() :], _MOST_UNPACKED))
            packed = len(data) - match.end() - len(inflating.unconsumed_tail) - len(inflating.unused_data)
            if unpacked == _MOST_UNPACKED and packed * _MOST_RATIO < unpacked:
                raise TextError(
                    f"a page of the PDF file unpacks to more than {_MOST_RATIO} times its size, as no document does; "
                    "copy its text to a .txt file"
                )


def _pages(data: bytes, most: int) -> list[_PdfPage]:
    import pypdfium2

    _check_streams(data)
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise TextError("the PDF file has a password; save it without one") from None
        raise TextError("the PDF file is damaged; check that it is complete") from None
    pages: list[_PdfPage] = []
    size = damaged = 0
    for number in range(len(document)):
        try:
            page = document[number]
        except pypdfium2.PdfiumError:
            damaged += 1
            if damaged == _MOST_DAMAGED:
                raise TextError(f"{damaged} pages of the PDF file are damaged; check that it is complete") from None
            continue
        pages.append(_PdfPage(page.get_height(), page.get_width(), _lines(page)))
        page.close()
        size += sum(len(line.text) for line in pages[-1].lines)
        if size > most:
            break
    return pages


def _lines(page: PdfPage) -> list[_Line]:
    """The lines of a page in the order of the file, cut at wide gaps, which may lie between two columns."""
    import pypdfium2.raw as pdfium

    source = page.get_textpage()
    box = pdfium.FS_RECTF()
    lines: list[_Line] = []
    letters: list[_Letter] = []
    last: _Letter | None = None
    for index in range(pdfium.FPDFText_CountChars(source)):
        code = pdfium.FPDFText_GetUnicode(source, index)
        pdfium.FPDFText_GetLooseCharBox(source, index, box)
        letter = _Letter(chr(code) if code < 0x110000 else "\ufffd", box.left, box.right, box.bottom, box.top)
        # PDFium leaves out the line break after a hyphen.
        is_far = last is not None and not letter.is_blank and (last.sign == _HYPHEN or letter.left < last.right - 60)
        if code in _LINE_BREAKS or is_far:
            lines += _cut_at_gaps(letters)
            letters, last = [], None
        if code not in _LINE_BREAKS:
            letters.append(letter)
            last = last if letter.is_blank else letter
    source.close()
    return lines + _cut_at_gaps(letters)


def _cut_at_gaps(letters: Sequence[_Letter]) -> list[_Line]:
    """The parts of a line between gaps that are wide, and wider than the others: in a justified line all gaps may be wide."""
    inked = [index for index, letter in enumerate(letters) if not letter.is_blank]
    gaps = {after: letters[after].left - letters[before].right for before, after in pairwise(inked)}
    between_words = sorted(gaps[after] for before, after in pairwise(inked) if after > before + 1)
    usual = between_words[len(between_words) // 2] if len(between_words) > 1 else 0.0
    cuts = [
        index
        for index, gap in gaps.items()
        if gap > 1.2 * letters[index].size and (gap > 1.6 * usual or gap > 5 * letters[index].size)
    ]
    bounds = [0, *cuts, len(letters)]
    return [line for start, stop in pairwise(bounds) for line in _line(letters[start:stop], after_gap=start > 0)]


def _line(letters: Sequence[_Letter], after_gap: bool) -> list[_Line]:
    """The line of these letters, without raised numbers of footnotes; none if they are all blank."""
    inked = [letter for letter in letters if not letter.is_blank]
    if not inked:
        return []
    size = _usual(round(letter.size, 1) for letter in inked)
    base = _usual(round(letter.bottom, 1) for letter in inked if round(letter.size, 1) == size)
    text = "".join(letter.sign for letter in _without_note_numbers(letters, size, base)).strip()
    left, right = min(letter.left for letter in inked), max(letter.right for letter in inked)
    return [_Line(text, left, right, base, base + size, size, after_gap)] if text else []


def _without_note_numbers(letters: Sequence[_Letter], size: float, base: float) -> Iterator[_Letter]:
    """Leaves out small raised digits that follow a letter or a mark; they refer to footnotes."""
    text_before = False
    for letter in letters:
        is_raised = letter.size < 0.85 * size and letter.bottom > base + 0.1 * size
        if is_raised and text_before and (letter.sign.isdigit() or letter.sign in "*†‡"):
            continue
        text_before = text_before or not letter.is_blank
        yield letter


def _usual(values: Iterable[float]) -> float:
    return Counter(values).most_common(1)[0][0] if (values := list(values)) else 0.0


# Running heads


def _remove_running_heads(pages: Sequence[_PdfPage]) -> int:
    """Removes page numbers, and lines that stand at the same place of several pages; returns their number."""
    places: Counter[tuple[str, str]] = Counter()
    margins = [_margin_lines(page) for page in pages]
    for lines in margins:
        places.update({(zone, _pattern(line)) for zone, line in lines})
    count = 0
    for page, lines in zip(pages, margins, strict=True):
        heads = [
            line
            for zone, line in lines
            if places[zone, _pattern(line)] > 1 or _PAGE_NUMBER.fullmatch(line.text) or _BROWSER_HEAD.match(line.text)
        ]
        # The title between date and margin of a printed web page.
        rows = [round(line.bottom) for line in heads if _BROWSER_HEAD.match(line.text)]
        heads += [line for _, line in lines if line not in heads and any(abs(line.bottom - row) < 3 for row in rows)]
        if len(heads) < len(page.lines) or len(pages) > 1:
            page.lines = [line for line in page.lines if line not in heads]
            count += len(heads)
    return count


def _margin_lines(page: _PdfPage) -> list[tuple[str, _Line]]:
    """The outermost three rows of lines at the top and at the bottom of a page, as far as they lie in its margins."""
    edges = {"top": page.height * (1 - _MARGIN), "bottom": page.height * _MARGIN}
    lines = [("top", line) for line in page.lines if line.bottom > edges["top"]]
    lines += [("bottom", line) for line in page.lines if line.top < edges["bottom"]]
    rows = {zone: sorted({round(line.bottom / 3) for side, line in lines if side == zone}) for zone in edges}
    outermost = {"top": rows["top"][-3:], "bottom": rows["bottom"][:3]}
    return [(zone, line) for zone, line in lines if round(line.bottom / 3) in outermost[zone]]


def _pattern(line: _Line) -> str:
    """A line's text with its height, in which all numbers are the same."""
    return f"{re.sub(r'[0-9]+', '#', line.text)} {round(line.bottom / 4)}"


# Reading order


def _in_reading_order(page: _PdfPage) -> list[_Line]:
    """The lines of a page: column by column where lines have gaps at the same place, else as the file has them."""
    edges = Counter(
        round(line.left / 3)
        for before, line in pairwise(page.lines)
        if line.after_gap and min(len(before.text), len(line.text)) >= 15
    )
    gutters = sorted(3 * edge for edge, count in edges.items() if count >= _COLUMN_LINES)
    if not gutters:
        return _rejoined(page.lines)
    columns: list[list[_Line]] = [[] for _ in range(len(gutters) + 1)]
    ordered: list[_Line] = []
    for line in sorted(page.lines, key=lambda line: -line.top):
        if any(line.left < gutter - 6 and line.right > gutter + 6 for gutter in gutters):  # a heading over all columns
            ordered += [*(other for column in columns for other in column), line]
            columns = [[] for _ in columns]
        else:
            columns[sum(line.left > gutter - 6 for gutter in gutters)].append(line)
    return ordered + [line for column in columns for line in column]


def _rejoined(lines: Sequence[_Line]) -> list[_Line]:
    """Lines whose parts before and after a wide gap are one line again, with a tab between the cells of a table's row."""
    margins = Counter(round(line.right) for line in lines if not line.after_gap)
    joined: list[_Line] = []
    for line in lines:
        if line.after_gap and joined:
            last = joined[-1]
            # A justified line of two long words ends at the margin like other lines.
            sign = " " if margins[round(line.right)] > 2 and " " not in last.text + line.text else "\t"
            joined[-1] = _Line(
                f"{last.text}{sign}{line.text}", min(last.left, line.left), max(last.right, line.right),
                min(last.bottom, line.bottom), max(last.top, line.top), last.size, last.after_gap,
            )  # fmt: skip
        else:
            joined.append(line)
    return joined


def _note_lines(page: _PdfPage, usual_size: float) -> list[_Line]:
    """The footnotes of a page: lines in a smaller font, below the text of their column, of which the first has a number."""
    small = [line for line in page.lines if line.size < 0.93 * usual_size]
    body = [line for line in page.lines if line.size >= 0.93 * usual_size]
    notes: list[_Line] = []
    for line in small:
        is_lowest = not any(
            other.top < line.bottom and other.left < line.right and line.left < other.right for other in body
        )
        if is_lowest and line.top < page.height / 2 and (notes or _NOTE.match(line.text)):
            notes.append(line)
    return notes if body else []


# Paragraphs


def _paragraphs(lines: Sequence[_Line], notes: bool = False) -> list[str]:
    """Joins lines to paragraphs."""
    pitch = _usual(
        round(before.bottom - line.bottom) for before, line in pairwise(lines) if before.bottom > line.bottom
    )
    right = max((line.right for line in lines), default=0.0)
    paragraphs: list[str] = []
    previous: _Line | None = None
    for line in lines:
        starts_note = notes and bool(_NOTE.match(line.text))
        if previous is None or starts_note or _is_new_paragraph(previous, line, pitch, right):
            paragraphs.append(line.text)
        else:
            paragraphs[-1] = _joined(paragraphs[-1], line.text)
        previous = line
    return [tidy(text) if "\t" not in text else text for text in paragraphs]


def _is_new_paragraph(previous: _Line, line: _Line, pitch: float, right: float) -> bool:
    if abs(line.size - previous.size) > 0.08 * previous.size:
        return True
    step = previous.bottom - line.bottom
    if step > 1.3 * pitch + 1 or "\t" in line.text or "\t" in previous.text:
        return True
    if not _SENTENCE_END.search(previous.text):
        return False
    is_indented = line.left > previous.left + 0.6 * line.size
    return is_indented or step < 0 or previous.right < right - 0.1 * (right - previous.left)


def _joined(text: str, more: str) -> str:
    """Continues a paragraph with its next line."""
    if text.endswith(_LINE_END_HYPHENS) and text[-2:-1].isalpha() and more[:1].isalpha():
        return f"{text[:-1]}{_HYPHEN if more[0].islower() else '-'}{more}"
    return f"{text} {more}"


def _continue(paragraphs: list[str], more: list[str]) -> None:
    """Adds the paragraphs of a page; the first one continues the last of the page before if that ends inside a sentence."""
    is_open = paragraphs and more and not _SENTENCE_END.search(paragraphs[-1])
    if is_open and (len(paragraphs[-1]) > 40 or more[0][:1].islower()):
        paragraphs[-1] = _joined(paragraphs[-1], more.pop(0))
    paragraphs += more


def _join_hyphens(text: str, lines: int) -> str:
    """Joins the words that were broken at the end of a line; keeps the hyphen where it belongs to the word."""
    words = Counter(word.lower() for word in _WORD.findall(text))
    broken = _BROKEN.findall(text)
    hyphenates = len(broken) > max(3, _HYPHENATED_SHARE * lines)

    def mended(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        hyphenated, joined = f"{first}-{second}", first + second
        if words[hyphenated.lower()] != words[joined.lower()]:
            return hyphenated if words[hyphenated.lower()] > words[joined.lower()] else joined
        return joined if hyphenates or _WORD_END.fullmatch(second) else hyphenated

    return _BROKEN.sub(mended, _BROKEN.sub(mended, text)).replace(_HYPHEN, "-")
