"""Reads e-mail messages and saved web archives (MIME): the body, without headers and attachments."""

import re
from email import message_from_bytes, policy
from email.message import EmailMessage

from alimark.audit.documents import html
from alimark.audit.documents.blocks import join_blocks
from alimark.audit.documents.encodings import declared_in_html, decode

_MOST_PARTS = 1000
_QUOTE = re.compile(r"^(?:>[ ]?)+", re.M)
_SIGNATURE = "-- "


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of a message, and notes about its attachments, which are not read."""
    notes: list[str] = []
    texts: list[str] = []
    waiting: list[EmailMessage] = [message_from_bytes(data, policy=policy.default)]
    for _ in range(_MOST_PARTS):
        if not waiting:
            break
        part = waiting.pop(0)
        kind = part.get_content_type()
        if kind == "multipart/alternative":
            waiting[:0] = _best(_children(part))
        elif part.is_multipart():
            waiting[:0] = _children(part)
        elif part.is_attachment() or part.get_content_maintype() != "text":
            if name := part.get_filename():
                notes.append(f"the attachment {name} was not read; save it, and read it by itself")
        else:
            texts.append(_text(part, notes))
    return join_blocks(texts), notes


def _children(part: EmailMessage) -> list[EmailMessage]:
    content = part.get_payload()
    return [child for child in content if isinstance(child, EmailMessage)] if isinstance(content, list) else []


def _best(versions: list[EmailMessage]) -> list[EmailMessage]:
    """One of several versions of the same text: the plain one, unless it is only a hint to read the other."""
    plain = [part for part in versions if part.get_content_type() == "text/plain"]
    others = [part for part in versions if part.get_content_type() != "text/plain"]
    if plain and (not others or 3 * len(_bytes(plain[0])) >= len(html.text_of_html(_decoded(others[-1], [])))):
        return plain[:1]
    return others[-1:]


def _bytes(part: EmailMessage) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _decoded(part: EmailMessage, notes: list[str]) -> str:
    if part.is_multipart():
        return "".join(_decoded(child, notes) for child in _children(part)[:1])
    content = _bytes(part)
    in_page = declared_in_html(content) if part.get_content_subtype() == "html" else None
    text, encoding_notes = decode(content, part.get_content_charset() or in_page)
    notes += encoding_notes
    return text


def _text(part: EmailMessage, notes: list[str]) -> str:
    text = _decoded(part, notes)
    if part.get_content_subtype() == "html":
        return html.text_of_html(text)
    text = text.replace("\r\n", "\n")
    if part.get_param("format") == "flowed":
        text = _unflowed(text, part.get_param("delsp") == "yes")
    return _QUOTE.sub("", text)


def _unflowed(text: str, delete_space: bool) -> str:
    """Joins the lines that a mail program broke (RFC 3676): all that end with a blank."""
    joined: list[str] = []
    flowing = False
    for line in text.split("\n"):
        content = _QUOTE.sub("", line) if flowing else line
        content = content[1:] if content.startswith(" ") else content
        if flowing:
            joined[-1] += content
        else:
            joined.append(content)
        flowing = content.endswith(" ") and content != _SIGNATURE
        if flowing and delete_space:
            joined[-1] = joined[-1][:-1]
    return "\n".join(joined)
