"""Reads Markdown and web pages: the article apart from menus, headers, footers and advertisements, and tables row by row.

The page is parsed by lexbor (selectolax) as browsers parse it, so that missing or wrong tags lose no text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from alimark.audit.documents.blocks import is_layout, join_blocks, tidy
from alimark.audit.documents.encodings import declared_in_html, decode
from alimark.errors import TextError

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer form "
    "h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section summary table tbody tfoot thead "
    "td th tr ul".split()
)
_NEVER_SHOWN = frozenset(
    "head script style template noscript title svg canvas audio video object iframe embed select datalist button input del rp "
    "rt map area progress meter".split()
)
_BOILERPLATE_TAGS = frozenset(("nav", "aside", "footer", "menu", "dialog"))
_BOILERPLATE_ROLES = frozenset(
    "navigation banner contentinfo complementary search dialog alertdialog menu menubar toolbar".split()
)
_BOILERPLATE_WORDS = frozenset(
    "nav navbar navigation menu sidebar footer breadcrumb breadcrumbs cookie cookies consent gdpr ad ads advert advertisement "
    "promo sponsored share sharing social related recommended newsletter subscribe masthead pagination pager toolbar popup "
    "modal".split()
)
_ARTICLE_TAGS = frozenset(("main", "article"))
_VERBATIM = frozenset(("pre", "textarea"))
# Links from the text to a note and back: numbers that interrupt the sentence.
_NOTE_LINKS = frozenset(
    "footnote-ref footnoteref noteref footnote-back footnote-backref reversefootnote sdfootnoteanc sdfootnotesym sdendnoteanc "
    "sdendnotesym mw-editsection".split()
)
_NOTE_ROLES = frozenset(("doc-noteref", "doc-backlink"))
_NUMBER = re.compile(r"\[?\s*(?:\d{1,4}|[*†‡§]{1,3}|[a-z])\s*\]?")
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_SPACES = re.compile(r"[ \t\r\n\f]+")
_WORDS = re.compile(r"[A-Za-z][a-z]*|[A-Z]+")
_SENTENCE_END = (".", "!", "?", "…", "。", "”", '"', "’", ":", ";")


_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_END_THEMSELVES = frozenset(
    "area base br caption col colgroup dd dt embed hr img input li link meta option p param source tbody td tfoot th thead tr "
    "track wbr".split()
)
_MOST_NESTED = 6_000
"""Elements within each other; browsers show some hundreds. The time of parsing is quadratic in their number."""


@dataclass
class _Block:
    """A paragraph, heading or row of a table, and where on the page it stands."""

    text: str
    linked: int  # characters that are links
    boilerplate: bool
    article: bool


@dataclass
class _PageBlocks:
    """Collects the blocks of a page while its elements are walked through."""

    blocks: list[_Block] = field(default_factory=list)
    places: list[tuple[bool, bool]] = field(default_factory=lambda: [(False, False)])
    """For the elements around the current place: whether it is boilerplate, and whether it is part of an article."""
    links: int = 0
    verbatim: int = 0
    rows: list[list[list[_Block]]] = field(default_factory=list)
    """The cells of the table rows around the current place, innermost last."""
    outer: list[list[_Block]] = field(default_factory=list)
    """The blocks in front of the table cells around the current place, which are kept apart until the cells end."""
    parts: list[str] = field(default_factory=list)  # the text of the current paragraph so far
    _linked: int = 0

    def add(self, text: str) -> None:
        """Adds the text of a text node."""
        self.parts.append(text if self.verbatim else _SPACES.sub(" ", text))
        self._linked += len(text.strip()) if self.links else 0

    def end_block(self) -> None:
        """Ends the current paragraph."""
        text = tidy("".join(self.parts))
        if text:
            self.blocks.append(_Block(text, self._linked, *self.places[-1]))
        self.parts, self._linked = [], 0

    def end_cell(self) -> None:
        """Ends a cell of a table."""
        cell, self.blocks = self.blocks, self.outer.pop()
        if self.rows:
            self.rows[-1].append(cell)
        else:  # a cell outside of any row
            self.blocks += cell

    def end_row(self) -> None:
        """Ends a row of a table."""
        cells = self.rows.pop()
        blocks = [block for cell in cells for block in cell]
        if is_layout([[block.text for block in cell] for cell in cells]):
            self.blocks += blocks
        elif blocks:
            line = "\t".join(" ".join(block.text for block in cell) for cell in cells)
            self.blocks.append(_Block(line, sum(block.linked for block in blocks), *self.places[-1]))


def read(data: bytes) -> tuple[str, list[str]]:
    """Returns the article of a web page, and notes about what was left out."""
    text, notes = decode(data, declared_in_html(data))
    blocks = _blocks(text)
    kept = _without_menus(_article(blocks))
    left_out = sum(len(block.text) for block in blocks) - sum(len(block.text) for block in kept)
    if left_out:
        notes.append(
            f"{left_out:,} characters of menus, headers, footers and other parts around the article were left out"
        )
    return join_blocks(block.text for block in kept), notes


def text_of_html(text: str) -> str:
    """Returns all visible text of a page or of a part of one."""
    return join_blocks(block.text for block in _blocks(text))


def _article(blocks: list[_Block]) -> list[_Block]:
    """The blocks that are not boilerplate; only those of the article where it is most of the page."""
    content = [block for block in blocks if not block.boilerplate]
    if _size(content) < 0.25 * _size(blocks):  # the page uses these elements and names for something else
        content = blocks
    article = [block for block in content if block.article]
    return article if _size(article) >= 0.5 * _size(content) else content


def _without_menus(blocks: list[_Block]) -> list[_Block]:
    """Leaves out three or more short links in a row: menus without an element that says so."""
    kept: list[_Block] = []
    run: list[_Block] = []
    for block in [*blocks, _Block("", 0, False, False)]:
        if block.text and block.linked > 0.8 * len(block.text) and not block.text.endswith(_SENTENCE_END):
            run.append(block)
            continue
        kept += run if len(run) < 3 else []
        kept.append(block)
        run = []
    kept.pop()
    return kept if _size(kept) >= 0.25 * _size(blocks) else blocks


def _size(blocks: list[_Block]) -> int:
    return sum(len(block.text) for block in blocks)


def _blocks(text: str) -> list[_Block]:
    from selectolax.lexbor import LexborHTMLParser

    _check_depth(text)
    root = LexborHTMLParser(text).body
    page = _PageBlocks()
    if root is None:
        return []
    for node, entering in _walk(root):
        tag = node.tag or ""
        if tag == "-text":
            if entering:
                page.add(node.text_content or "")
        elif entering:
            _enter(page, node, tag)
        else:
            _leave(page, tag)
    page.end_block()
    return page.blocks


def _check_depth(text: str) -> None:
    """Raises TextError where elements are nested so deeply that the page would take long to parse."""
    unended: Counter[str] = Counter()
    depth = 0
    for end, name in _TAG.findall(text):
        tag = name.lower()
        if not end and tag not in _END_THEMSELVES:
            unended[tag] += 1
            depth += 1
        elif end and unended[tag]:
            unended[tag] -= 1
            depth -= 1
        if depth > _MOST_NESTED:
            raise TextError(
                f"the page has more than {_MOST_NESTED:,} elements within each other; copy its text to a .txt file"
            )


def _walk(root: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Yields every visible node when it begins (True) and ends (False). A page may be nested deeper than Python's stack."""
    node: LexborNode | None = root
    path: list[LexborNode] = []
    while node is not None:
        if _is_shown(node):
            yield node, True
            if node.child is not None:
                path.append(node)
                node = node.child
                continue
            yield node, False
        while node.next is None or not path:
            if not path:
                return
            node = path.pop()
            yield node, False
        node = node.next


