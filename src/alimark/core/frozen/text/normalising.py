"""Normalisation: takes the layout of a text away, as Markdown, HTML, quotations and lists add it to prose.

Frozen: generation chooses only sentences that are read again in the same way, and detection reads every text so. Rules for
disguises do not belong here, since they may get better with every release (`alimark.core.text.disguises`).
All of it takes time linear in the text: no pattern scans again what another match attempt has scanned, except for a bounded
number of characters.
"""

import html
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

from alimark.core.frozen.text.prose import Part, prose_parts

# Characters

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028]|\u2029")
_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    # Joiners and variation selectors belong to emoji and some scripts; after Latin letters, blanks and ASCII they do nothing.
    "|(?<=[\\s!-~\u00a1-\u024f])[\u200c\u200d\ufe00-\ufe0f]+(?!\u20e3)"
)
_WINDOWS = {
    code: bytes([code]).decode("cp1252")
    for code in range(0x80, 0xA0)
    if code not in (0x81, 0x85, 0x8D, 0x8F, 0x90, 0x9D)
}
"""Quotation marks and dashes of Windows that were decoded as Latin-1."""
_TRAILING = re.compile(r"(?<![ \t])[ \t]+(?=\n|\Z)")
_BLANK_LINES = re.compile(r"\n{3,}")
_BLANKS_INSIDE = re.compile(r"(?<=\S)[ \t]{2,}(?=\S)")

# Markup

_QUOTE_MARK = re.compile(r"^(?:[ \t]{0,3}>)+[ \t]?", re.MULTILINE)
_ENTITY = re.compile(r"&(?:amp;)*((?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});)")
_INLINE = (
    "a abbr acronym b bdi bdo big cite code del dfn em figcaption font i ins kbd label mark q s samp small span strike strong "
    "sub sup time tt u var wbr"
)
_BLOCKS = (
    "address article aside blockquote body button caption center dd details div dl dt fieldset figure footer form h1 h2 h3 "
    "h4 h5 h6 header hgroup hr html iframe img input legend li link main meta nav ol option p picture pre section select "
    "source summary svg table tbody td tfoot th thead title tr ul video br"
)
_TAG = re.compile(
    rf"<!DOCTYPE[^<>]{{0,200}}>|<{{1,3}}/?({'|'.join((_INLINE + ' ' + _BLOCKS).split())})(?=[\s/>])[^<>]{{0,2000}}>{{1,3}}",
    re.IGNORECASE,
)
_INLINE_TAGS = frozenset(_INLINE.split())
_HIDDEN = ("script", "style", "template", "noscript")
_MARKDOWN_SIGNS = tuple("*_=`[\\#-")
"""Each pattern of Markdown needs one of these."""
_REMOVED = (
    re.compile(r"!\[[^\[\]\n]*\]\([^()\n]*\)"),
    re.compile(r"^[ \t]{0,3}([-*_=])(?:[ \t]?\1){2,}[ \t]*$", re.MULTILINE),
    re.compile(r"(?<=[\w.!?])[ \t]+#{1,6}[ \t]*$", re.MULTILINE),
)
"""Images, rules and the signs at the ends of headings."""
_UNWRAPPED = (
    re.compile(r"\[([^\[\]\n]+)\]\([^()\s]*(?:[ \t]+\"[^\"\n]*\")?\)"),
    *(
        re.compile(rf"(?<![\w{sign[-1]}]){sign}(?=[^\s{sign[-1]}])([^{sign[-1]}\n]+)(?<=\S){sign}(?![\w{sign[-1]}])")
        for sign in (r"\*\*\*", r"\*\*", r"\*", "___", "__", "_", "==", "``", "`")
    ),
    re.compile(r"\\([*_`#+.!>~|{}&%-])"),
)
"""Links, emphasis and escapes, of which the content stays."""
_ITEM = re.compile(
    r"^[ \t]*(?:[◦○●■□▪▫◆◇▶►▸➤➔→⇒✓✔✗★☆❖⁃∙·»]+|[-*•‣–] ?\[[ xX]\]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})\)|\+"
    r"|(?:[Ss]tep|[Pp]art) \d{1,3}[.:])[ \t]+(?=\S)",
    re.MULTILINE,
)
_SPECIAL = re.compile(r"[^\w .,;:?!'\"()%$“”‘’—–…-]|[^\x00-\u02ff“”‘’—–…]|_|  |--|- -|\s\Z")


