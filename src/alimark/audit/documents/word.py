"""Reads Word documents (OOXML, transitional and strict).

Deleted text of tracked changes, hidden text and comments are left out; a text box is read once; notes follow the text.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator

from alimark.audit.documents.blocks import join_blocks, row_blocks, tidy
from alimark.audit.documents.packages import Element, Package, attribute, local_name
from alimark.errors import TextError

# Elements whose content counts as if they were not there.
_TRANSPARENT = frozenset(
    "ins moveTo sdtContent sdt customXml smartTag fldSimple hyperlink dir bdo ruby rubyBase body txbxContent oMath oMathPara "
    "document footnote endnote".split()
)
_DELETED = frozenset(("del", "moveFrom"))
_MARKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTE_PARTS = (("footnoteReference", "footnotes"), ("endnoteReference", "endnotes"))
_OFF = frozenset(("0", "false", "off", "none"))


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of a Word document, and notes about what was left out."""
    package = Package(data)
    main = _main_part(package)
    root = package.xml(main)
    if root is None:
        raise TextError("the document has no main part; check that the file is complete")
    reader = _WordReader()
    blocks = reader.blocks(root)
    for reference, part in _NOTE_PARTS:
        blocks += _notes(
            package, posixpath.join(posixpath.dirname(main), f"{part}.xml"), reader.notes[reference], reader
        )
    comments = package.xml(posixpath.join(posixpath.dirname(main), "comments.xml"))
    reader.left_out["comments"] = 0 if comments is None else len(comments)
    return join_blocks(blocks), [f"{what} left out: {count}" for what, count in reader.left_out.items() if count]


def _main_part(package: Package) -> str:
    """The name of the part that holds the text, which the package's relationships name."""
    relations = package.xml("_rels/.rels")
    for relation in relations if relations is not None else ():
        if attribute(relation, "Type").endswith("/officeDocument"):
            return attribute(relation, "Target").lstrip("/")
    return "word/document.xml"


def _notes(package: Package, name: str, order: list[str], reader: _WordReader) -> list[str]:
    """The footnotes or endnotes in the order in which the text refers to them."""
    root = package.xml(name) if order else None
    if root is None:
        return []
    notes = {attribute(note, "id"): note for note in root}
    return [block for number in order if number in notes for block in reader.blocks(notes[number])]


class _WordReader:
    """Turns elements into paragraphs; counts what it leaves out."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.notes: dict[str, list[str]] = {reference: [] for reference, _ in _NOTE_PARTS}
        self._boxes: list[Element] = []
        self._joined = ""
        """The text of paragraphs whose final mark was deleted, so that the next paragraph continues them."""

    def blocks(self, parent: Element) -> list[str]:
        """The paragraphs and table rows of an element."""
        blocks: list[str] = []
        for child in parent:
            name = local_name(child.tag)
            if name == "p":
                blocks += self._paragraph(child)
            elif name == "tbl":
                blocks += self._table(child)
            elif name in _TRANSPARENT:
                blocks += self.blocks(child) if not _is_placeholder(child) else []
            elif name == "AlternateContent":
                blocks += self.blocks(_chosen(child))
            elif name in _DELETED:
                self.left_out["tracked deletions"] += 1
            elif name == "altChunk":
                self.left_out["embedded documents"] += 1
        return blocks

    def _paragraph(self, paragraph: Element) -> list[str]:
        text = self._joined + "".join(self._inline(paragraph))
        boxes, self._boxes = self._boxes, []
        self._joined = ""
        if any(local_name(mark.tag) == "del" for mark in paragraph.findall("{*}pPr/{*}rPr/*")):
            self._joined, text = text, ""
        return [tidy(text), *(block for box in boxes for block in self.blocks(box))]

    def _inline(self, parent: Element) -> Iterator[str]:
        """The text inside a paragraph; text boxes are put aside until it ends."""
        for child in parent:
            name = local_name(child.tag)
            if name == "t":
                yield child.text or ""
            elif name in _MARKS:
                yield _MARKS[name]
            elif name == "r" and _is_hidden(child):
                self.left_out["runs of hidden text"] += 1
            elif name in _DELETED:
                self.left_out["tracked deletions"] += 1
            elif name == "txbxContent":
                self._boxes.append(child)
            elif name in self.notes:
                self.notes[name].append(attribute(child, "id"))
            elif name == "AlternateContent":
                yield from self._inline(_chosen(child))
            elif name not in _PROPERTIES and not _is_placeholder(child):
                yield from self._inline(child)

    def _table(self, table: Element) -> list[str]:
        blocks: list[str] = []
        for row in _inside(table, "tr"):
            if row.find("{*}trPr/{*}del") is not None:
                self.left_out["tracked deletions"] += 1
                continue
            cells = [[text for text in self.blocks(cell) if text] for cell in _inside(row, "tc")]
            blocks += row_blocks(cells)
        return blocks


# Elements inside a paragraph that hold no text of their own: formatting, ruby, definitions of fields, positions of pictures.
_PROPERTIES = frozenset(
    "pPr rPr sdtPr sdtEndPr rt instrText delText delInstrText fldData rubyPr smartTagPr customXmlPr docPr posOffset align "
    "sizeRelH sizeRelV pctWidth pctHeight ctrlPr".split()
)


def _inside(parent: Element, wanted: str) -> Iterator[Element]:
    """The rows of a table or the cells of a row, also those inside content controls and tracked insertions."""
    for child in parent:
        name = local_name(child.tag)
        if name == wanted:
            yield child
        elif name in _TRANSPARENT:
            yield from _inside(child, wanted)


def _chosen(alternatives: Element) -> Element:
    """One of several representations of the same content: Word writes a text box in a new and in an old form."""
    choices = [child for child in alternatives if local_name(child.tag) in ("Choice", "Fallback")]
    with_text = [
        choice for choice in choices if any(local_name(node.tag) in ("t", "txbxContent") for node in choice.iter())
    ]
    return (with_text or choices or [Element("none")])[0]


def _is_hidden(run: Element) -> bool:
    vanish = run.find("{*}rPr/{*}vanish")
    return vanish is not None and attribute(vanish, "val") not in _OFF


def _is_placeholder(element: Element) -> bool:
    """Whether a content control only shows its prompt, such as "Click here to enter text"."""
    return local_name(element.tag) == "sdt" and element.find("{*}sdtPr/{*}showingPlcHdr") is not None
