"""Reads zip archives and XML within limits: Word, OpenDocument and e-book files are archives of XML."""

import io
import zipfile
import zlib
from xml.etree import ElementTree
from xml.parsers import expat

from alimark.errors import TextError

Element = ElementTree.Element
MAX_UNPACKED = 64 << 20  # bytes that the members of an archive may have together, as far as they are read


class Package:
    """A zip archive whose members are read up to a total size."""

    def __init__(self, data: bytes) -> None:
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError):
            raise TextError("the archive of the document is damaged; check that the file is complete") from None
        self.names = frozenset(self._archive.namelist())
        self._left = MAX_UNPACKED

    def read(self, name: str) -> bytes | None:
        """Returns the content of a member; None where there is no such member."""
        if name not in self.names:
            return None
        if self._archive.getinfo(name).flag_bits & 1:
            raise TextError("the document has a password; save it without one")
        try:
            with self._archive.open(name) as file:
                content = file.read(self._left + 1)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError):
            raise TextError("the archive of the document is damaged; check that the file is complete") from None
        self._left -= len(content)
        if self._left < 0:
            raise TextError(f"the document unpacks to more than {MAX_UNPACKED >> 20} MB, which is the limit; split it")
        return content

    def xml(self, name: str) -> Element | None:
        """Returns the root element of an XML member; None where there is no such member."""
        content = self.read(name)
        return None if content is None else parse_xml(content)

    def kind(self) -> str:
        """Returns the kind of the document by its members.

        Raises:
            TextError: The archive is not a document that can be read.
        """
        mime = (self.read("mimetype") or b"").strip().decode("ascii", "replace")
        if mime == "application/epub+zip" or "META-INF/container.xml" in self.names:
            return "epub"
        if mime.startswith("application/vnd.oasis.opendocument.text") or (not mime and "content.xml" in self.names):
            return "odt"
        if any(name.startswith("word/") for name in self.names):
            return "docx"
        for folder, what in (("xl/", "a spreadsheet"), ("ppt/", "a presentation")):
            if any(name.startswith(folder) for name in self.names):
                raise TextError(f"the file is {what}, which cannot be read; save it as PDF, or copy its text")
        raise TextError("the file is a zip archive and not a document; unpack it first")


def parse_xml(content: bytes) -> Element:
    """Returns the root element of an XML document; a document that declares entities is refused.

    Raises:
        TextError: The content is not well-formed, or declares entities (which can grow without bound, or name other files).
    """

    def refuse_entity(*_: object) -> None:
        raise TextError("the XML of the document declares entities, which no document needs; it was not read")

    guard = expat.ParserCreate()
    guard.EntityDeclHandler = refuse_entity
    try:
        guard.Parse(content, True)
        return ElementTree.fromstring(content)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError):
        raise TextError("the XML of the document is damaged; check that the file is complete") from None


def local_name(tag: object) -> str:
    """Returns the name of an element without its namespace; empty for comments and processing instructions."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(element: Element, name: str) -> str:
    """Returns the value of an attribute in any namespace; empty where the element has none of this name."""
    return next((value for key, value in element.attrib.items() if local_name(key) == name), "")
