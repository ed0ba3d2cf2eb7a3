"""Removal of markup: HTML, entities, Markdown, fences around prose, bullets, numbering, speakers, time stamps, citations.

Every function takes a text and a counter, returns the changed text and adds the number of changes under the name of their
kind (`alimark.core.frozen.text.normalising.KINDS`). All of them take time linear in the text: no pattern scans again what
another match attempt has scanned, except for a bounded number of characters.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from urllib.parse import unquote

from alimark.core.frozen.text.prose import blocks, kind_of_line, reads_as_prose

# HTML

_ENTITY = re.compile(r"&(?:amp;)*((?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});)")
_ESCAPE = re.compile(r"\\u(?:\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{4}))")
_QUOTED_PRINTABLE = re.compile(r"(?:=[0-9A-F]{2})+")
_PERCENT = re.compile(r"(?<!\S)[^\s%/:]{0,60}%[0-9a-fA-F]{2}\S*")
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
    rf"<{{1,3}}/?({'|'.join((_INLINE + ' ' + _BLOCKS).split())})(?=[\s/>])[^<>]{{0,2000}}>{{1,3}}", re.IGNORECASE
)
_INLINE_TAGS = frozenset(_INLINE.split())
_HIDDEN = ("script", "style", "template", "noscript")

# Markdown and LaTeX

_MARKDOWN_SIGNS = (*"*_~=|`[\\#", "'''", "--", "- -", "-\t-")
"""Each pattern below needs one of these."""
_IMAGE = re.compile(r"!\[[^\[\]\n]*\]\([^()\n]*\)")
_LINK = re.compile(r"\[([^\[\]\n]+)\]\([^()\s]*(?:[ \t]+\"[^\"\n]*\")?\)")
_EMPHASIS = tuple(
    re.compile(rf"(?<![\w{sign[-1]}]){sign}(?=[^\s{sign[-1]}])([^{sign[-1]}\n]+)(?<=\S){sign}(?![\w{sign[-1]}])")
    for sign in (r"\*\*\*", r"\*\*", r"\*", "___", "__", "_", "~~", "==", r"\|\|", "``", "`")
)
_INSIDE_WORDS = (
    re.compile(r"\[/?(?:b|i|u|s|url|quote|color|size|font|center|left|right|code|list)(?:=[^\]\n]{0,80})?\]()"),
    re.compile(r"\[\[(?:[^\[\]|\n]{0,80}\|)?([^\[\]|\n]{1,80})\]\]"),
    re.compile(r"\*\*([A-Za-z]{1,30})\*\*"),
    re.compile(r"\'\'\'([^\'\n]{1,80})\'\'\'"),
)
"""BBCode, links and bold letters of a wiki, and bold letters of Markdown inside a word."""
_STRUCK_OUT = re.compile(r"~~(?=\S)[^~\n]{1,200}~~[ \t]?")
_BACKSLASH = re.compile(r"\\([*_`#+.!>~|{}&%-])")
_LATEX = re.compile(
    r"\\(?:textbf|textit|texttt|textsc|textrm|textsf|emph|underline|text|sout|section|subsection|paragraph)\*?\{([^{}\n]*)\}"
)
_RULE = re.compile(r"^[ \t]{0,3}([-*_=])(?:[ \t]?\1){2,}[ \t]*$", re.MULTILINE)
_HEADING_END = re.compile(r"(?<=[\w.!?])[ \t]+#{1,6}[ \t]*$", re.MULTILINE)
_LONE_FENCE = re.compile(r"^[ \t]{0,3}(?:`{3,}|~{3,})[ \t]*\w{0,20}[ \t]*$\n?", re.MULTILINE)
_QUOTE_MARK = re.compile(r"^(?:[ \t]{0,3}[>|│┃])+[ \t]?(?=\S|$)", re.MULTILINE)

# What stands at the start of a line

_BULLET = re.compile(
    r"^[ \t]*(?:[◦○●■□▪▫◆◇▶►▸➤➔→⇒✓✔✗★☆❖⁃∙·»¤§]+|\+|--+|—|[-*•‣–]\[[ xX]\]|[-*] \[[ xX]\])[ \t]+(?=\S)", re.MULTILINE
)
_NUMBERED = re.compile(
    r"^[ \t]*(?:\(\d{1,3}\)|\[\d{1,3}\]|\d{1,3}(?:\.\d{1,2}){1,3}\.?(?=[ \t]+[\"“]?[A-Z])"
    r"|\d{1,3}[:\]]|\(?[a-zA-Z]\)|\(?[ivxlIVXL]{1,5}\)"
    r"|[IVXL]{1,5}\.|(?:[Ss]tep|[Ll]ine|[Pp]art|[Ss]entence|[Pp]oint|[Nn]o\.?|#)[ ]?\d{1,3}[.:)]"
    r"|\d{1,4}[ \t]*\|)[ \t]+(?=\S)",
    re.MULTILINE,
)
_LINE_NUMBER = re.compile(r"^[ \t]*\d{1,4}(?:\t|[ ]{1,4})(?=\S)", re.MULTILINE)
_NUMBER_INSIDE = re.compile(r"(?<=[.!?\"')\]])([ \t]+)(?:\(\d{1,3}\)|\[\d{1,3}\]|\d{1,3}\))[ \t]+(?=[\"'“‘(]?[A-Z])")
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d{1,3})?"
_CUE = re.compile(
    rf"(?:\A|\n{{1,2}})(?:[ \t]*\d{{0,5}}[ \t]*\n)?[ \t]*{_CLOCK}[ \t]*-->[ \t]*{_CLOCK}[^\n]{{0,60}}(?=\n|$)"
)
_DAY = r"(?:\d{4}-\d\d-\d\d[T ,]{1,2})?"
_STAMP = re.compile(
    rf"^[ \t]*(?:[\[(]{_DAY}{_CLOCK}(?:Z|[ ]?[AaPp]\.?[Mm]\.?)?[\])][ \t]*|[\[(]\d{{4}}-\d\d-\d\d[\])][ \t]*"
    rf"|{_DAY}{_CLOCK}(?:Z|[ ]?[AaPp]\.?[Mm]\.?)?[ \t]+)(?:[-–—|:][ \t]+)?(?=[^\s\d])",
    re.MULTILINE,
)
_STAMP_INSIDE = re.compile(rf"[\[(]{_CLOCK}[\])][ \t]?")
_SPEAKER = re.compile(
    r"^[ \t]*(?:[<\[][A-Z][\w .'-]{0,30}[>\]]:?|[A-Z][\w.'-]{0,20}(?: [A-Z0-9][\w.'-]{0,20}){0,2}"
    r"(?: ?\([\w ,:]{1,30}\))?:)[ \t]+(?=\S)",
    re.MULTILINE,
)

# Citations

_CITATION = re.compile(
    r"[ \t]?\^?\[(?:\^?\d{1,3}(?:[ ]?[,;–-][ ]?\^?\d{1,3}){0,9}|\^[\w-]{1,20}|(?:citation|clarification) needed|note \d{1,3}"
    r"|@[\w:; @-]{1,60}|edit)\]"
    r"|[ \t]?\\(?:cite[pt]?|footnote(?:mark)?|ref|label)\*?(?:\[[^\[\]\n]{0,60}\])?\{[^{}\n]{0,200}\}"
    r"|[ \t]?\{\{[^{}\n]{0,200}\}\}"
    r"|(?:(?<=[a-z]{3})|(?<=[.!?,;\"'”’)]))[¹²³⁰⁴-⁹]{1,3}(?=\s|$)"
)
_AUTHOR = (
    r"[A-Z][\w'’-]{1,30}(?:[ ](?:et al\.?|and|&)(?:[ ][A-Z][\w'’-]{1,30})?)?,?[ ]\d{4}[a-z]?(?:, ?p{1,2}\.[ ]?\d{1,4})?"
)
_AUTHOR_YEAR = re.compile(rf"[ \t]?\((?:see |cf\. |e\.g\.,? )?{_AUTHOR}(?:; ?{_AUTHOR}){{0,6}}\)")


def read_entities(text: str, counts: Counter[str]) -> str:
    """Decodes HTML entities, Unicode escapes, quoted-printable, and percent signs as in an address."""
    if text.count("=") >= 3 and len(_QUOTED_PRINTABLE.findall(text)) >= 3:
        text, codes = _QUOTED_PRINTABLE.subn(_printable, text.replace("=\n", ""))
        counts["entity"] += codes
    if "&" in text:
        text, entities = _ENTITY.subn(_unescaped, text)
        counts["entity"] += entities
    if "\\u" in text:
        text, escapes = _ESCAPE.subn(_character, text)
        counts["entity"] += escapes
    if text.count("%20") >= 3 and text.count("%20") > text.count(" "):
        text, words = _PERCENT.subn(lambda match: unquote(match[0]), text)
        counts["entity"] += words
    return text


def _printable(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("=", "")).decode("utf-8", "replace")


def _unescaped(match: re.Match[str]) -> str:
    # An ampersand that was escaped several times is decoded at once.
    return html.unescape("&" + match[1])


def _character(match: re.Match[str]) -> str:
    code = int(match[1] or match[2], 16)
    return match[0] if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code)


def drop_tags(text: str, counts: Counter[str]) -> str:
    """Removes HTML tags and comments, and what a browser does not show; the ends of blocks become blank lines."""
    if "<" not in text:
        return text
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), *((f"<{name}", f"</{name}>") for name in _HIDDEN)):
        text = _without(text, opening, closing, counts)
    text, tags = _TAG.subn(_tag_as_text, text)
    if tags:
        text = re.sub(r"<!DOCTYPE[^<>]{0,200}>", "", text, flags=re.IGNORECASE)
        counts["tag"] += tags
    return text


def _without(text: str, opening: str, closing: str, counts: Counter[str]) -> str:
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
    name = match[1].lower()
    if name in _INLINE_TAGS:
        return ""
    return "\n" if name == "br" else " " if name in ("td", "th", "img", "input") else "\n\n"


def drop_fences(text: str, counts: Counter[str]) -> str:
    """Removes fences around prose, fences without an end, and the frames of tables whose cells hold prose."""
    if not any(sign in text for sign in ("```", "~~~", "|", "$$", "\\[", "\\begin{")):
        return text
    parts = []
    for block in blocks(text):
        part = text[block.start : block.end]
        if block.kind == "code":
            parts.append(_unfenced(part, counts))
        elif block.kind == "prose":
            parts.append(_unframed(part, counts))
        else:
            parts.append(part)
    return "".join(parts)


def _unfenced(part: str, counts: Counter[str]) -> str:
    content = _LONE_FENCE.sub("", part)
    if not reads_as_prose(content):
        return part
    counts["fence"] += 1
    return "\n" + content + "\n"


def _unframed(part: str, counts: Counter[str]) -> str:
    part, fences = _LONE_FENCE.subn("", part)
    part, openers = re.subn(
        r"^[ \t]*(?:\$\$|\\\[|\\\]|\\(?:begin|end)\{\w{1,20}\*?\})[ \t]*|\$\$[ \t]*$", "", part, flags=re.MULTILINE
    )
    counts["fence"] += fences + openers
    if "|" not in part:
        return part
    lines = part.split("\n")
    for number, line in enumerate(lines):
        body = line.strip()
        if len(body) > 2 and (body[0] == body[-1] == "|" or body.count(" | ") >= 2) and kind_of_line(line) == "prose":
            counts["table"] += 1
            cells = (cell.strip() for cell in body.strip("|").split("|"))
            lines[number] = "\n".join(cell for cell in cells if any(map(str.isalpha, cell)))
    return "\n".join(lines)


def drop_markdown(text: str, counts: Counter[str]) -> str:
    """Removes emphasis, links, images, rules and escapes of Markdown, and the same of LaTeX."""
    if any(sign in text for sign in _MARKDOWN_SIGNS):
        for pattern in (_IMAGE, _RULE, _HEADING_END):
            text, changes = pattern.subn("", text)
            counts["markdown"] += changes
        struck_out = sum(len(match[0].split()) for match in _STRUCK_OUT.finditer(text)) if "~~" in text else 0
        if (
            0 < 2 * struck_out < len(text.split())
        ):  # where most of a text is struck out, that is a disguise, and it is kept
            text, changes = _STRUCK_OUT.subn("", text)
            counts["markdown"] += changes
        for pattern in (*_INSIDE_WORDS, _LINK, _LATEX, *_EMPHASIS, _BACKSLASH):
            text, changes = pattern.subn(r"\1", text)
            counts["markdown"] += changes
    return text


def drop_quote_marks(text: str, counts: Counter[str]) -> str:
    """Removes the ">" before every line where most lines have one, as in an answer to an e-mail."""
    if not any(sign in text for sign in ">|│┃"):
        return text
    lines = [line for line in text.split("\n") if line.strip()]
    if 2 * sum(1 for line in lines if _QUOTE_MARK.match(line) and not _framed(line)) <= len(lines):
        return text
    text, marks = _QUOTE_MARK.subn("", text)
    counts["quotation mark"] += marks
    return text


def _framed(line: str) -> bool:
    return line.lstrip().startswith("|") and line.rstrip().endswith("|")


def read_line_starts(text: str, counts: Counter[str]) -> str:
    """Removes time stamps and speakers, and writes bullets and numbers of all kinds as "- ", which the splitter knows."""
    if "-->" in text:
        text, cues = _CUE.subn("", text)
        counts["time stamp"] += cues
    for pattern in (_STAMP, _STAMP_INSIDE) if ":" in text else ():
        text, stamps = pattern.subn("", text)
        counts["time stamp"] += stamps
    text = _without_speakers(text, counts)
    text, bullets = _BULLET.subn("- ", text)
    counts["bullet"] += bullets
    text, numbers = _NUMBERED.subn("- ", text)
    text, inside = _NUMBER_INSIDE.subn(r"\1", text)
    counts["number"] += numbers + inside
    if "\n" in text and 2 * len(_LINE_NUMBER.findall(text)) > text.count("\n") + 1 > 2:
        text, numbers = _LINE_NUMBER.subn("", text)
        counts["number"] += numbers
    return text


def _without_speakers(text: str, counts: Counter[str]) -> str:
    """Removes the names before lines where at least half of the lines begin with one, and some name comes again."""
    speakers = [match[0] for match in _SPEAKER.finditer(text)]
    lines = sum(1 for line in text.split("\n") if line.strip()) if len(speakers) > 2 else 0
    if len(speakers) < 3 or 2 * len(speakers) < lines or len(set(speakers)) == len(speakers):
        return text
    counts["speaker"] += len(speakers)
    return _SPEAKER.sub("", text)


def drop_citations(text: str, counts: Counter[str]) -> str:
    """Removes references such as [3], (Smith et al., 2020), raised numbers and LaTeX's \\cite."""
    if any(sign in text for sign in "[\\{") or not text.isascii():
        text, citations = _CITATION.subn("", text)
        counts["citation"] += citations
    if "(" in text:
        text, citations = _AUTHOR_YEAR.subn("", text)
        counts["citation"] += citations
    return text
