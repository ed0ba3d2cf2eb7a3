"""Checks whether the answer of a model is a rewrite of a sentence or a text.

Paraphrasers also return empty answers, refusals, their prompt, tags, summaries and other languages. Such an answer removes
every watermark, but it is no paraphrase, so an attack must not count it as one.
"""

import re

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.frozen.text.units import clean
from alimark.core.rewriting.candidates import PREFACE, REFUSAL, other_language
from alimark.core.text.continuations import degenerate
from alimark.core.text.language import COMMON, WORDS, looks_english

MIN_WORDS, MAX_WORDS = 0.6, 1.8
"""Limits of the words of a text as a share of the original's. Rewrites that merge and split keep them; summaries do not."""
MIN_SENTENCES, MAX_SENTENCES = 0.5, 2.5  # limits of the sentences of a text as a share of the original's
MIN_SENTENCE_WORDS, MAX_SENTENCE_WORDS = 0.3, 3.0
"""Limits of the words of a sentence as a share of the original's."""
MIN_KEPT = 0.08
"""The minimum share of a text's rarer words that a rewrite keeps; the names alone are usually more than this."""

_TAG = re.compile(r"<\|?/?[A-Za-z_][^<>\n]{0,40}>|\[/?[A-Z]{3,}\]|\blexical\s*=\s*\d+|\border\s*=\s*\d+|�")
_PROMPT = re.compile(
    r"\b(?:re-?write|rephrase|paraphrase)\b[^.!?]{0,40}\b(?:text|sentence|passage|paragraph)\b"
    r"|\bpreserv\w+ the original meaning\b|\bhelpful assistant\b|\bparaphrase\s*:|\b(?:rewritten|original|following) text\b",
    re.IGNORECASE,
)


def sentence_flaw(answer: str, original: str) -> str:
    """Why `answer` cannot replace the sentence `original`; empty where it can."""
    answer, original = clean(answer), clean(original)
    if flaw := _common_flaw(answer, original):
        return flaw
    words, before = len(WORDS.findall(answer)), len(WORDS.findall(original))
    if words < MIN_SENTENCE_WORDS * before:
        return "too short"
    if words > MAX_SENTENCE_WORDS * max(before, 4):
        return "too long"
    return "language" if other_language(answer, original) else ""


def text_flaw(answer: str, original: str) -> str:
    """Why `answer` is not a rewrite of the text `original`; empty where it is one."""
    if flaw := _common_flaw(answer, original):
        return flaw
    if " ".join(answer.split()) == " ".join(original.split()):
        return "unchanged"
    if looks_english(original) != looks_english(answer):
        return "language"
    if flaw := _size_flaw(answer, original):
        return flaw
    return "another text" if kept_of_rare_words(answer, original) < MIN_KEPT else ""


def joined_flaw(answer: str, original: str) -> str:
    """Why sentences that passed the checks one by one are not a rewrite of the text `original` together; empty where they are.

    A broken model may answer every sentence with the same sentence or an unrelated one, and each alone passes.
    """
    if degenerate(answer) and not degenerate(original):
        return "degenerate"
    return "another text" if kept_of_rare_words(answer, original) < MIN_KEPT else ""


def without_preface(answer: str) -> str:
    """The answer without a first line such as "Here is the rewritten text:" and without quotes or a code fence around it."""
    text = answer.strip()
    first, _, rest = text.partition("\n")
    if rest.strip() and PREFACE.match(first) and first.rstrip("* ").endswith(":"):
        text = rest.strip()
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        text = text[3:-3].partition("\n")[2].strip()
    if len(text) > 2 and text[0] in '"“' and text[-1] in '"”' and not re.search('["“”]', text[1:-1]):
        text = text[1:-1].strip()
    return text


def kept_of_rare_words(answer: str, original: str) -> float:
    """The share of the original's words that are in the answer; the most common English words do not count."""
    rare = {word for word in WORDS.findall(original.lower()) if word not in COMMON and len(word) > 3}
    return len(rare & set(WORDS.findall(answer.lower()))) / len(rare) if len(rare) >= 10 else 1.0


def _common_flaw(answer: str, original: str) -> str:
    if not any(c.isalnum() for c in answer):
        return "empty"
    flaws = ((REFUSAL.search, "refusal"), (_TAG.search, "tags"), (_PROMPT.search, "prompt"), (PREFACE.match, "prompt"))
    for occurs, flaw in flaws:
        if occurs(answer) and not occurs(original):
            return flaw
    return "degenerate" if degenerate(answer) and not degenerate(original) else ""


def _size_flaw(answer: str, original: str) -> str:
    units = splitter(DEFAULT_SPLITTER).units
    words, before = len(WORDS.findall(answer)), max(1, len(WORDS.findall(original)))
    sentences, count = len(units(answer)), max(1, len(units(original)))
    if words < MIN_WORDS * before or sentences < MIN_SENTENCES * count:
        return "too short"
    if words > MAX_WORDS * before or sentences > max(2.0, MAX_SENTENCES * count):
        return "too long"
    return ""
