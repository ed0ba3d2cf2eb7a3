"""Reads Markdown: CommonMark with tables, and the footnotes and front matter that other dialects add."""

from __future__ import annotations

import re

from alimark.audit.documents.encodings import decode
from alimark.audit.documents.html import text_of_html

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:[^\n]*\n){0,200}?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_NOTE = re.compile(r"^\[\^[^\]\n]{1,80}\]:[ \t]*", re.M)
_NOTE_LINK = re.compile(r"\[\^[^\]\n]{1,80}\]")
# Pandoc's fences around parts of a document, and its attributes of headings.
_FENCE = re.compile(r"^:{3,}[^\n]*$", re.M)
_HEADING_ATTRIBUTES = re.compile(r"^(#{1,6} [^\n]*?)[ \t]*\{[^{}\n]*\}[ \t]*$", re.M)


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of a Markdown file without its marks, and notes about its encoding."""
    text, notes = decode(data)
    return text_of_markdown(text), notes


def text_of_markdown(text: str) -> str:
    """Returns the text of Markdown without its marks.

    Example:
        >>> text_of_markdown("# Bay\\n\\nThe *keeper* slept[^1].\\n\\n[^1]: At home.")
        'Bay\\n\\nThe keeper slept.\\n\\nAt home.'
    """
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    for pattern, replacement in ((_NOTE, "\n"), (_NOTE_LINK, ""), (_FENCE, "\n"), (_HEADING_ATTRIBUTES, r"\1")):
        text = pattern.sub(replacement, text)
    return text_of_html(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
