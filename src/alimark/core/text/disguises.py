"""Reads a disguised text as a person reads it: look-alike letters, letters apart, columns, subtitles, strings of a program.

It is a further reading of the detector, made only where it changes many sentences (`alimark.core.detection.preparing`). Neither
keys nor generation rest on it, so that its rules may get better with every release. Each rule acts where its disguise holds
most of a text, takes a text and a counter, and returns the changed text after it has added the number of changes under the
name of their kind (`KINDS`). All of it takes time linear in the text.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from urllib.parse import unquote

from alimark.core.frozen.text.normalising import Normalised, normalise, visible
from alimark.core.frozen.text.units import CLOSERS, MARKS
from alimark.core.text import disguised_letters as letters
from alimark.core.text.repetition import drop_repeated, read_comments
from alimark.core.text.spelling import mend

KINDS: dict[str, str] = {
    "string": "{} strings of JSON or of a program were read as text",
    "column": "{} texts in two columns were read one column after the other",
    "furniture": "{} page numbers and running heads were removed",
    "footnote": "{} ends of sentences were brought back from footnotes",
    "entity": "{} HTML entities and escapes were decoded",
    "tag": "{} HTML tags were removed",
    "blank": "{} characters were read as blanks",
    "reversed": "{} passages written backwards were turned round",
    "invisible": "{} invisible characters were removed",
    "compatibility": "{} fullwidth, mathematical or similar letters were read as plain ones",
    "confusable": "{} confusable letters were read as Latin",
    "mark": "{} combining marks were removed",
    "digit": "{} words with digits in the place of letters were read as plain ones",
    "filler": "{} fillers between words were removed",
    "stop": "{} other signs were read as full stops",
    "spaced letters": "{} words with letters apart were joined",
    "quotation mark": "{} quotation marks at line starts were removed",
    "fence": "{} passages of prose in fences and formulas were read as text",
    "table": "{} table cells with prose were read as text",
    "time stamp": "{} time stamps were removed",
    "speaker": "{} names of speakers were removed",
    "bullet": "{} bullets were removed",
    "number": "{} numbers of items were removed",
    "citation": "{} citations were removed",
    "markdown": "{} signs of Markdown or LaTeX were removed",
    "hyphen": "{} hyphens at line ends were removed",
    "broken line": "{} blank lines inside sentences were removed",
    "missing blank": "{} blanks after stops and commas were mended",
    "comment": "{} comments were taken out of code",
    "repeated": "{} sentences lost words that others begin or end with, too",
    "spelling": "{} misspelt words were mended",
}
"""The kinds of changes, of normalisation and of this module, each with the sentence that says how many there were."""

_PASSES = 4
"""The most passes. One pass can uncover what the next one changes, such as a tag that was written with entities."""
_LEAST_LINES = 5
"""A frame has at least so many lines."""

# Frames and escapes

_STRING_LINE = re.compile(
    r"^[ \t]*[A-Za-z_][\w.: ]{0,40}(?:\(|\+?=|<<)[ \t]*\"((?:[^\"\\\n]|\\.)*)\"[^\"\n]*$", re.MULTILINE
)
_GAP = re.compile(r"(?<=\S)[ ]{2,}(?=\S)")
_PAGE_NUMBER = re.compile(r"[ \t]*(?:[-–—][ \t]*)?(\d{1,4})(?:[ \t]*[-–—])?[ \t]*")
_NOTE = re.compile(r"^\[\^([\w-]{1,20})\]:[ \t]*(?:…|\.\.\.)[ \t]*(\S[^\n]*)(?:\n|\Z)", re.MULTILINE)
_REFERENCE = re.compile(r"[ \t]?(?:…|\.\.\.)[ \t]?\[\^([\w-]{1,20})\]")
_CHAT_LINE = re.compile(
    r"^[ \t]*(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?[ \t]+)?<([\w.-]{1,30})>[ \t]+(\S[^\n]*)$", re.MULTILINE
)
_ANSWER_WORDS = 3
"""A message of at most so many words, of somebody who says little else, is an answer to the one who tells the text."""
_ESCAPE = re.compile(r"\\u(?:\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{4}))")
_QUOTED_PRINTABLE = re.compile(r"(?:=[0-9A-F]{2})+")
_PERCENT = re.compile(r"(?<!\S)[^\s%/:]{0,60}%[0-9a-fA-F]{2}\S*")

# Markup and what stands at the start of a line

_INSIDE_WORDS = (
    re.compile(r"\[/?(?:b|i|u|s|url|quote|color|size|font|center|left|right|code|list)(?:=[^\]\n]{0,80})?\]()"),
    re.compile(r"\[\[(?:[^\[\]|\n]{0,80}\|)?([^\[\]|\n]{1,80})\]\]"),
    re.compile(r"\*\*([A-Za-z]{1,30})\*\*"),
    re.compile(r"'''([^'\n]{1,80})'''"),
    re.compile(
        r"\\(?:textbf|textit|texttt|textsc|textrm|textsf|emph|underline|text|sout|section|subsection|paragraph)\*?\{([^{}\n]*)\}"
    ),
)
"""BBCode, links and bold letters of a wiki, bold letters of Markdown inside a word, and LaTeX."""
_STRUCK_OUT = re.compile(r"~~(?=\S)([^~\n]{1,200})~~[ \t]?")
_NUMBERED = re.compile(
    r"^[ \t]*(?:\[\d{1,3}\]|\d{1,3}(?:\.\d{1,2}){1,3}\.?(?=[ \t]+[\"“]?[A-Z])|\d{1,3}[:\]]|[IVXL]{1,5}\."
    r"|(?:[Ll]ine|[Ss]entence|[Pp]oint|[Nn]o\.?|#)[ ]?\d{1,3}[.:)]|\d{1,4}[ \t]*\|)[ \t]+(?=\S)",
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

# Stops, fillers and spacing

_FILLERS = (
    (re.compile(r"(?<!\S)(?:um|uh|er|like|you know|i mean|sort of),[ \t\n]", re.IGNORECASE), ",", ""),
    (re.compile(r"(?<!\S)([\"'“‘(]?)([A-Za-z])-(?=\2[A-Za-z]*)", re.IGNORECASE), "-", r"\1"),
)
"""Fillers and stammering, each with a sign that it has and what stays of it."""
_STOP_THEN_CAPITAL = re.compile(
    r"(?<=[a-z0-9)\"'”’%])([.!?…]+[\"'”’)\]]{0,2})(?=[\"'“‘(]?(?:[A-Z][a-z]|[AI](?:['’]|\Z)|[A-Z]{2}))"
)
_STOP_THEN_LETTER = re.compile(r"(?<=[a-z0-9][a-z0-9)\"'”’%])([.!?]+[\"'”’)\]]{0,2})(?=[\"'“‘(]?[a-z])")
_STOP_THEN_BLANK = re.compile(r"[.!?][ \t]")
_WORD = re.compile(r"\S+")
_ADDRESS = re.compile(r"://|www\.|@|\.(?:com|org|net|edu|gov|io|html?|py|js|txt|pdf)\b", re.IGNORECASE)
_COMMA = re.compile(r"(?<=[a-z])([,;])(?=[A-Za-z])")
_BLANK_BEFORE_STOP = re.compile(r"(?<=[\w\"'”’)])[ \t]+(?=[.,](?:\s|\Z))")
_HYPHEN = re.compile(r"(?<=[a-z])[-\u2010\u2011]\n[ \t]*(?=[a-z])")
_BROKEN = re.compile(r"(?<=[a-z,;])\n[ \t]*\n[ \t]*(?=[a-z])")
_BROKEN_BEFORE_CAPITAL = re.compile(r"(?<=[\w,;])\n[ \t]*\n[ \t]*(?=[\w\"'“‘(])")
"""The same where blank lines stand inside sentences throughout: then a capital letter begins no sentence."""
_PILCROW = re.compile(r"[ \t]?[¶⏎↵␤⁋][ \t]?")
_EMOJI = "\u203c\u2049\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001f1e5\U0001f200-\U0001faff"
_EMOJI_STOP = re.compile(
    f"(?<=[a-z0-9'’\"”)%])([ \t]?)[{_EMOJI}][{_EMOJI}\ufe0f\u200d\u20e3]*(?=[ \t]*(?:\n|\\Z)|[ \t]?[\"'“‘(]?[A-Z])[ \t]?"
)
_EMOJI_BETWEEN = re.compile(f"(?<=\\S) [{_EMOJI}]\ufe0f? (?=\\S)")
_TELEGRAM_STOP = re.compile(r"\s+STOP\b")
_PIPE_STOP = re.compile(
    r"(?<=[a-z0-9'’\"”)])[ \t]*(?:[|/\\•·¦‖※†‡◦●■]|//|\|\||--|—)[ \t]+(?=[\"'“‘]?[A-Z][a-z]* [a-z])"
)


def undisguise(text: str) -> Normalised:
    """Applies all rules and normalises the text, again and again until nothing changes.

    Example:
        >>> undisguise("The l\\u0430mp w\\u0435nt out.Nobody s\\u200baw it.").text
        'The lamp went out. Nobody saw it.'
        >>> undisguise("The lamp went out. Nobody saw it.").changes
        {}
    """
    counts: Counter[str] = Counter()
    for _ in range(_PASSES):
        before = text
        text = _read_frames(read_comments(text, counts), counts)
        if not text.isascii():
            for rule in (visible, letters.read_compatibility, letters.read_confusables, letters.drop_marks):
                text = rule(text, counts)
        normalised = normalise(letters.join_letters(text, counts))
        counts.update(normalised.changes)
        text = normalised.text
        for rule in (_drop_markup, _read_line_starts, _drop_citations, _drop_fillers, letters.read_digits, _read_stops):
            text = rule(text, counts)
        text = drop_repeated(_join_lines(_add_blanks(text, counts), counts), counts)
        if text == before:
            text = mend(text, counts)
        if text == before:
            break
    return Normalised(text, {kind: counts[kind] for kind in KINDS if counts[kind]})


def _read_frames(text: str, counts: Counter[str]) -> str:
    """Applies the rules that need the lines and blanks of a text as they stand."""
    text = _read_escapes(_read_strings(text, counts), counts)
    if not text.isascii():
        text = letters.read_blanks(letters.read_turned(text, counts), counts)
    text = _drop_furniture(_read_columns(text, counts), counts)
    return _drop_answers(_read_footnotes(text, counts), counts)


def statements(changes: dict[str, int]) -> list[str]:
    """What was changed, a sentence for each kind, as results show it.

    Example:
        >>> statements({"confusable": 1204, "tag": 2})
        ['2 HTML tags were removed', '1,204 confusable letters were read as Latin']
    """
    return [sentence.format(f"{changes[kind]:,}") for kind, sentence in KINDS.items() if changes.get(kind)]


def _read_strings(text: str, counts: Counter[str]) -> str:
    """Reads the strings of JSON, and those of a program that prints a text."""
    body = text.strip()
    if body[:1] + body[-1:] in ("[]", "{}") and '"' in body:
        return _json_text(text, counts)
    literals = [match[1] for match in _STRING_LINE.finditer(text)] if '"' in text else []
    lines = sum(1 for line in text.split("\n") if line.strip()) if len(literals) >= _LEAST_LINES else 0
    if (
        len(literals) < _LEAST_LINES
        or 2 * len(literals) < lines
        or mean(len(literal.split()) for literal in literals) < 2
    ):
        return text
    counts["string"] += len(literals)
    return "".join(re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], part) for part in literals)


def _json_text(text: str, counts: Counter[str]) -> str:
    try:
        strings = [string for string in _strings(json.loads(text)) if string.strip()]
    except (ValueError, RecursionError):
        return text
    words = sum(len(string.split()) for string in strings)
    if words < 10:
        return text
    counts["string"] += len(strings)
    return (" " if words < 3 * len(strings) else "\n").join(strings)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _read_escapes(text: str, counts: Counter[str]) -> str:
    """Decodes Unicode escapes, quoted-printable, and percent signs as in an address."""
    if text.count("=") >= 3 and len(_QUOTED_PRINTABLE.findall(text)) >= 3:
        text, codes = _QUOTED_PRINTABLE.subn(_printable, text.replace("=\n", ""))
        counts["entity"] += codes
    if "\\u" in text:
        text, escapes = _ESCAPE.subn(_character, text)
        counts["entity"] += escapes
    if text.count("%20") >= 3 and text.count("%20") > text.count(" "):
        text, words = _PERCENT.subn(lambda match: unquote(match[0]), text)
        counts["entity"] += words
    return text


def _printable(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("=", "")).decode("utf-8", "replace")


def _character(match: re.Match[str]) -> str:
    code = int(match[1] or match[2], 16)
    return match[0] if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code)


def _read_columns(text: str, counts: Counter[str]) -> str:
    """Reads two columns that stand side by side one after the other, where they begin at the same place in most lines."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < _LEAST_LINES or 2 * text.count("  ") < len(lines):
        return text
    gaps = [[match.end() for match in _GAP.finditer(line)] for line in lines]
    places = Counter(place[0] for place in gaps if len(place) == 1)
    if not places:
        return text
    place, times = places.most_common(1)[0]
    left, right = [line[:place].rstrip() for line in lines], [line[place:] for line in lines]
    fits = sum(ends in ([], [place]) for ends in gaps)
    words = [sum(len(side.split()) for side in column) for column in (left, right)]
    if 2 * times < len(lines) or 10 * fits < 9 * len(lines) or min(words) < 3 * times:
        return text
    counts["column"] += 1
    return "\n".join([*left, *(line for line in right if line)])


