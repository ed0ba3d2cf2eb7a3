"""Normalisation: reads a text as a person sees it, whatever characters, markup and spacing it is written with.

It is the first stage of detection under keys of text version 1, and the second reading of a text under older keys. Generation
uses it to choose only sentences that a detector will read in the same way. Ordinary prose is left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from alimark.core.frozen.text.prose import code_spans

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
    "filler": "{} fillers and specks between words were removed",
    "stop": "{} other signs were read as full stops",
    "spaced letters": "{} words with letters apart were joined",
    "quotation mark": "{} quotation marks at line starts were removed",
    "fence": "{} fences around prose were removed",
    "table": "{} table rows with prose were read as text",
    "time stamp": "{} time stamps were removed",
    "speaker": "{} names of speakers were removed",
    "bullet": "{} bullets were removed",
    "number": "{} numbers of items were removed",
    "citation": "{} citations were removed",
    "markdown": "{} signs of Markdown or LaTeX were removed",
    "hyphen": "{} hyphens at line ends were removed",
    "broken line": "{} blank lines inside sentences were removed",
    "missing blank": "{} blanks after stops and commas were mended",
}
"""The kinds of changes, each with the sentence that says how many there were."""

TEXT_VERSIONS = (0, 1)
"""The values of a key's `text_version`: 0 reads a text as it stands, 1 normalises it and searches only prose."""

_PASSES = 6
"""The most passes. One pass can uncover what the next one changes, such as a tag that was written with entities."""


_LETTERS = r"(?:[A-Za-z]{2,}|[A-Za-z](?=['-]))(?:['-][A-Za-z]+)*"
_PLAIN_WORD = rf"(?:\"?{_LETTERS}[,;:]?\"?|[0-9]+[,;]?|[A-Za-z])"
_PLAIN_WORDS = rf"(?:{_PLAIN_WORD}|\({_LETTERS}(?: {_LETTERS})*\)[,;:]?)"
"""A word, or some in brackets: of letters alone, since "(Smith 2020)" is a citation."""
_PLAIN_SENTENCE = re.compile(rf"{_PLAIN_WORD}(?: {_PLAIN_WORDS})*[.!?]{{0,3}}\"?")
_MOST_COMMAS = 4  # a rule for fillers ("um,") begins with five of them
_MOST_SIGNS = (
    2  # rules for letters that signs part ("l-a-m-p") begin with four words, and the last word may look like one
)


@dataclass(frozen=True)
class Normalised:
    """A text after normalisation, and how many changes of each kind were made."""

    text: str
    changes: dict[str, int] = field(default_factory=dict)


def normalise(text: str) -> Normalised:
    """Normalises a text: characters, markup and spacing. A second application changes nothing.

    Args:
        text: Any text.

    Returns:
        The text as it is read, and the number of changes of each kind that was made, by names of `KINDS`.

    Example:
        >>> normalise("The l\\u0430mp w\\u0435nt <b>out</b>.Nobody s\\u200baw it.").text
        'The lamp went out. Nobody saw it.'
        >>> normalise("The lamp went out. Nobody saw it.").changes
        {}
    """
    return Normalised(text) if is_plain(text) else read_in_passes(text)


def is_plain(text: str) -> bool:
    """Whether a text is a single sentence of which no rule changes anything: plain words with single blanks between them.

    Most candidates of a generation are such sentences, and the rules take much longer than this test.
    """
    return (
        _PLAIN_SENTENCE.fullmatch(text) is not None
        and text.count(",") + text.count(";") <= _MOST_COMMAS
        and text.count("'") + text.count("-") <= _MOST_SIGNS
        and not text.isupper()
    )


def read_in_passes(text: str) -> Normalised:
    """Applies all rules, again and again until none of them changes anything."""
    counts: Counter[str] = Counter()
    for _ in range(_PASSES):
        before = text
        text = _outside_code(text, counts)
        if text == before:
            break
    return Normalised(text, {kind: counts[kind] for kind in KINDS if counts[kind]})


def _outside_code(text: str, counts: Counter[str]) -> str:
    """One pass over everything but code, which stays as it is."""
    from alimark.core.frozen.text.characters import read_line_ends

    text = read_line_ends(text)
    parts, at = [], 0
    for start, end in code_spans(text):
        parts += [_one_pass(text[at:start], counts), text[start:end]]
        at = end
    return "".join([*parts, _one_pass(text[at:], counts)])


def _one_pass(text: str, counts: Counter[str]) -> str:
    # Imported on first use: compiling their patterns would slow down programs that only load a key.
    from alimark.core.frozen.text import characters, layout, markup, spacing

    text = layout.read_strings(layout.read_turned(text, counts), counts)
    text = layout.drop_furniture(layout.read_columns(text, counts), counts)
    text = layout.drop_answers(layout.read_footnotes(text, counts), counts)
    text = spacing.tidy_lines(text)
    text = markup.drop_tags(markup.read_entities(text, counts), counts)
    text = characters.drop_invisible(characters.read_blanks(text, counts), counts)
    text = characters.read_compatibility(text, counts)
    text = characters.drop_marks(characters.read_confusables(text, counts), counts)
    text = spacing.tidy_lines(spacing.join_letters(spacing.tidy_lines(text), counts))
    text = markup.drop_quote_marks(spacing.collapse_blanks(text), counts)
    text = markup.drop_markdown(markup.drop_fences(text, counts), counts)
    text = markup.drop_citations(markup.read_line_starts(text, counts), counts)
    text = layout.read_digits(layout.drop_fillers(text, counts), counts)
    text = spacing.add_blanks(spacing.read_stops(text, counts), counts)
    return spacing.tidy_lines(spacing.join_lines(text, counts))


def statements(changes: dict[str, int]) -> list[str]:
    """What was changed, a sentence for each kind, as results show it.

    Example:
        >>> statements({"confusable": 1204, "tag": 2})
        ['2 HTML tags were removed', '1,204 confusable letters were read as Latin']
    """
    return [sentence.format(f"{changes[kind]:,}") for kind, sentence in KINDS.items() if changes.get(kind)]
