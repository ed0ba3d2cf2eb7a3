"""What a model gave for a sentence or a text, and whether it is a rewrite at all.

Paraphrasers return nothing, refusals, their own prompt, tags of their training, summaries and other languages. An attack
that passed these on would break every watermark, and prove nothing.
"""

from __future__ import annotations

import re

from alimark.generation.candidates import degenerate
from alimark.rewriting.candidates import PREFACE, REFUSAL, other_language
from alimark.text.language import COMMON, WORDS, looks_english
from alimark.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.text.units import clean

LEAST_WORDS, MOST_WORDS = 0.6, 1.8
"""A text's words, as a share of the original's. Rewrites that merge and split keep within; summaries and essays do not."""
LEAST_SENTENCES, MOST_SENTENCES = 0.5, 2.5
LEAST_SENTENCE_WORDS, MOST_SENTENCE_WORDS = 0.3, 3.0
LEAST_KEPT = 0.08
"""The share of a text's rarer words that a rewrite of it keeps, however hard it tries: names alone are more."""

_TAG = re.compile(r"<\|?/?[A-Za-z_][^<>\n]{0,40}>|\[/?[A-Z]{3,}\]|\blexical\s*=\s*\d+|\border\s*=\s*\d+|�")
_PROMPT = re.compile(
    r"\b(?:re-?write|rephrase|paraphrase)\b[^.!?]{0,40}\b(?:text|sentence|passage|paragraph)\b"
    r"|\bpreserv\w+ the original meaning\b|\bhelpful assistant\b|\bparaphrase\s*:|\b(?:rewritten|original|following) text\b",
    re.IGNORECASE,
)


def sentence_flaw(answer: str, original: str) -> str:
    """Why `answer` cannot stand for the sentence `original`, or nothing."""
    answer, original = clean(answer), clean(original)
    if flaw := _common_flaw(answer, original):
        return flaw
    words, before = len(WORDS.findall(answer)), len(WORDS.findall(original))
    if words < LEAST_SENTENCE_WORDS * before:
        return "too short"
    if words > MOST_SENTENCE_WORDS * max(before, 4):
        return "too long"
    return "language" if other_language(answer, original) else ""


def text_flaw(answer: str, original: str) -> str:
    """Why `answer` is no rewrite of the text `original`, or nothing."""
    if flaw := _common_flaw(answer, original):
        return flaw
    if " ".join(answer.split()) == " ".join(original.split()):
        return "unchanged"
    if looks_english(original) != looks_english(answer):
        return "language"
    if flaw := _size_flaw(answer, original):
        return flaw
    return "another text" if kept_of_rare_words(answer, original) < LEAST_KEPT else ""


def joined_flaw(answer: str, original: str) -> str:
    """Why sentences that passed one by one are no rewrite of the text `original` together, or nothing.

    A model that has lost its way says the same to every sentence, or something unrelated, in sentences without a flaw.
    """
    if degenerate(answer) and not degenerate(original):
        return "degenerate"
    return "another text" if kept_of_rare_words(answer, original) < LEAST_KEPT else ""


def without_preface(answer: str) -> str:
    """Without a first line such as "Here is the rewritten text:" and without quotes or a fence around the whole."""
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
    """The share of the original's words, the commonest of English left out, that are in the answer."""
    said = {word for word in WORDS.findall(original.lower()) if word not in COMMON and len(word) > 3}
    return len(said & set(WORDS.findall(answer.lower()))) / len(said) if len(said) >= 10 else 1.0


def _common_flaw(answer: str, original: str) -> str:
    if not any(c.isalnum() for c in answer):
        return "empty"
    if REFUSAL.search(answer) and not REFUSAL.search(original):
        return "refusal"
    if _TAG.search(answer) and not _TAG.search(original):
        return "tags"
    if _PROMPT.search(answer) and not _PROMPT.search(original):
        return "prompt"
    if PREFACE.match(answer) and not PREFACE.match(original):
        return "prompt"
    return "degenerate" if degenerate(answer) and not degenerate(original) else ""


def _size_flaw(answer: str, original: str) -> str:
    cutter = splitter(DEFAULT_SPLITTER)
    words, before = len(WORDS.findall(answer)), max(1, len(WORDS.findall(original)))
    sentences, count = len(cutter.units(answer)), max(1, len(cutter.units(original)))
    if words < LEAST_WORDS * before or sentences < LEAST_SENTENCES * count:
        return "too short"
    if words > MOST_WORDS * before or sentences > max(2.0, MOST_SENTENCES * count):
        return "too long"
    return ""