def _drop_furniture(text: str, counts: Counter[str]) -> str:
    """Removes page numbers and running heads, where both or one of them come at least three times."""
    if text.count("\n") < 2 * _LEAST_LINES or "-->" in text:
        return text
    lines = text.split("\n")
    numbers = [int(match[1]) for line in lines if (match := _PAGE_NUMBER.fullmatch(line))]
    numbered = len(numbers) >= 3 and numbers == sorted(set(numbers)) and 3 * len(numbers) < len(lines)
    times = Counter(line.strip() for line in lines)
    pages: list[list[str]] = [[]]
    for line in lines:
        if (numbered and _PAGE_NUMBER.fullmatch(line)) or (times[line.strip()] >= 3 and _is_head(line.strip())):
            pages.append([])
        else:
            pages[-1].append(line)
    if len(pages) == 1:
        return text
    counts["furniture"] += len(pages) - 1
    # A sentence goes on over a page break: no blank line stays there.
    return "\n".join(page for lines in pages if (page := "\n".join(lines).strip("\n")))


def _is_head(line: str) -> bool:
    ended = line.rstrip(CLOSERS).endswith(tuple(MARKS))
    return 2 <= len(line.split()) <= 8 and any(map(str.isalpha, line)) and line[0].isupper() and not ended


