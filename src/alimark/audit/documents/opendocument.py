"""Reads OpenDocument texts (.odt, and .fodt without an archive).

Deleted text of tracked changes and comments are left out; a text box is read once; notes follow the text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from alimark.audit.documents.blocks import join_blocks, row_blocks, tidy
from alimark.audit.documents.packages import Element, Package, attribute, local_name, parse_xml
from alimark.errors import TextError

_MOST_SPACES = 100
_SKIPPED = frozenset(
    "tracked-changes annotation annotation-end note-citation ruby-text title desc forms script sequence-decls variable-decls "
    "user-field-decls dde-connection-decls table-of-content-source alphabetical-index-source bibliography-source "
    "illustration-index-source table-index-source user-index-source object-index-source event-listeners hidden-text "
    "soft-page-break".split()
)


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of an OpenDocument file, and notes about what was left out."""
    root = _content(data) if data.startswith(b"PK") else parse_xml(data)
    body = root.find("{*}body/{*}text")
    if body is None:
        raise TextError("the document holds no text; check that it is a text document and complete")
    reader = _OpenDocumentReader()
    blocks = reader.blocks(body)
    blocks += [block for note in reader.notes for block in reader.blocks(note)]
    return join_blocks(blocks), [f"{what} left out: {count}" for what, count in reader.left_out.items()]


def _content(data: bytes) -> Element:
    package = Package(data)
    if b"encryption-data" in (package.read("META-INF/manifest.xml") or b""):
        raise TextError("the document has a password; save it without one")
    root = package.xml("content.xml")
    if root is None:
        raise TextError("the document has no content.xml; check that the file is complete")
    return root


class _OpenDocumentReader:
    """Turns elements into paragraphs; puts notes aside and counts what it leaves out."""

    def __init__(self) -> None:
        self.notes: list[Element] = []
        self.left_out: Counter[str] = Counter()
        self._boxes: list[Iterable[Element]] = []

    def blocks(self, parent: Iterable[Element]) -> list[str]:
        """The paragraphs and table rows of an element, or of several."""
        blocks: list[str] = []
        for child in parent:
            name = local_name(child.tag)
            if name in ("p", "h"):
                text = tidy("".join(self._inline(child)))
                boxes, self._boxes = self._boxes, []
                blocks += [text, *(block for box in boxes for block in self.blocks(box))]
            elif name == "table-row":
                cells = [cell for cell in child if local_name(cell.tag) == "table-cell"]
                blocks += row_blocks([[text for text in self.blocks(cell) if text] for cell in cells])
            elif not self._is_skipped(child, name):
                blocks += self.blocks(child)
        return blocks

    def _inline(self, parent: Element) -> Iterator[str]:
        """The text inside a paragraph; text boxes and notes are put aside."""
        yield _collapsed(parent.text)
        for child in parent:
            name = local_name(child.tag)
            if name == "s":
                count = attribute(child, "c")
                yield " " * min(int(count) if count.isdigit() else 1, _MOST_SPACES)
            elif name == "tab":
                yield "\t"
            elif name == "line-break":
                yield "\n"
            elif name == "note":
                self.notes += [part for part in child if local_name(part.tag) == "note-body"]
            elif name in ("text-box", "p", "custom-shape", "list", "table"):
                self._boxes.append([child] if name == "p" else child)
            elif not self._is_skipped(child, name):
                yield from self._inline(child)
            yield _collapsed(child.tail)

    def _is_skipped(self, element: Element, name: str) -> bool:
        if name == "tracked-changes":
            self.left_out["tracked deletions"] += len(element.findall(".//{*}deletion"))
        elif name == "annotation":
            self.left_out["comments"] += 1
        return name in _SKIPPED


def _collapsed(text: str | None) -> str:
    """The format counts a run of white space as one blank; further blanks are elements."""
    return "" if not text else text.replace("\n", " ")
