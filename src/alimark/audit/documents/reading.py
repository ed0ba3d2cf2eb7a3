"""Reads documents of all kinds, each in a process of its own with limits on time and memory."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from alimark.audit.documents.child import CPU_SECONDS, MEMORY
from alimark.audit.documents.encodings import decode
from alimark.audit.documents.kinds import KINDS, kind_of_name, recognise
from alimark.core._util import process
from alimark.core._util.files import regular
from alimark.core._util.json_types import JsonObject
from alimark.errors import LimitError, MissingExtra, TextError

MAX_BYTES = 64 << 20  # the largest file that is read
MAX_CHARACTERS = 8 << 20  # the longest text that a document may have

_CHILD = "alimark.audit.documents.child"
_ADDRESS = re.compile(r"(?:https?|ftps?|gopher|data):", re.I)


@dataclass(frozen=True)
class Document:
    """The text of a document."""

    text: str
    kind: str
    """One of "txt", "md", "html", "pdf", "docx", "odt", "epub", "rtf" and "eml"."""
    notes: tuple[str, ...] = ()
    """What was left out or guessed, in words for the user."""


def read_document(
    source: str | Path | bytes, *, kind: str | None = None, max_characters: int = MAX_CHARACTERS
) -> Document:
    """Reads the text of a document: a web page, PDF, Word, OpenDocument, EPUB, RTF, Markdown, e-mail or text file.

    Formats that need a parser are read in a separate process with limits on time and memory, so that a hostile file can do
    no more than fail. Nothing is ever downloaded. HTML, EPUB, Markdown, e-mail with HTML, RTF and PDF need
    `pip install 'alimark[documents]'`.

    Args:
        source: The path of a file, or its content.
        kind: The kind of the document, one of `Document.kind`; by default the name and the content decide.
        max_characters: The longest text that is accepted.

    Returns:
        The text, the kind, and notes about what was left out or guessed.

    Raises:
        TextError: The file cannot be read, holds no text, or is an address.
        LimitError: The file or its text is too long.
        MissingExtra: A library is needed that is not installed.
        OSError: There is no such file, or it may not be read.

    Example:
        >>> read_document("Größe".encode("utf-16")).text
        'Größe'
        >>> read_document(b"From: a@b.c\\nSubject: Lamp\\n\\nThe keeper slept.").kind
        'eml'
    """
    if isinstance(source, str) and _ADDRESS.match(source):
        raise TextError(f"{source} is an address, and alimark does not download pages; save it as a file first")
    if kind is not None and kind not in KINDS:
        raise TextError(f"{kind!r} is not a kind of document; the kinds are {', '.join(KINDS)}")
    if isinstance(source, bytes):
        data, expected = source, kind
    else:
        with regular(source, TextError).open("rb") as file:
            data, expected = file.read(MAX_BYTES + 1), kind or kind_of_name(str(source))
    if len(data) > MAX_BYTES:
        raise LimitError(f"the file has more than {MAX_BYTES >> 20} MB, which is the limit; split it")
    document = _read(data, recognise(data, expected), max_characters)
    if not document.text.strip():
        hint = "; if it is a scan, run a text recognition (OCR) first" if document.kind == "pdf" else ""
        raise TextError(f"the file contains no text{hint}")
    if len(document.text) > max_characters:
        raise LimitError(
            f"the text of the file has more than {max_characters:,} characters, which is the limit; split the file"
        )
    if expected not in (None, document.kind):
        note = f"the file is named or declared as {expected}, but its content is {document.kind}"
        return Document(document.text, document.kind, (note, *document.notes))
    return document


def _read(data: bytes, kind: str, most: int) -> Document:
    if kind == "txt":
        text, notes = decode(data)
        return Document(text, kind, tuple(notes))
    try:
        _, output = process.run(_CHILD, [kind, str(most)], data, cpu_seconds=CPU_SECONDS)
        answer: JsonObject = json.loads(output)
    except process.TooLong:
        raise TextError(
            f"reading the {kind} file took more than {CPU_SECONDS} seconds; split it, or copy its text to a .txt file"
        ) from None
    except ValueError:
        raise TextError(
            f"the program that reads {kind} files broke off: the file is damaged, or needs more than {MEMORY >> 30} GB of "
            "memory; check that it is complete, and split it"
        ) from None
    if "missing" in answer:
        raise MissingExtra(str(answer["missing"]), "documents")
    if "error" in answer:
        raise TextError(str(answer["error"]))
    return Document(str(answer["text"]), str(answer["kind"]), tuple(map(str, answer["notes"])))