def _read_footnotes(text: str, counts: Counter[str]) -> str:
    """Brings the ends of sentences back from footnotes: "The lamp …[^1]" and "[^1]: … went out."."""
    notes = {match[1]: match[2] for match in _NOTE.finditer(text)} if "]:" in text else {}
    if not notes:
        return text

    def completed(match: re.Match[str]) -> str:
        if match[1] not in notes:
            return match[0]
        counts["footnote"] += 1
        return f" {notes[match[1]]}"

    return _REFERENCE.sub(completed, _NOTE.sub("", text))


def _drop_answers(text: str, counts: Counter[str]) -> str:
    """Removes the names before the messages of a chat, and the short answers to one who writes nearly all of it."""
    messages = [(match[1], match[2]) for match in _CHAT_LINE.finditer(text)] if "<" in text else []
    if len(messages) < _LEAST_LINES or 2 * len(messages) < text.count("\n"):
        return text
    words: Counter[str] = Counter()
    for name, message in messages:
        words[name] += len(message.split())
    teller, most = words.most_common(1)[0]
    if 4 * most >= 3 * words.total():
        messages = [(name, text) for name, text in messages if name == teller or len(text.split()) > _ANSWER_WORDS]
    counts["speaker"] += len(messages)
    return "\n".join(message for _, message in messages)


