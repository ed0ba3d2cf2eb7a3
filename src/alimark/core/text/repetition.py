"""Removes what is repeated around the sentences of a text: words at their starts or ends, and comment signs beside code."""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile

from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import CLOSERS, MARKS

_LEAST = 5
"""So many lines or sentences at least."""
_WORDS = 3
"""A repeated start or end has so many words at least."""
_SIGNS = re.compile(r"[^\w\s'’]+|(?<!\w)['’]|['’](?!\w)")
_WORD = re.compile(r"\w(?:\S*\w)?[^\w\s]*")
_COMMENT = re.compile(
    r"(.*?)(?<!\S)(//+|#+|--+|;+|%+|/\*+|\"{3}|<!--|REM\b)[ \t]+((?:\S+[ \t]+){2}\S.*?)[ \t]*(?:(?:\*/|-->|\"{3}).*)?"
)
_CODE = re.compile(r"[=(){}\[\];<>_+*&|]")


def read_comments(text: str, counts: Counter[str]) -> str:
    """Keeps only the comments of a program, where a third of its lines hold one and the rest is code.

    Example:
        >>> read_comments("x = f(1)  # The lamp went out.\\n" * 5, Counter()).split("\\n")[0]
        'The lamp went out.'
    """
    lines = [line for line in text.split("\n") if line.strip()]
    comments = [match for line in lines if (match := _COMMENT.fullmatch(line))] if len(lines) >= _LEAST else []
    if len(comments) < _LEAST or 3 * len(comments) < len(lines):
        return text
    sign = Counter(match[2][:2] for match in comments).most_common(1)[0][0]
    comments = [match for match in comments if match[2].startswith(sign)]
    kept = {match.string: match[3] for match in comments}
    rest = "".join([match[1] for match in comments] + [line for line in lines if line not in kept])
    if 3 * len(comments) < len(lines) or 20 * len(_CODE.findall(rest)) < len("".join(rest.split())):
        return text
    counts["comment"] += len(comments)
    return "\n".join(kept[line] for line in lines if line in kept)


def drop_repeated(text: str, counts: Counter[str]) -> str:
    """Removes words with which at least half of the sentences start or end, in one wording or a few.

    Example:
        >>> drop_repeated(" ".join(f"As we all know, {name} slept." for name in "abcde"), Counter())
        'A slept. B slept. C slept. D slept. E slept.'
    """
    words = [word.strip(",.;:").lower() for word in text.split()]
    triples = Counter(zip(words, words[1:], words[2:], strict=False))
    if len(words) < _LEAST * _WORDS or max(triples.values()) < _WORDS:
        return text
    for at_end in (False, True):
        text = _trimmed(text, at_end, counts)
    return text


def _trimmed(text: str, at_end: bool, counts: Counter[str]) -> str:
    spans = splitter().spans(text)
    sentences = [text[start:stop] for start, stop in spans]
    orders = [_plain(sentence).split()[:: -1 if at_end else 1] for sentence in sentences]
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, words in enumerate(orders):
        groups.setdefault(tuple(words[:_WORDS]), []).append(number)
    alike = [numbers for numbers in groups.values() if len(numbers) >= _WORDS]
    times = sum(map(len, alike))
    if times < max(_LEAST, len(spans) / 2):
        return text
    for numbers in alike:
        columns = zip(*(orders[number] for number in numbers), strict=False)
        shared = sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, columns))
        for number in numbers:
            sentences[number] = _without(sentences[number], shared, at_end)
    counts["repeated"] += times
    ends = [start for start, _ in spans[1:]] + [len(text)]
    gaps = [text[stop:end] for (_, stop), end in zip(spans, ends, strict=True)]
    return text[: spans[0][0]] + "".join(s + gap for s, gap in zip(sentences, gaps, strict=True))


def _plain(sentence: str) -> str:
    """A sentence in small letters without the signs around its words; numbers are alike."""
    return _SIGNS.sub(" ", re.sub(r"\d+", "0", sentence.lower()))


def _without(sentence: str, count: int, at_end: bool) -> str:
    """A sentence without so many words at its start or end; its final mark stays."""
    places = [match.span() for match in _WORD.finditer(sentence)]
    if len(places) <= count:  # a sentence that comes again
        return sentence
    if not at_end:
        rest = sentence[places[count][0] :]
        return rest[:1].upper() + rest[1:]
    body = sentence.rstrip(CLOSERS)
    return sentence[: places[-count - 1][1]].rstrip(",;:") + (body[-1] if body[-1] in MARKS else "")
