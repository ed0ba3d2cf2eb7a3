"""Has a chat model rewrite texts so that given words occur in them: asks, checks the answers, and asks again."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from alimark.core.llm.base import LLM, Message, Request, Sampling, never
from alimark.core.llm.chat import Answer, draw_all
from alimark.core.rewriting.candidates import PREFACE, REFUSAL
from alimark.core.text.continuations import degenerate
from alimark.core.text.language import WORDS, looks_english
from alimark.errors import ContextFull, LLMError

WORDS_A_REQUEST = 10
"""Words that the model is asked to insert at a time, as in the public code: a longer list is followed less well."""
TRIES = 3
"""Answers that are asked for, for each group of words, as in the public code."""
ENOUGH = 0.5
"""The share of a group's words with which an answer is taken at once, as in the public code."""
LEAST_WORDS, MOST_WORDS = 0.7, 2.0
"""Limits of the words of an answer as a share of those of the text. A summary and a story around the text are no rewrite."""
LEAST_KEPT = 0.4
"""The least share of the text's distinct words of more than three letters that an answer keeps."""
_MAX_ERRORS_IN_A_ROW = 3
_SYSTEM = "You edit texts. You answer with the edited text and nothing else."
_PROMPT = (
    "Edit the text below so that every word of the list occurs in it. Use the words in the places where they fit, spread over "
    "the whole text, and change as little else as possible: keep the meaning, the order and about the length. Answer with the "
    "edited text only.\n\nText: {text}\n\nWords: {words}"
)
_LABEL = re.compile(r"\s*(?:edited |rewritten |revised )?text\s*:\s*", re.IGNORECASE)


@dataclass
class Insertion:
    """A text and the words that have to occur in it, with what has become of them so far.

    Attributes:
        text: The text so far.
        words: All words to insert.
        seed_name: What the seeds of the requests are derived from.
        inserted: The number of groups of words that were inserted.
        failed: For each group of words that could not be inserted, why the last answer could not be used.
        rejected: How many answers were not used, by reason.
        tokens: The tokens of all answers.
        requests: The number of requests.
    """

    text: str
    words: Sequence[str]
    seed_name: str
    inserted: int = 0
    failed: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    requests: int = 0
    _tries: int = 0
    _best: str = ""

    @property
    def _group(self) -> Sequence[str]:
        """The words that the model is asked to insert next."""
        start = (self.inserted + len(self.failed)) * WORDS_A_REQUEST
        return self.words[start : start + WORDS_A_REQUEST]

    @property
    def done(self) -> bool:
        return not self._group

    def request(self) -> Request:
        digest = hashlib.sha256(f"{self.seed_name}/{self.requests}".encode()).digest()
        content = _PROMPT.replace("{words}", ", ".join(self._group)).replace("{text}", self.text)
        messages = (Message("system", _SYSTEM), Message("user", content))
        return Request("", 1, int.from_bytes(digest[:6], "big"), messages=messages)

    def read(self, answer: Answer) -> None:
        """Takes an answer: the text changes, or the model is asked again, or the group of words has failed."""
        self.requests += 1
        self._tries += 1
        text, flaw = self._judged(answer)
        if flaw:
            self.rejected[flaw] += 1
        elif share_present(self._group, text) > share_present(self._group, self._best):
            self._best = text
        if (
            share_present(self._group, self._best) < ENOUGH
            and self._tries < TRIES
            and not isinstance(answer, ContextFull)
        ):
            return
        self._tries = 0
        if self._best:
            self.text, self._best, self.inserted = self._best, "", self.inserted + 1
        else:
            self.failed.append(flaw or "no word inserted")

    def _judged(self, answer: Answer) -> tuple[str, str]:
        """The text of an answer, and why it cannot be used; empty where it can."""
        if isinstance(answer, LLMError):
            return "", "does not fit the context" if isinstance(answer, ContextFull) else "error of the model"
        [draw] = answer
        self.tokens += draw.tokens
        text = without_label(draw.text)
        flaw = answer_flaw(text, self.text) or ("unfinished" if draw.ended == "length" else "")
        if not flaw and share_present(self._group, text) == 0:
            flaw = "no word inserted"
        return text, flaw


def insert_words(llm: LLM, insertions: Sequence[Insertion], *, max_tokens: int = 1024) -> None:
    """Asks the model until every insertion is done. The requests of all texts share the batches of the engine.

    Args:
        llm: A chat model.
        insertions: The texts and their words; each holds its result afterwards.
        max_tokens: The most tokens of an answer.

    Raises:
        LLMError: The model gave several errors in a row, so that it cannot be reached.
    """
    # The public code samples at temperature 0, with which a second try would be the first one again.
    sampling = Sampling(0.5, 0.95, 1.0, max_tokens, may_end=True)
    errors_in_a_row = 0
    last_error: LLMError | None = None
    while waiting := [insertion for insertion in insertions if not insertion.done]:
        requests = (insertion.request() for insertion in waiting)
        for number, _, answer in draw_all(llm, requests, sampling, never, single_draws=True):
            if not isinstance(answer, LLMError) or isinstance(answer, ContextFull):
                errors_in_a_row = 0
            elif answer is not last_error:  # one error may be the answer to all requests of a batch
                errors_in_a_row, last_error = errors_in_a_row + 1, answer
                if errors_in_a_row == _MAX_ERRORS_IN_A_ROW:
                    raise answer
            waiting[number].read(answer)


def without_label(answer: str) -> str:
    """The answer without a first line such as "Here is the edited text:", without a label, and without quotes around it."""
    text = answer.strip()
    first, _, rest = text.partition("\n")
    if rest.strip() and PREFACE.match(first) and first.rstrip("* ").endswith(":"):
        text = rest.strip()
    if label := _LABEL.match(text):
        text = text[label.end() :]
    if len(text) > 2 and text[0] in '"“' and text[-1] in '"”' and not re.search('["“”]', text[1:-1]):
        text = text[1:-1].strip()
    return text


def answer_flaw(answer: str, original: str) -> str:
    """Why an answer cannot take the place of a text; empty where it can."""
    words, before = words_of(answer), words_of(original)
    content = {word for word in before if len(word) > 3}
    flaws = {
        "empty": not words,
        "refusal": REFUSAL.search(answer) and not REFUSAL.search(original),
        "talks about the task": PREFACE.match(answer) and not PREFACE.match(original),
        "degenerate": degenerate(answer) and not degenerate(original),
        "language": looks_english(original) != looks_english(answer),
        "too short": len(words) < LEAST_WORDS * len(before),
        "too long": len(words) > MOST_WORDS * len(before) + WORDS_A_REQUEST,
        "another text": len(content & set(words)) < LEAST_KEPT * len(content),
    }
    return next((flaw for flaw, applies in flaws.items() if applies), "")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return WORDS.findall(text.lower())


def share_present(words: Sequence[str], text: str) -> float:
    """The share of the words that occur in the text in just this form."""
    known = set(words_of(text))
    return sum(word in known for word in words) / len(words) if words else 0.0
