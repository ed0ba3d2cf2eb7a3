"""Units: the texts that are embedded, made by cleaning a sentence, merging two or halving one.

Frozen: the vector of a unit decides its bits, so that any change of a unit may lose the mark of its sentence.
"""

import re
from collections.abc import Iterable

MARKS = ".!?…。！？｡؟۔।"
CLOSERS = "\"'”’»)]"
_STRAIGHT = str.maketrans({**dict.fromkeys("“”„‟", '"'), **dict.fromkeys("‘’‚‛", "'")})
# Control characters carry no meaning to an embedder, and a tokenizer may stop at a NUL.
_NO_CONTROL = dict.fromkeys((*range(9), *range(14, 28), 127))

# White space with a line break in it. The match begins where the white space begins: without the lookbehind, long white space
# without a break would be searched again from each of its characters.
_LINE_BREAKS = re.compile(r"(?<!\s)\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
# The marker of a list item or heading, which is layout and not content.
_MARKER = re.compile(r"(?:(?:[-*•‣▪–]|\d{1,3}[.)]|#{1,6}|>)[ \t]+)+(?=\S)")


def clean(sentence: str) -> str:
    """Returns the unit of a sentence: one line, no list marker, straight quotes, a final punctuation mark.

    Returns:
        The cleaned text; empty for a blank sentence.

    Example:
        >>> clean("- The “keeper” slept")
        'The "keeper" slept.'
    """
    text = without_marker(keep_on_one_line(sentence))
    text = text if text.isascii() else text.translate(_STRAIGHT)
    return with_full_stop(text) if text else ""


def without_marker(sentence: str) -> str:
    """Removes the marker of a list item or heading."""
    return _MARKER.sub("", sentence, count=1) if _MARKER.match(sentence) else sentence


def keep_on_one_line(sentence: str) -> str:
    """Replaces line breaks by spaces and removes control characters."""
    if sentence.isprintable():  # no break and no control character in it
        return sentence.strip()
    return _LINE_BREAKS.sub(" ", sentence).translate(_NO_CONTROL).strip()


def with_full_stop(text: str) -> str:
    """Adds a full stop where the text does not end with a punctuation mark."""
    return text if text.rstrip(CLOSERS)[-1:] in tuple(MARKS) else text + "."


def merge(units: Iterable[str]) -> str:
    """Joins neighbouring units into one."""
    return " ".join(units)


def halve(unit: str) -> tuple[str, str] | None:
    """Cuts a unit in two at the space nearest its middle character.

    Args:
        unit: The text of a sentence, as `clean` returns it.

    Returns:
        The two halves, the first with a final full stop; None for a unit that is too short or has no space.

    Example:
        >>> halve("The keeper lit the lamp and went to bed.")
        ('The keeper lit the.', 'lamp and went to bed.')
    """
    if len(unit) < 10:
        return None
    middle = len(unit) // 2
    left, right = unit.rfind(" ", 0, middle), unit.find(" ", middle)
    if left < 0 and right < 0:
        return None
    at = right if left < 0 or (right >= 0 and right - middle <= middle - left) else left
    first, second = unit[:at].rstrip(), unit[at:].lstrip()
    return (with_full_stop(first), second) if first and second else None
