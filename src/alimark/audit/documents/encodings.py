"""Decodes text whose encoding is marked, declared or unknown."""

import codecs
import re

from alimark.errors import MissingExtra, TextError

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Browsers read these declared names as the larger encodings (https://encoding.spec.whatwg.org/#names-and-labels).
_WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs",
    # A declaration that can be read as ASCII is not in UTF-16, whatever it says.
    "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8",
}  # fmt: skip
_DECLARED = re.compile(
    rb"""<meta[^>]+?charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]+?encoding\s*=\s*["']([\w.:-]+)""", re.I
)
_SAMPLE = 1 << 17
_REPLACED = "\ufffd"


def decode(data: bytes, declared: str | None = None) -> tuple[str, list[str]]:
    """Decodes text by its byte order mark, as UTF-8, by the declared encoding, or by a guess.

    Args:
        data: The bytes.
        declared: The encoding that a header or the document itself declares, if any.

    Returns:
        The text, and notes about an encoding that had to be guessed.

    Raises:
        TextError: The data is not text.
        MissingExtra: The encoding has to be guessed, and charset-normalizer is not installed.

    Example:
        >>> decode("Füße".encode("cp1252"), declared="iso-8859-1")
        ('Füße', [])
    """
    known = known_encoding(declared)
    certain = next((encoding for mark, encoding in _BOMS if data.startswith(mark)), None)
    if certain is None and known is not None and known.startswith(("utf-7", "iso2022", "hz")):  # these look like ASCII
        certain = known
    if certain is not None:
        if _is_damaged(text := data.decode(certain, "replace")):
            raise TextError("the file is not text, or it is damaged; check that it is complete")
        return text, []
    if byte_order := _utf_16(data):
        return data.decode(byte_order, "replace"), ["the encoding is not declared; the text was read as UTF-16"]
    try:
        # Hardly any other encoding gives valid UTF-8 by chance, and many declarations are wrong.
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        pass
    if known not in (None, "utf-8") and (text := data.decode(known or "", "replace")) and not _is_damaged(text):
        return text, []
    text = data.decode("utf-8", "replace")
    if 10 * text.count(_REPLACED) <= sum(not sign.isascii() for sign in text):  # most letters beyond ASCII are right
        return text, [f"{text.count(_REPLACED)} places that are not UTF-8 were replaced"]
    return _guess(data)


def _is_damaged(text: str) -> bool:
    return text.count(_REPLACED) > len(text) // 100


def declared_in_html(data: bytes) -> str | None:
    """Returns the encoding that a web page or XML file declares in its first bytes; None where it declares none."""
    match = _DECLARED.search(data[:4096])
    return None if match is None else (match[1] or match[2]).decode("ascii", "replace")


def known_encoding(name: str | None) -> str | None:
    """Returns Python's name of a declared encoding, as browsers understand it; None for an unknown name."""
    if not name:
        return None
    try:
        info = codecs.lookup(name)
        b"".decode(info.name)  # refuses codecs that are not between bytes and text
    except (LookupError, ValueError):
        return None
    return _WIDER.get(info.name, info.name)


def _utf_16(data: bytes) -> str | None:
    """The byte order of UTF-16 without a mark: nearly every other byte of a Western text is zero."""
    start = data[:4000]
    if len(start) < 20 or b"\0" not in start:
        return None
    for encoding, zeros, others in (("utf-16-le", start[1::2], start[::2]), ("utf-16-be", start[::2], start[1::2])):
        if zeros.count(0) > 0.7 * len(zeros) and others.count(0) < 0.05 * len(others):
            return encoding
    return None


def _guess(data: bytes) -> tuple[str, list[str]]:
    if b"\0" in data[: 1 << 16]:
        raise TextError("the file is not text, and not a document of a known kind")
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise MissingExtra("charset-normalizer", "documents") from None
    best = from_bytes(data[:_SAMPLE]).best()
    if best is None:
        raise TextError("the file is not text in any known encoding; save it as UTF-8")
    text = data.decode(best.encoding, "replace")
    return text, [f"the text is not UTF-8 and declares no encoding; it was read as {best.encoding}, which is a guess"]