@dataclass(frozen=True)
class Normalised:
    """A text after normalisation, and how many changes of each kind were made."""

    text: str
    changes: dict[str, int] = field(default_factory=dict)


def normalise(text: str) -> Normalised:
    """Reads the prose of a text without its layout, and leaves out what is not prose.

    Args:
        text: Any text.

    Returns:
        The text as it is read, and the number of changes of each kind (`alimark.core.text.disguises.KINDS`). White space is
        not counted as a change.

    Example:
        >>> normalise("> The *lamp* went <b>out</b>.").text
        'The lamp went out.'
        >>> normalise("The lamp went out. Nobody saw it.").changes
        {}
    """
    if not _SPECIAL.search(text) and not _ITEM.match(text):
        return Normalised(text)
    counts: Counter[str] = Counter()
    text = visible(text, counts)
    parts = [_without_markup(part, text[part.start : part.end], counts) for part in prose_parts(text)]
    text = _BLANK_LINES.sub("\n\n", _TRAILING.sub("", _BLANKS_INSIDE.sub(" ", "\n\n".join(parts))))
    return Normalised(text, {kind: count for kind, count in counts.items() if count})


def visible(text: str, counts: Counter[str]) -> str:
    """The text with one kind of line end and of blank, and without characters that are not shown."""
    text = _LINE_END.sub(lambda match: "\n\n" if match[0] == "\u2029" else "\n", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", _BLANK.sub(" ", text.translate(_WINDOWS)))
    text, counts["invisible"] = _INVISIBLE.subn("", text)
    return text


def _without_markup(part: Part, text: str, counts: Counter[str]) -> str:
    """The words of a part of a text that is prose."""
    if part.kind == "quotation":
        text, signs = _QUOTE_MARK.subn("", text)
        counts["quotation mark"] += signs
    elif part.kind != "prose":
        text = text.strip()
        counts["fence" if part.kind == "fenced" else "table"] += 1
    if "<" in text:
        text = _without_tags(text, counts)
    if "&" in text:  # an ampersand that was escaped several times is decoded at once
        text, entities = _ENTITY.subn(lambda match: html.unescape("&" + match[1]), text)
        counts["entity"] += entities
    if any(sign in text for sign in _MARKDOWN_SIGNS):
        for pattern in (*_REMOVED, *_UNWRAPPED):
            text, signs = pattern.subn("" if pattern in _REMOVED else r"\1", text)
            counts["markdown"] += signs
    text, items = _ITEM.subn("- ", text)
    counts["bullet"] += items
    return text


def _without_tags(text: str, counts: Counter[str]) -> str:
    """Removes HTML tags and comments, and what a browser does not show; the ends of blocks become blank lines."""
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), *((f"<{name}", f"</{name}>") for name in _HIDDEN)):
        text = _without_passages(text, opening, closing, counts)
    text, tags = _TAG.subn(_tag_as_text, text)
    counts["tag"] += tags
    return text


def _without_passages(text: str, opening: str, closing: str, counts: Counter[str]) -> str:
    """The text without the passages between two strings; a passage that does not end stays."""
    lower = text.lower()
    if len(lower) != len(text) or opening.lower() not in lower:
        return text
    kept, at = [], 0
    while (start := lower.find(opening.lower(), at)) >= 0 and (end := lower.find(closing, start + len(opening))) >= 0:
        kept.append(text[at:start])
        at = end + len(closing)
        counts["tag"] += 1
    return "".join([*kept, text[at:]])


def _tag_as_text(match: re.Match[str]) -> str:
    name = (match[1] or "").lower()
    if name in _INLINE_TAGS or not name:
        return ""
    return "\n" if name == "br" else " " if name in ("td", "th", "img", "input") else "\n\n"
