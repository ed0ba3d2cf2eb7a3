"""Files to text: txt, md, html, docx, pdf. Whatever was sent is read in a process of its own with bounded time and memory.

A docx is a folder of XML in a zip, which Python reads by itself; a pdf takes pypdf.
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
    """The text of a file; TextError where it is not what it is said to be."""
    text = _decoded(data) if kind in ("txt", "md") else _apart(data, kind, most)
    if not text.strip():
        raise TextError("the file holds no text" + (" (a scan, perhaps)" if kind == "pdf" else ""))
    if len(text) > most:
        raise LimitError(f"the file's text has more than the {most:,} characters that a text may have")
    return text


def _apart(data: bytes, kind: str, most: int) -> str:
    command = [sys.executable, "-B", "-m", "alimark.serve.extract", kind, str(most)]
    # The server's environment may hold a database's password or an API key, which are no business of a file's reader.
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=2 * _SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise TextError(f"the {kind} file took too long to read") from None
    if done.returncode == 3:
        raise MissingExtra("pypdf", "serve")
    if done.returncode:
        raise TextError(f"the file cannot be read as {kind}; is it complete, and without a password?")
    return done.stdout.decode("utf-8", "replace")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"the file is not UTF-8 (byte {error.start}); convert it first") from None


# In the other process


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
        raise ValueError("too large, or with definitions of its own, which no docx has")
    paragraphs = []
    for paragraph in ElementTree.fromstring(content).iter(f"{_WORD}p"):
        parts = []
        for node in paragraph.iter():
            if node.tag == f"{_WORD}t":
                parts.append(node.text or "")
            elif node.tag in (f"{_WORD}tab", f"{_WORD}br"):
                parts.append(" ")
        paragraphs.append("".join(parts))
    return "\n\n".join(one for one in paragraphs if one.strip())


def _pdf(data: bytes) -> str:
    from pypdf import PdfReader

    pages = [page.extract_text() for page in PdfReader(io.BytesIO(data)).pages]
    # A line break in a pdf is where the line was full; a blank line is a paragraph.
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
    except Exception:  # hostile or broken, the answer is the same
        return 1
    sys.stdout.buffer.write(text[: most + 1].encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2])))
