"""Restructuring by a chat model: the paper's other way to undo what a paraphraser did to a text's sentences.

The model never sees a key, so what it answers is fixed before any key is tried, and the best score over its answers can be
compared with the best that a random key gets over the same answers.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from alimark.errors import ContextFull
from alimark.llm.base import LLM, Draw, Request, Sampling, Message
from alimark.llm.chat import draw_all
from alimark.text.splitting import Splitter

# The paper's, word for word.
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
"""The share of words, counted with repeats, that a restructuring must have in common with the text. It may change a
conjunction or a pronoun here and there; what changes more is a rewrite, whose sentences say nothing of the text's."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Restructured:
    """What a chat model made of a text: the answers that were tried beside it, and why others were not."""

    llm: str
    texts: tuple[str, ...]
    dropped: dict[str, int] = field(default_factory=dict)
    """Answers that were not tried, by reason: cut off, context full, other words, no change, said before."""
    best: int = 0
    """Which of `texts`, from 1, the alignment is of; 0 for the text itself."""


def restructured(texts: Sequence[str], llm: LLM, variants: int, cutter: Splitter) -> list[Restructured]:
    """For each text up to `variants` restructurings. They depend on the text and the model alone."""
    answers: dict[int, list[Draw] | ContextFull] = {}
    for tokens, members in _by_length(texts).items():
        sampling = Sampling(0.7, 0.95, 1.0, max_tokens=tokens, may_end=True)
        requests = (_request(texts[i], variants) for i in members)
        for place, _, answer in draw_all(llm, requests, sampling, lambda _: False):
            if isinstance(answer, Exception) and not isinstance(answer, ContextFull):
                raise answer  # a model that is gone would leave every text to come as it is
            answers[members[place]] = answer
    return [_kept(text, answers[i], llm, variants, cutter) for i, text in enumerate(texts)]


def _by_length(texts: Sequence[str]) -> dict[int, list[int]]:
    """Places of texts, by the tokens that their answers may have."""
    groups: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        # Three bytes a token is on the safe side for prose, and a power of two makes few groups.
        groups.setdefault(2 ** max(7, (len(text.encode("utf-8", "replace")) // 3).bit_length()), []).append(i)
    return groups


def _request(text: str, count: int) -> Request:
    seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big")
    return Request("", count, seed, messages=(Message("user", PROMPT.format(text=text)),))


def _kept(text: str, answer: list[Draw] | ContextFull, llm: LLM, variants: int, cutter: Splitter) -> Restructured:
    if isinstance(answer, ContextFull):
        return Restructured(llm.name, (), {"context full": variants})
    own = cutter.units(text)
    seen: dict[tuple[str, ...], str] = {}
    dropped: Counter[str] = Counter()
    for draw in answer:
        said = _without_preface(draw.text, text)
        units = tuple(cutter.units(said))
        if draw.ended == "length":
            dropped["unfinished"] += 1
        elif not units or words_in_common(said, text) < KEPT_WORDS:
            dropped["other words"] += 1
        elif list(units) == own:
            dropped["unchanged"] += 1
        elif units in seen:
            dropped["repeat"] += 1
        else:
            seen[units] = said
    return Restructured(llm.name, tuple(seen.values()), dict(dropped))


def _without_preface(answer: str, text: str) -> str:
    """Without a first line such as "Here is the restored text:"."""
    first, line_break, rest = answer.strip().partition("\n")
    return rest.strip() if line_break and first.rstrip("* ").endswith(":") and first not in text else answer.strip()


def words_in_common(one: str, other: str) -> float:
    """The share of the longer text's words that both have, each as often as both have it."""
    counts = [Counter(_WORD.findall(text.lower())) for text in (one, other)]
    return (counts[0] & counts[1]).total() / max(1, *(count.total() for count in counts))