def _is_shown(node: LexborNode) -> bool:
    tag = node.tag or ""
    if tag == "-text":
        return True
    if tag.startswith(("-", "!")) or tag in _NEVER_SHOWN:
        return False
    attributes = node.attributes
    is_hidden = (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or _HIDDEN_STYLE.search(attributes.get("style") or "")
        or (tag == "dialog" and "open" not in attributes)
    )
    return not is_hidden and not _is_note_link(node, tag)


def _is_note_link(node: LexborNode, tag: str) -> bool:
    """Whether an element is nothing but a link to a note or back."""
    attributes = node.attributes
    if not _NOTE_LINKS.isdisjoint((attributes.get("class") or "").lower().split()):
        return True
    if attributes.get("role") in _NOTE_ROLES or attributes.get("epub:type") in ("noteref", "pagebreak"):
        return True
    if tag != "sup" or "data-footnote-ref" in attributes:
        return "data-footnote-ref" in attributes
    link = node.css_first("a")  # a superscript is nothing but the number of a note on the same page
    target = "" if link is None else link.attributes.get("href") or ""
    return "#" in target and bool(_NUMBER.fullmatch(node.text(strip=True)))


def _enter(page: _PageBlocks, node: LexborNode, tag: str) -> None:
    if tag in _BLOCKS:
        page.end_block()
        page.places.append(_place(node, tag, *page.places[-1]))
    if tag == "br":
        page.parts.append("\n")
    elif tag == "a":
        page.links += 1
    elif tag in _VERBATIM:
        page.verbatim += 1
    elif tag == "tr":
        page.rows.append([])
    elif tag in ("td", "th"):
        page.outer.append(page.blocks)
        page.blocks = []


