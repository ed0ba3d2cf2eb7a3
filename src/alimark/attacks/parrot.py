"""Parrot: a T5 that paraphrases, and two models that judge what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from alimark.attacks._beams import diverse_beams
from alimark.attacks._seq2seq import Network, judge, one_line, writer
from alimark.attacks.base import SentenceAttack
from alimark.attacks.settings import ParrotSettings
from alimark.errors import AttackError

_TASK = "paraphrase: "
_FLUENCY_TASK = "Sentence: "  # as the fluency model was trained

_JUDGED_TOGETHER = 32


@dataclass(frozen=True)
class Parrot(ParrotSettings, SentenceAttack):
    """Have Parrot paraphrase the text, sentence by sentence.

    Of a sentence's diverse beams that say the same and read well, the one that differs most is taken.
    """

    name: ClassVar[str] = "parrot"

    def __post_init__(self) -> None:
        if min(self.beams, self.groups, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, groups, max_tokens and batch are at least 1")
        if self.beams % self.groups:
            raise AttackError(f"{self.beams} beams cannot be divided into {self.groups} groups of one size")
        if not (0 <= self.adequacy <= 1 and 0 <= self.fluency <= 1):
            raise AttackError("adequacy and fluency are probabilities, from 0 to 1")
        if self.diversity_penalty < 0:
            raise AttackError("a diversity penalty is not below 0")

    @cached_property
    def _writer(self) -> Network:
        return writer(self.model, self.device)

    @cached_property
    def _adequacy(self) -> Network:
        return judge(self.adequacy_model, self.device)

    @cached_property
    def _fluency(self) -> Network:
        return judge(self.fluency_model, self.device)

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence) for sentence in sentences]
        pairs = [(i, said) for i, row in enumerate(self._beams(texts)) for said in _new(row, texts[i])]
        pairs = self._adequate(texts, pairs)
        pairs = self._fluent(pairs)
        pairs.sort(key=lambda pair: -difference(texts[pair[0]], pair[1]))
        return [[said for of, said in pairs if of == i] for i in range(len(texts))]

    def _beams(self, texts: Sequence[str]) -> list[list[str]]:
        network = self._writer
        read = network.encode([_TASK + text for text in texts], self.max_tokens)
        found = diverse_beams(
            network.model,
            read["input_ids"],
            read["attention_mask"],
            beams=self.beams,
            groups=self.groups,
            penalty=self.diversity_penalty,
            max_tokens=self.max_tokens,
        )
        return [network.decode([list(beam.tokens) for beam in row]) for row in found]

    def _adequate(self, texts: Sequence[str], pairs: list[tuple[int, str]]) -> list[tuple[int, str]]:
        network = self._adequacy
        first, second = [texts[i] for i, _ in pairs], [said for _, said in pairs]
        chances = _chances(network, _entailment(network), first, second)
        return [pair for pair, chance in zip(pairs, chances, strict=True) if chance >= self.adequacy]

    def _fluent(self, pairs: list[tuple[int, str]]) -> list[tuple[int, str]]:
        chances = _chances(self._fluency, 1, [_FLUENCY_TASK + said for _, said in pairs])
        return [pair for pair, chance in zip(pairs, chances, strict=True) if chance >= self.fluency]


def difference(text: str, other: str) -> float:
    """The Levenshtein distance of two texts, small letters and capitals alike, as a share of the longer one's length."""
    a, b = (np.array([ord(c) for c in one.casefold()], dtype=np.int64) for one in (text, other))
    if not len(a) or not len(b):
        return float(len(a) != len(b))
    columns = np.arange(len(b) + 1)
    row = columns.copy()
    for sign in a:
        above = row + 1
        above[1:] = np.minimum(above[1:], row[:-1] + (b != sign))
        # A run of insertions costs one a column: the least of all its beginnings, with the columns taken off.
        row = np.minimum.accumulate(above - columns) + columns
    return float(row[-1]) / max(len(a), len(b))


def _new(row: Sequence[str], sentence: str) -> list[str]:
    """Each once, and none that is the sentence."""
    found: dict[str, str] = {}
    for said in row:
        found.setdefault(said.casefold(), said)
    return [said for known, said in found.items() if known not in {"", sentence.casefold()}]


def _entailment(network: Network) -> int:
    """The label that means it, by its name; models without names have it last."""
    names: dict[int, str] = network.model.config.id2label
    return next((int(i) for i, name in names.items() if str(name).lower() == "entailment"), len(names) - 1)


def _chances(network: Network, label: int, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[float]:
    """The probability of a label for each text, or pair of texts."""
    import torch

    room = getattr(network.model.config, "max_position_embeddings", 514) - 2  # RoBERTa counts its places from 2
    limit = min(network.tokenizer.model_max_length, room)
    found: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(texts), _JUDGED_TOGETHER):
            part = slice(start, start + _JUDGED_TOGETHER)
            read = network.encode(texts[part], limit, None if pairs is None else pairs[part])
            found += network.model(**read).logits.float().softmax(-1)[:, label].tolist()
    return found
