"""Candidate sentence ends in texts whose full stops are missing, replaced or scattered.

Such a text is cut into short pieces, at clause marks, line breaks, capital letters and conjunctions, and by length where
nothing else offers itself. Each cut has a probability of being the end of a sentence. Which pieces make up a sentence is then
decided inside the alignment (`alimark.core.detection.clauses`). Nothing here depends on a key, and all of it takes linear time.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from alimark.core.frozen.text.units import CLOSERS, MARKS, clean

LONGEST = 60  # a sentence has at most so many words
LONGEST_RUN = 8  # a sentence has at most so many pieces
_USUAL = 16
"""The words of a usual sentence: the probabilities of the cuts are such that sentences have so many on average."""
_PIECE = 12  # a piece with more words is cut at its likeliest gap
_LEAST_PROBABILITY = 0.03
"""A gap between two words is a cut where a sentence ends there with at least this probability."""
_REGULAR = (6, 45)  # the words of a regular sentence
_FILLER = 2
"""A sentence with at most so many words is a filler where every fourth sentence is one ("Yes." after every sentence)."""
_LEAST_WORDS = 30
"""A text with fewer words is too short for a mark that has to be found together with its sentences."""
_MOST_WORDS = 2000  # of a longer text only the beginning is read, since its units are many

_TOKEN = re.compile(r"\S+")
_STOP_AND_BLANK = re.compile(rf"([{re.escape(MARKS)}]\s+)")
_DASH_BEFORE_CAPITAL = re.compile(r"\w[\"'”’)]? [-–—|/]{1,2} [\"'“‘(]?[A-Z]")
_JOINTS = ("and", "but", "then")
_JOINT = re.compile(rf"\A(?:{'|'.join(_JOINTS)}) (?=[A-Z])| (?:{'|'.join(_JOINTS)}|or)\Z")
_STOP = re.compile(rf"[{re.escape(MARKS)}]\s+(\S)")
_OFTEN_FIRST = frozenset(
    "however it it's i i'm i've we he she they these this there if when while but though although then another after during "
    "he's she's they're we're that's there's".split()
)
_MAYBE_FIRST = frozenset(
    "the one since what now many before some so you our as at those my both even later most each in on no yet how why where "
    "nobody everyone someone people who's what's".split()
)
_SELDOM_FIRST = frozenset(
    "of to is was has are be been had have were would can could will him them who which than into up out or and not said years "
    "s am does did do made me us".split()
)
_SELDOM_LAST = frozenset(
    "the a an of to in and or but his her their our my your its this these those with for from by at on as is was are were be "
    "been has have had will would can could may might should not no very more most than that which who whose if when while "
    "because into between such he she they we i you it's also after how even new some where during "
    "against never just".split()
)


class Clauses(NamedTuple):
    """The pieces of a text as (start, end), in order, and the probability that a sentence ends after each."""

    text: str
    spans: list[tuple[int, int]]
    ends: list[float]

    def unit(self, first: int, last: int) -> str:
        """The unit of a run of pieces, without the signs of a clause at its end and words that only join sentences."""
        return clean(_JOINT.sub("", _trimmed(self.text[self.spans[first][0] : self.spans[last][1]])))

    @property
    def pieces(self) -> list[str]:
        """The text of each piece."""
        return [_trimmed(self.text[start:end]) for start, end in self.spans]

    def runs(self) -> list[tuple[int, int, float]]:
        """The runs of pieces that may be a sentence: first and last piece, and the probability that it ends with the last."""
        words = [len(self.text[start:end].split()) for start, end in self.spans]
        chosen: list[tuple[int, int, float]] = []
        for first in range(len(self.spans)):
            left, length = 1.0, 0
            options: list[tuple[int, int, float]] = []
            for last in range(first, min(first + LONGEST_RUN, len(self.spans))):
                length += words[last]
                if options and length > LONGEST:
                    break
                options.append((first, last, left * self.ends[last]))
                left *= 1 - self.ends[last]
            likeliest = max(probability for *_, probability in options)
            chosen += [option for option in options if option[2] >= 0.02 * likeliest]
        return chosen


def clauses_of(sentences: Sequence[str]) -> Clauses | None:
    """The pieces of a text whose full stops are missing, replaced or scattered; None for a text with regular sentences."""
    lengths = [len(sentence.split()) for sentence in sentences]
    fillers = sum(length <= _FILLER for length in lengths)
    if filled := fillers >= 3 and 4 * fillers >= len(lengths):
        sentences = [sentence for sentence, length in zip(sentences, lengths, strict=True) if length > _FILLER]
    return clauses("\n".join(sentences)) if sentences and (filled or _is_irregular(sentences)) else None


def _is_irregular(sentences: Sequence[str]) -> bool:
    """Whether most words stand outside of sentences of usual length that end with a mark, or dashes look like stops."""
    regular = irregular = 0
    for sentence in sentences:
        words = len(sentence.split())
        if _REGULAR[0] <= words <= _REGULAR[1] and sentence.rstrip(CLOSERS).endswith(tuple(MARKS)):
            regular += words
        else:
            irregular += words
    dashed = sum(_DASH_BEFORE_CAPITAL.search(sentence) is not None for sentence in sentences)
    if 2 * dashed > len(sentences):
        return regular + irregular >= _LEAST_WORDS
    return irregular > regular and irregular >= _LEAST_WORDS


def clauses(text: str) -> Clauses:
    """Cuts a text into pieces that begin or end at possible sentence ends."""
    text = _without_scattered_stops(text)
    tokens = _tokens(text)[:_MOST_WORDS]
    probabilities = [*_probabilities(_logits(text, tokens), len(tokens)), 1.0]
    cuts = [*_cuts(probabilities[:-1]), len(tokens) - 1]
    firsts = [0, *(cut + 1 for cut in cuts[:-1])]
    spans = [(tokens[first][0], tokens[cut][1]) for first, cut in zip(firsts, cuts, strict=True)]
    return Clauses(text, spans, [probabilities[cut] for cut in cuts])


def _without_scattered_stops(text: str) -> str:
    """The text without its stops, where most of them stand before small letters: they say nothing about the sentences."""
    following = [match[1] for match in _STOP.finditer(text)]
    if 2 * sum(map(str.islower, following)) > len(following) and _is_cased(text.split()):
        return _STOP.sub(r" \1", text)
    return _without_regular_stops(text)


def _without_regular_stops(text: str) -> str:
    """The text without its stops, where nearly all of them stand after the same small number of words.

    A stop after fewer words stays: where stops are counted anew in each sentence, it is the sentence's own.
    """
    parts = _STOP_AND_BLANK.split(text)
    lengths = [len(part.split()) for part in parts[::2]]
    usual, times = Counter(lengths).most_common(1)[0]
    if usual > 5 or 2 * times < len(lengths) or len(lengths) < 8:
        return text
    kept: list[str] = []
    for number, length in enumerate(lengths):
        part = parts[2 * number]
        if number and lengths[number - 1] == usual and not part.startswith(("I ", "I'")):
            part = part[:1].lower() + part[1:]
        stop = parts[2 * number + 1] if 2 * number + 1 < len(parts) else ""
        kept += [part, " " if length == usual and stop else stop]
    return "".join(kept)


def _is_cased(words: Sequence[str]) -> bool:
    """Whether some words begin with a capital letter, as they do in all texts but those in lower or upper case."""
    return 40 * sum(word[0].isupper() and word[1:2].islower() for word in words) > len(words)


def _tokens(text: str) -> list[tuple[int, int]]:
    """The words of a text as spans, each with the signs that stand alone after it."""
    tokens: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        if tokens and not any(map(str.isalnum, match[0])):
            tokens[-1] = (tokens[-1][0], match.end())
        else:
            tokens.append(match.span())
    return tokens


def _logits(text: str, tokens: Sequence[tuple[int, int]]) -> list[float]:
    """For each gap between two words, how much speaks for the end of a sentence there."""
    words = [text[start:end] for start, end in tokens]
    cased = _is_cased(words)
    logits = []
    for number in range(len(words) - 1):
        before, after = words[number], words[number + 1].lstrip("\"'“‘([*_")
        mark = before.rstrip(CLOSERS)[-1:]
        logit = _mark_logit(mark) + 2.0 * ("\n" in text[tokens[number][1] : tokens[number + 1][0]])
        following = after.rstrip(".,;:!?\"'").lower()
        if following in _OFTEN_FIRST:
            logit += 2.0
        elif following in _MAYBE_FIRST:
            logit += 1.0
        elif following in _SELDOM_FIRST:
            logit -= 2.5
        else:
            logit -= 0.5
        if cased and following.partition("'")[0] != "i":
            logit += (1.0 if before[:1].isupper() else 2.5) if after[:1].isupper() else -3.0
        joins = cased and before in _JOINTS and after[:1].isupper()
        if mark.isalnum() and not joins and before.strip("\"'“‘(").lower() in _SELDOM_LAST:
            logit -= 3.0
        logits.append(logit)
    return logits


def _mark_logit(mark: str) -> float:
    if mark in MARKS:
        return 3.0
    if mark in ",;:":
        return 2.0 if mark == ";" else 1.0
    return 0.0 if mark.isalnum() else 2.5  # an emoji, a dash, a slash


def _probabilities(logits: Sequence[float], words: int) -> list[float]:
    """The probabilities of the gaps, shifted so that they add up to the usual number of sentences."""
    expected = max(1.0, words / _USUAL - 1)
    low, high = -20.0, 20.0
    for _ in range(20):
        shift = (low + high) / 2
        if sum(_logistic(logit + shift) for logit in logits) < expected:
            low = shift
        else:
            high = shift
    return [_logistic(logit + low) for logit in logits]


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _cuts(probabilities: Sequence[float]) -> list[int]:
    """The gaps at which the text is cut: the likely ones, and one more in every piece that is too long."""
    cuts: list[int] = []
    last = -1
    for gap, probability in enumerate(probabilities):
        is_new = gap - last > 2 or last < 0 or probability > probabilities[last]
        if (
            is_new
            and probability >= _LEAST_PROBABILITY
            and 3 * probability >= max(probabilities[max(0, gap - 2) : gap + 3])
        ):
            cuts.append(gap)
            last = gap
        elif gap - last >= _PIECE:
            last = max(range(last + 3, gap + 1), key=lambda option: probabilities[option])
            cuts.append(last)
    return cuts


def _trimmed(piece: str) -> str:
    """A piece without the signs at its start and end that mark a clause; closing quotation marks and brackets stay."""
    start, end = 0, len(piece)
    while end and not (piece[end - 1].isalnum() or piece[end - 1] in CLOSERS or piece[end - 1] in MARKS):
        end -= 1
    while start < end and not (piece[start].isalnum() or piece[start] in "\"'“‘(["):
        start += 1
    return piece[start:end]