def _drop_markup(text: str, counts: Counter[str]) -> str:
    """Removes struck-out words, and signs of BBCode, wikis and LaTeX, also inside words."""
    if not any(sign in text for sign in ("~~", "[", "**", "'''", "\\")):
        return text
    struck_out = sum(len(match[0].split()) for match in _STRUCK_OUT.finditer(text)) if "~~" in text else 0
    # Where most of a text is struck out, that is a disguise, and its words stay.
    text, changes = _STRUCK_OUT.subn("" if 2 * struck_out < len(text.split()) else r"\1 ", text)
    counts["markdown"] += changes
    for pattern in _INSIDE_WORDS:
        text, changes = pattern.subn(r"\1", text)
        counts["markdown"] += changes
    return text


def _read_line_starts(text: str, counts: Counter[str]) -> str:
    """Removes time stamps and speakers, and writes numbers of many kinds as "- ", which the splitter knows."""
    if "-->" in text:
        text, cues = _CUE.subn("", text)
        counts["time stamp"] += cues
    for pattern in (_STAMP, _STAMP_INSIDE) if ":" in text else ():
        text, stamps = pattern.subn("", text)
        counts["time stamp"] += stamps
    text = _without_speakers(text, counts)
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


def _drop_citations(text: str, counts: Counter[str]) -> str:
    """Removes references such as [3], (Smith et al., 2020), raised numbers and LaTeX's \\cite."""
    if any(sign in text for sign in "[\\{") or not text.isascii():
        text, citations = _CITATION.subn("", text)
        counts["citation"] += citations
    if "(" in text:
        text, citations = _AUTHOR_YEAR.subn("", text)
        counts["citation"] += citations
    return text


