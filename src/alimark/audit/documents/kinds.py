"""Recognises the kind of a document, from its first bytes and from the ending of its name."""

import re
from pathlib import PurePath
from typing import Final

from alimark.errors import TextError

KINDS: Final = ("txt", "md", "html", "pdf", "docx", "odt", "epub", "rtf", "eml")
"""The kinds of documents that can be read."""

ENDINGS: Final = {
    ".txt": "txt", ".text": "txt", ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".xhtml": "html",
    ".pdf": "pdf", ".docx": "docx", ".docm": "docx", ".dotx": "docx", ".odt": "odt", ".ott": "odt", ".fodt": "odt",
    ".epub": "epub", ".rtf": "rtf", ".eml": "eml", ".mht": "eml", ".mhtml": "eml",
}  # fmt: skip
"""The kind for each ending of a file's name."""

_ZIPPED = frozenset(("docx", "odt", "epub"))
_BEFORE_ROOT = rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.{0,2000}?-->\s*)*"
_HTML = re.compile(_BEFORE_ROOT + rb"<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_FLAT_ODT = re.compile(_BEFORE_ROOT + rb"<office:document\b", re.S)
# Two lines of a header that every message has; a text may begin with a single "Subject: ...".
_MAIL_HEADERS = rb"From|To|Date|Subject|Received|Return-Path|MIME-Version|Message-ID|Delivered-To|Content-Type|X-[\w-]+"
_MAIL = re.compile(rb"(?:(?:" + _MAIL_HEADERS + rb"):[^\n]*\n(?:[ \t][^\n]*\n)*){2}", re.I)
_PICTURE = "is a picture; run a text recognition (OCR) on it first"
_OTHER_KINDS = (
    (
        b"\xd0\xcf\x11\xe0",
        "is an old Word file (.doc) or has a password; open it and save it as .docx without a password",
    ),
    (b"\x1f\x8b", "is compressed with gzip; unpack it first"),
    (b"7z\xbc\xaf", "is a 7z archive; unpack it first"),
    (b"Rar!", "is a RAR archive; unpack it first"),
    (b"\x89PNG", _PICTURE),
    (b"\xff\xd8\xff", _PICTURE),
    (b"GIF8", _PICTURE),
)


def kind_of_name(name: str) -> str | None:
    """Returns the kind of a document by the ending of its name; None for an ending that is not known.

    Example:
        >>> kind_of_name("letters/Report.DOCX"), kind_of_name("photo.jpeg")
        ('docx', None)
    """
    return ENDINGS.get(PurePath(name).suffix.lower())


def recognise(data: bytes, expected: str | None = None) -> str:
    """Returns the kind of a document: by its content where that leaves no doubt, else the expected one.

    Args:
        data: The content of the file.
        expected: The kind by the file's name, one of `KINDS`; None where the name says nothing.

    Returns:
        One of `KINDS`, or "zip" for an archive whose kind only its members tell.

    Raises:
        TextError: The content is of a kind that holds no text or cannot be read.

    Example:
        >>> recognise(b"%PDF-1.7 ...", "docx"), recognise(b"<!doctype html><p>Hello."), recognise(b"Hello.")
        ('pdf', 'html', 'txt')
    """
    for magic, problem in _OTHER_KINDS:
        if data.startswith(magic):
            raise TextError(f"the file {problem}")
    start = data[: 1 << 16]
    certain = {
        "pdf": b"%PDF-" in data[:1024],
        "zip": data.startswith(b"PK\x03\x04"),
        "rtf": data.startswith(rb"{\rtf"),
        "odt": _FLAT_ODT.match(start) is not None,
    }
    for kind, is_so in certain.items():
        if is_so:
            return kind
    if expected in ("pdf", "rtf") or expected in _ZIPPED:
        raise TextError(
            f"the file cannot be read as {expected}, although it is named like that; check that it is complete"
        )
    if expected is not None:
        return expected
    if _HTML.match(start):
        return "html"
    return "eml" if _MAIL.match(start) else "txt"
