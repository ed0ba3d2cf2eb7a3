"""Restructuring by a chat model: the paper's other way to undo the merges and splits of a paraphraser.

The model never sees a key, so its answers do not depend on the key that is tried. Random keys get their best score over the
same answers, which keeps the p-value valid.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from alimark.core.frozen.text.splitting import Splitter
from alimark.core.llm.base import LLM, Draw, Message, Request, Sampling
from alimark.core.llm.requests import draw_all
from alimark.errors import ContextFull

# The prompt of the paper, word for word.
PROMPT = """\
Role: You are an expert editor specializing in text clarity and logical structuring.

Task: I will provide you with a [Paraphrased Text]. During the paraphrasing process, the original sentence structures were \
distorted—multiple unrelated ideas were unnaturally merged into run-on sentences, and cohesive thoughts were \
inappropriately split.

Your goal is to restore this text to a natural, logical state.

Instructions:

1. Deconstruct and Split: Identify overly complex, merged sentences and split them into independent, atomic sentences, \
where each sentence conveys one clear core idea.

2. Merge and Cohere: Identify choppy, unnaturally split sentences and combine them back together to restore logical flow.

3. Preserve Meaning: Do not add any external information or remove core concepts.

4. Natural Transitions: Adjust conjunctions and punctuation to ensure the final output reads smoothly and professionally.

[Paraphrased Text]:

{text}

Output format: Please output the restored and logically structured text directly."""

KEPT_WORDS = 0.8
"""The share of words, counted with repeats, that a restructuring must have in common with the text. It may change some
conjunctions or pronouns; an answer that changes more is a rewrite, whose sentences are no evidence about the text's."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Restructured:
    """A chat model's restructurings of a text: the answers that were searched, and why others were not."""

    llm: str
    texts: tuple[str, ...]
    dropped: dict[str, int] = field(default_factory=dict)
    """The number of answers that were not searched, by reason: unfinished, context full, other words, unchanged, empty,
    repeat."""
    best: int = 0
    """The number, from 1, of the answer in `texts` that the alignment belongs to; 0 for the text itself."""


def restructured(
    texts: Sequence[str], llm: LLM, variants: int, cutter: Splitter, *, checked: bool = True
) -> list[Restructured]:
    """Up to `variants` restructurings of each text. They depend on the text and the model alone.

    Where `checked`, answers are left out that are unfinished, unchanged or in other words than the text. If not, every answer
    with a sentence counts, as where the answer replaces the text.
    """
    answers: dict[int, list[Draw] | ContextFull] = {}
    for tokens, members in _by_length(texts).items():
        sampling = Sampling(0.7, 0.95, 1.0, max_tokens=tokens, may_end=True)
        requests = (_request(texts[i], variants) for i in members)
        for place, _, answer in draw_all(llm, requests, sampling, lambda _: False):
            if isinstance(answer, Exception) and not isinstance(answer, ContextFull):
                raise answer  # without the model, all further texts would be searched without restructurings
            answers[members[place]] = answer
    return [_kept(text, answers[i], llm, variants, cutter, checked) for i, text in enumerate(texts)]


def _by_length(texts: Sequence[str]) -> dict[int, list[int]]:
    """The numbers of the texts, grouped by the most tokens that their answers may have."""
    groups: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        # Prose has more than three bytes a token, so that answers are not cut off; powers of two make few groups.
        groups.setdefault(2 ** max(7, (len(text.encode("utf-8", "replace")) // 3).bit_length()), []).append(i)
    return groups


def _request(text: str, count: int) -> Request:
    seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big")
    return Request("", count, seed, messages=(Message("user", PROMPT.format(text=text)),))


def _kept(
    text: str, answer: list[Draw] | ContextFull, llm: LLM, variants: int, cutter: Splitter, checked: bool
) -> Restructured:
    if isinstance(answer, ContextFull):
        return Restructured(llm.name, (), {"context full": variants})
    sentences = cutter.units(text)
    seen: dict[tuple[str, ...], str] = {}
    dropped: Counter[str] = Counter()
    for draw in answer:
        restored = _without_preface(draw.text, text)
        units = tuple(cutter.units(restored))
        if checked and (flaw := _flaw(draw, restored, units, text, sentences)):
            dropped[flaw] += 1
        elif not units:
            dropped["empty"] += 1
        elif units in seen:
            dropped["repeat"] += 1
        else:
            seen[units] = restored
    return Restructured(llm.name, tuple(seen.values()), dict(dropped))


def _flaw(draw: Draw, restored: str, units: tuple[str, ...], text: str, sentences: list[str]) -> str:
    """Why an answer says nothing new about the text; empty where it does."""
    if draw.ended == "length":
        return "unfinished"
    if not units or words_in_common(restored, text) < KEPT_WORDS:
        return "other words"
    return "unchanged" if list(units) == sentences else ""


def _without_preface(answer: str, text: str) -> str:
    """The answer without a first line such as "Here is the restored text:"."""
    first, line_break, rest = answer.strip().partition("\n")
    return rest.strip() if line_break and first.rstrip("* ").endswith(":") and first not in text else answer.strip()


def words_in_common(first: str, second: str) -> float:
    """The share of the longer text's words that are in both texts, counted with repeats."""
    counts = [Counter(_WORD.findall(text.lower())) for text in (first, second)]
    return (counts[0] & counts[1]).total() / max(1, *(count.total() for count in counts))
