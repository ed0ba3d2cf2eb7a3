"""Reads e-books (EPUB 2 and 3): the chapters in reading order."""

import posixpath
import re
from urllib.parse import unquote

from alimark.audit.documents.blocks import join_blocks
from alimark.audit.documents.encodings import declared_in_html, decode
from alimark.audit.documents.html import text_of_html
from alimark.audit.documents.packages import Element, Package, attribute
from alimark.errors import TextError

# Fonts may be scrambled without any protection of the text.
_FONT_ALGORITHMS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
# XHTML allows <title/>, which an HTML parser takes for the beginning of a title.
_SELF_CLOSED = re.compile(r"<(title|script|style|a|p|div|span|i|b|em|strong|td|th|li|h[1-6])(\s[^<>]*)?/>", re.I)


def read(data: bytes, most: int) -> tuple[str, list[str]]:
    """Returns the text of an e-book up to about `most` characters, and notes about what was left out."""
    package = Package(data)
    _refuse_protected(package)
    opf_name = _opf_name(package)
    opf = package.xml(opf_name)
    if opf is None:
        raise TextError("the e-book has no table of its files; check that the file is complete")
    blocks: list[str] = []
    missing: list[str] = []
    size = 0
    for name in _chapters(opf, posixpath.dirname(opf_name)):
        content = package.read(name)
        if content is None:
            missing.append(name)
            continue
        page, _ = decode(content, declared_in_html(content))
        blocks.append(text_of_html(_SELF_CLOSED.sub(r"<\1\2></\1>", page)))
        size += len(blocks[-1])
        if size > most:
            break
    notes = [f"the chapters {', '.join(missing)} are missing in the e-book"] if missing else []
    return join_blocks(blocks), notes


def _refuse_protected(package: Package) -> None:
    encryption = package.xml("META-INF/encryption.xml")
    methods = encryption.findall(".//{*}EncryptionMethod") if encryption is not None else ()
    if any(not attribute(method, "Algorithm").startswith(_FONT_ALGORITHMS) for method in methods):
        raise TextError("the e-book is protected against copying (DRM) and cannot be read")


def _opf_name(package: Package) -> str:
    container = package.xml("META-INF/container.xml")
    for root in container.findall(".//{*}rootfile") if container is not None else ():
        return attribute(root, "full-path")
    return next((name for name in sorted(package.names) if name.endswith(".opf")), "")


def _chapters(opf: Element, folder: str) -> list[str]:
    """The names of the chapters in reading order, without the table of contents."""
    items = {attribute(item, "id"): item for item in opf.findall(".//{*}item")}
    guide = opf.findall(".//{*}guide/{*}reference")
    contents = {attribute(page, "href").partition("#")[0] for page in guide if attribute(page, "type") == "toc"}
    names = []
    for reference in opf.findall(".//{*}itemref"):
        item = items.get(attribute(reference, "idref"))
        if item is not None and _is_chapter(item, contents):
            names.append(posixpath.normpath(posixpath.join(folder, unquote(attribute(item, "href")))))
    return names


def _is_chapter(item: Element, contents: set[str]) -> bool:
    is_page = attribute(item, "media-type") in ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
    return is_page and "nav" not in attribute(item, "properties").split() and attribute(item, "href") not in contents
