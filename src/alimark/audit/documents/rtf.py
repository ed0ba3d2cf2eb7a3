"""Reads Rich Text Format through striprtf, which leaves out footnotes and text boxes; they are read by themselves."""

import re
from collections.abc import Iterator

from alimark.audit.documents.blocks import join_blocks, row_blocks, tidy

# A control word with its number, an escaped character, or a brace.
_TOKEN = re.compile(r"\\([a-z]{1,32})(-?\d{1,10})?[ ]?|\\[^a-z]|[{}]", re.I)
_APART = frozenset(("footnote", "shptxt"))
_CUT = _APART | {"deleted", "fldinst"}
_FONTS = re.compile(r"\{[^{}]*\\fonttbl(?:[^{}]|\{[^{}]*\})*\}")
_CODE_PAGE = re.compile(r"\\ansicpg\d{1,5}")


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of an RTF file, its footnotes and text boxes at the end, and notes about what was left out."""
    source = data.decode("latin-1")
    parts, apart, deleted = _cut(source)
    fonts, code_page = _FONTS.search(source), _CODE_PAGE.search(source)
    head = rf"{{\rtf1\ansi{code_page[0] if code_page else ''} {fonts[0] if fonts else ''}"
    blocks = list(_blocks(parts))
    while apart:
        parts, inner, count = _cut(apart.pop(0))
        apart[:0] = inner
        deleted += count
        blocks += _blocks(f"{head}{parts}}}")
    return join_blocks(blocks), [f"tracked deletions left out: {deleted}"] if deleted else []


def _cut(source: str) -> tuple[str, list[str], int]:
    """RTF without its footnotes, text boxes, deletions and fields' definitions; the first two; the number of deletions."""
    parts: list[str] = []
    apart: list[str] = []
    deleted = position = copied = 0
    groups: list[tuple[int, str, int]] = []  # where each open group begins, what it is, and where its content begins
    depth_of_cut: int | None = None
    while token := _TOKEN.search(source, position):
        position = token.end()
        word = token[1]
        if token[0] == "{":
            groups.append((token.start(), "", position))
        elif token[0] == "}":
            start, kind, content = groups.pop() if groups else (0, "", 0)
            if kind and depth_of_cut == len(groups):
                parts.append(source[copied:start])
                apart += [source[content : token.start()]] if kind in _APART else []
                deleted += kind == "deleted"
                copied, depth_of_cut = position, None
        elif word == "bin" and token[2]:
            position += max(0, int(token[2]))
        elif word in ("cell", "nestcell") and depth_of_cut is None:
            parts += [source[copied : token.start()], r"\tab "]
            copied = position
        elif word in _CUT and depth_of_cut is None and len(groups) > 1:
            groups[-1] = (groups[-1][0], word, position)
            depth_of_cut = len(groups) - 1
    parts.append(source[copied:])
    return "".join(parts), apart, deleted


def _blocks(source: str) -> Iterator[str]:
    """The paragraphs and table rows of RTF."""
    from striprtf.striprtf import rtf_to_text

    text = rtf_to_text(source, errors="replace")
    # Letters beyond the first 65,536 are written as two numbers.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for line in text.split("\n"):
        cells = line.strip().split("\t")
        yield from row_blocks([[cell] for cell in cells]) if len(cells) > 1 else [tidy(line)]