def _drop_fillers(text: str, counts: Counter[str]) -> str:
    """Removes what a transcript of hesitant speech is strewn with: "um,", "w-went"."""
    words = text.count(" ") + 1
    least = max(4, words // 20) + 1
    for pattern, sign, kept in _FILLERS:
        if text.count(sign) >= least and len(pattern.findall(text)) >= least:
            text, changes = pattern.subn(kept, text)
            counts["filler"] += changes
    return text


def _read_stops(text: str, counts: Counter[str]) -> str:
    """Reads emoji and signs that stand in the place of full stops as full stops."""
    patterns: list[tuple[re.Pattern[str], str]] = []
    if not text.isascii():
        if len(between := _EMOJI_BETWEEN.findall(text)) > max(5, text.count(" ") // 4):
            text = _EMOJI_BETWEEN.sub(" ", text)
            counts["spaced letters"] += len(between)
        patterns += [(_PILCROW, "\n"), (_EMOJI_STOP, ". ")]
    if text.count(" STOP") >= 3 and text.isupper():
        patterns.append((_TELEGRAM_STOP, "."))
    if 50 * sum(text.count(mark) for mark in ".!?") < text.count(" "):  # fewer than one in fifty words
        patterns.append((_PIPE_STOP, ". "))
    for pattern, stop in patterns:
        text, changes = pattern.subn(stop, text)
        counts["stop"] += changes
    return text


def _add_blanks(text: str, counts: Counter[str]) -> str:
    """Adds the blanks that are missing after stops and commas, and removes those before them."""
    text, blanks = _BLANK_BEFORE_STOP.subn("", text)
    counts["missing blank"] += blanks
    patterns = [_STOP_THEN_CAPITAL, _COMMA]
    if len(_STOP_THEN_LETTER.findall(text)) > 3 + 2 * len(_STOP_THEN_BLANK.findall(text)):
        patterns.append(_STOP_THEN_LETTER)

    def parted(match: re.Match[str]) -> str:
        word = match[0]
        for pattern in patterns if not _ADDRESS.search(word) else ():
            word, changes = pattern.subn(r"\1 ", word)
            counts["missing blank"] += changes
        return word

    mended = _WORD.sub(parted, text)
    return mended if mended == text else _with_opening_quotes(mended)


def _with_opening_quotes(text: str) -> str:
    """Moves blanks from behind quotation marks that open before them: every second straight one, from the first on."""
    parts = text.split('"')
    for number in range(1, len(parts), 2):
        before = parts[number - 1]
        if parts[number].startswith(" ") and (before.endswith(tuple(MARKS)) or (number > 1 and not before)):
            parts[number - 1], parts[number] = before + " ", parts[number][1:]
    return '"'.join(parts)


def _join_lines(text: str, counts: Counter[str]) -> str:
    """Joins words that a hyphen divides at a line end, and lines that a blank line divides inside a sentence."""
    if "\n" not in text:
        return text
    text, hyphens = _HYPHEN.subn("", text)
    often = 3 * len(_BROKEN.findall(text)) > max(6, text.count("\n\n"))
    text, broken = (_BROKEN_BEFORE_CAPITAL if often else _BROKEN).subn(" ", text)
    counts["hyphen"] += hyphens
    counts["broken line"] += broken
    return text