def _leave(page: _PageBlocks, tag: str) -> None:
    if tag in _BLOCKS:
        page.end_block()
        page.places.pop()
    if tag == "a":
        page.links -= 1
    elif tag in _VERBATIM:
        page.verbatim -= 1
    elif tag == "tr":
        page.end_row()
    elif tag in ("td", "th"):
        page.end_cell()


def _place(node: LexborNode, tag: str, boilerplate: bool, article: bool) -> tuple[bool, bool]:
    """Whether an element is boilerplate and part of an article, given what the element around it is."""
    attributes = node.attributes
    role = attributes.get("role") or ""
    if tag in _ARTICLE_TAGS or role in _ARTICLE_TAGS:
        return False, True
    if boilerplate or tag in _BOILERPLATE_TAGS or role in _BOILERPLATE_ROLES:
        return True, article
    if tag == "header":  # that of a page has links; that of a document its title and authors
        return not article and node.css_first("nav, a, form, button") is not None, article
    if tag in ("html", "body"):
        return False, article
    names = f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
    return any(word.lower() in _BOILERPLATE_WORDS for word in _WORDS.findall(names)), article


# Markdown: CommonMark with tables, and the footnotes and front matter that other dialects add

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:[^\n]*\n){0,200}?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_FOOTNOTE = re.compile(r"^\[\^[^\]\n]{1,80}\]:[ \t]*", re.M)
_FOOTNOTE_LINK = re.compile(r"\[\^[^\]\n]{1,80}\]")
# Pandoc's fences around parts of a document, and its attributes of headings.
_FENCE = re.compile(r"^:{3,}[^\n]*$", re.M)
_HEADING_ATTRIBUTES = re.compile(r"^(#{1,6} [^\n]*?)[ \t]*\{[^{}\n]*\}[ \t]*$", re.M)


def read_markdown(data: bytes) -> tuple[str, list[str]]:
    """Returns the text of a Markdown file without its marks, and notes about its encoding.

    Example:
        >>> read_markdown(b"# Bay\\n\\nThe *keeper* slept[^1].\\n\\n[^1]: At home.")
        ('Bay\\n\\nThe keeper slept.\\n\\nAt home.', [])
    """
    from markdown_it import MarkdownIt

    text, notes = decode(data)
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    for pattern, replacement in ((_FOOTNOTE, "\n"), (_FOOTNOTE_LINK, ""), (_FENCE, "\n"), (_HEADING_ATTRIBUTES, r"\1")):
        text = pattern.sub(replacement, text)
    return text_of_html(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)), notes
