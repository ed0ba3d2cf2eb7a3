"""Extracts the text of txt, md, html, docx and pdf files.

Formats that need a parser are read in a separate process with limits on time and memory, because the files come from
clients. A docx file is a zip archive of XML, which the standard library reads; pdf files need pypdf.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from typing import Final
from xml.etree import ElementTree

from alimark.errors import LimitError, MissingExtra, TextError

KINDS: Final = ("txt", "md", "html", "docx", "pdf")

_SECONDS = 20
_MEMORY = 2 * 2**30
_UNPACKED = 64 * 2**20
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_BLOCKS = frozenset("p div li ul ol h1 h2 h3 h4 h5 h6 tr table section article br blockquote pre header footer".split())
_HIDDEN = frozenset("script style head template noscript title".split())


def extract(data: bytes, kind: str, most: int) -> str:
    """Returns the text of a file.

    Args:
        data: The content of the file.
        kind: The format, one of `KINDS`.
        most: The largest number of characters that the text may have.

    Raises:
        TextError: The file cannot be read as this format, or contains no text.
        LimitError: The text is longer than `most` characters.
        MissingExtra: pypdf is needed and not installed.
    """
    text = _decode(data) if kind in ("txt", "md") else _extract_in_process(data, kind, most)
    if not text.strip():
        hint = "; if it is a scan, run a text recognition (OCR) first" if kind == "pdf" else ""
        raise TextError(f"the file contains no text{hint}")
    if len(text) > most:
        raise LimitError(f"the text of the file has more than {most:,} characters, which is the limit; split the file")
    return text


def _extract_in_process(data: bytes, kind: str, most: int) -> str:
    command = [sys.executable, "-B", "-m", "alimark.serve.extract", kind, str(most)]
    # The environment of the server may hold a database password or an API key; the process gets neither.
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    try:
        process = subprocess.run(
            command, input=data, capture_output=True, timeout=2 * _SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise TextError(f"reading the {kind} file took too long; split it, or convert it to txt") from None
    if process.returncode == 3:
        raise MissingExtra("pypdf", "serve")
    if process.returncode:
        raise TextError(f"the file cannot be read as {kind}; check that it is complete and has no password")
    return process.stdout.decode("utf-8", "replace")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"the file is not UTF-8 (see byte {error.start}); convert it to UTF-8 first") from None


# The functions below run in the separate process.


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        if tag in _BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _html(data: bytes) -> str:
    parser = _Html()
    parser.feed(data.decode("utf-8-sig", "replace"))
    parser.close()
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r" *\n *", "\n", "".join(parser.parts))).strip()


def _docx(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as package, package.open("word/document.xml") as file:
        content = file.read(_UNPACKED + 1)
    if len(content) > _UNPACKED or b"<!DOCTYPE" in content:
        raise ValueError("the document is too large, or has a DOCTYPE, which no docx file needs")
    paragraphs = []
    for paragraph in ElementTree.fromstring(content).iter(f"{_WORD}p"):
        parts = []
        for node in paragraph.iter():
            if node.tag == f"{_WORD}t":
                parts.append(node.text or "")
            elif node.tag in (f"{_WORD}tab", f"{_WORD}br"):
                parts.append(" ")
        paragraphs.append("".join(parts))
    return "\n\n".join(text for text in paragraphs if text.strip())


def _pdf(data: bytes) -> str:
    from pypdf import PdfReader

    pages = [page.extract_text() for page in PdfReader(io.BytesIO(data)).pages]
    # A single line break in a pdf only wraps a full line; a blank line ends a paragraph.
    return re.sub(r"(?<![\n])\n(?!\n)", " ", "\n\n".join(pages)).strip()


def _main(kind: str, most: int) -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    data = sys.stdin.buffer.read()
    readers = {"html": _html, "docx": _docx, "pdf": _pdf}
    try:
        text = readers[kind](data)
    except ImportError:
        return 3
    except Exception:  # a broken and a hostile file get the same answer
        return 1
    sys.stdout.buffer.write(text[: most + 1].encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2])))
