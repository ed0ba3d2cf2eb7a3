"""Parrot: a T5 that paraphrases, and two classifiers that filter its paraphrases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from alimark.errors import AttackError
from alimark.lab.attacks._beams import diverse_beams
from alimark.lab.attacks._public import well_formed
from alimark.lab.attacks._seq2seq import LIBRARIES, Network, load_classifier, load_seq2seq, one_line
from alimark.lab.attacks.base import PAPER_PRESET, SentenceAttack, apply_preset
from alimark.lab.attacks.settings import ParrotSettings

_TASK = "paraphrase: "
_FLUENCY_TASK = "Sentence: "  # the prefix in the training of the fluency model

_CLASSIFIER_BATCH = 32

# What the parrot library removes from a sentence before the model reads it, and from what the model wrote.
_NOT_READ = re.compile(r"[^a-zA-Z0-9 ?'\-/:.]")
_NOT_WRITTEN = re.compile(r"[^a-zA-Z0-9 ?'\-]")
_LONGEST_INPUT = 512

_Pairs = list[tuple[int, str]]
"""Paraphrases, each with the number of its sentence."""


@dataclass(frozen=True)
class Parrot(ParrotSettings, SentenceAttack):
    """Have Parrot paraphrase the text, sentence by sentence.

    Diverse beam search writes several paraphrases of a sentence. Of those that keep
    the meaning and are fluent, the one that differs most is used.

    With --preset paper, paraphrases are in lower case and without most punctuation,
    and where none keeps the meaning or is fluent, one of the others is used.
    """

    name: ClassVar[str] = "parrot"
    presets = MappingProxyType({PAPER_PRESET: {"max_tokens": 92}})

    def __post_init__(self) -> None:
        apply_preset(self)
        if min(self.beams, self.groups, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, groups, max_tokens and batch must be at least 1")
        if self.beams % self.groups:
            raise AttackError(f"{self.beams} beams cannot be divided into {self.groups} groups of the same size")
        if not (0 <= self.adequacy <= 1 and 0 <= self.fluency <= 1):
            raise AttackError("adequacy and fluency are probabilities and must lie between 0 and 1")
        if not 0 <= self.diversity_penalty < inf:  # true for nan, too
            raise AttackError(f"the diversity penalty must be at least 0 and finite, not {self.diversity_penalty}")

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, self.adequacy_model, self.fluency_model)

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        return LIBRARIES

    @cached_property
    def _paraphraser(self) -> Network:
        return load_seq2seq(self.model, self.device)

    @cached_property
    def _adequacy(self) -> Network:
        return load_classifier(self.adequacy_model, self.device)

    @cached_property
    def _fluency(self) -> Network:
        return load_classifier(self.fluency_model, self.device)

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence) for sentence in sentences]
        if self.follows_public_code:
            return self._public_answers([_NOT_READ.sub("", text) for text in texts])
        pairs = [(i, text) for i, beams in enumerate(self._beams(texts)) for text in _different(beams, texts[i])]
        pairs = self._adequate(texts, pairs)
        pairs = self._fluent(pairs)
        pairs.sort(key=lambda pair: -edit_distance(texts[pair[0]], pair[1]))
        return [[text for index, text in pairs if index == i] for i in range(len(texts))]

    def _public_answers(self, texts: Sequence[str]) -> list[list[str]]:
        """The paraphrases as the paper's public code has them: a sentence always gets one.

        The classifier and the edit distance compare with the model's input, which begins with the task.
        """
        inputs = [_TASK + text for text in texts]
        pairs = [
            (i, text)
            for i, beams in enumerate(self._beams(texts))
            for text in dict.fromkeys(_NOT_WRITTEN.sub("", beam.lower()) for beam in beams)
        ]
        pairs = _or_all(self._adequate(inputs, pairs), pairs)
        pairs = _or_all(self._fluent(pairs), pairs)
        pairs.sort(key=lambda pair: -_levenshtein(inputs[pair[0]].lower(), pair[1]))
        return [[well_formed(text, full_stop=True) for index, text in pairs if index == i] for i in range(len(texts))]

    def _beams(self, texts: Sequence[str]) -> list[list[str]]:
        network = self._paraphraser
        limit = _LONGEST_INPUT if self.follows_public_code else self.max_tokens
        batch = network.encode([_TASK + text for text in texts], limit)
        beams = diverse_beams(
            network.model,
            batch["input_ids"],
            batch["attention_mask"],
            beams=self.beams,
            groups=self.groups,
            penalty=self.diversity_penalty,
            max_tokens=self.max_tokens,
        )
        return [network.decode([list(beam.tokens) for beam in row]) for row in beams]

    def _adequate(self, texts: Sequence[str], pairs: _Pairs) -> _Pairs:
        network = self._adequacy
        originals, paraphrases = [texts[i] for i, _ in pairs], [text for _, text in pairs]
        # The public code leaves the neutral label of three out of the probabilities.
        leave_out = 1 if self.follows_public_code and len(network.model.config.id2label) == 3 else None
        probabilities = _probabilities(network, _entailment(network), originals, paraphrases, leave_out=leave_out)
        return [pair for pair, probability in zip(pairs, probabilities, strict=True) if probability >= self.adequacy]

    def _fluent(self, pairs: _Pairs) -> _Pairs:
        probabilities = _probabilities(self._fluency, 1, [_FLUENCY_TASK + text for _, text in pairs])
        return [pair for pair, probability in zip(pairs, probabilities, strict=True) if probability >= self.fluency]


def _or_all(passing: _Pairs, pairs: _Pairs) -> _Pairs:
    """The paraphrases that pass, and all paraphrases of the sentences of which none passes."""
    with_some = {index for index, _ in passing}
    return [*passing, *(pair for pair in pairs if pair[0] not in with_some)]


def edit_distance(text: str, other: str) -> float:
    """The Levenshtein distance of two texts without regard to case, as a share of the length of the longer one."""
    sides = text.casefold(), other.casefold()
    return _levenshtein(*sides) / max(1, *map(len, sides))


def _levenshtein(text: str, other: str) -> int:
    """The fewest characters to insert, delete or replace to make one text from the other."""
    # The loop is over the shorter text, since a sentence may be any length and a paraphrase has a maximum.
    a, b = (np.array([ord(c) for c in side], dtype=np.int64) for side in sorted((text, other), key=len))
    if not len(a) or not len(b):
        return max(len(a), len(b))
    columns = np.arange(len(b) + 1)
    row = columns.copy()
    for character in a:
        costs = row + 1
        costs[1:] = np.minimum(costs[1:], row[:-1] + (b != character))
        # Insertions cost 1 for each column: the minimum over the column where a run of them begins.
        row = np.minimum.accumulate(costs - columns) + columns
    return int(row[-1])


def _different(paraphrases: Sequence[str], sentence: str) -> list[str]:
    """The paraphrases without duplicates and without the sentence itself, without regard to case."""
    texts: dict[str, str] = {}
    for text in paraphrases:
        texts.setdefault(text.casefold(), text)
    return [text for folded, text in texts.items() if folded not in {"", sentence.casefold()}]


def _entailment(network: Network) -> int:
    """The index of the label for entailment; in models without names of labels it is the last one."""
    names: dict[int, str] = network.model.config.id2label
    return next((int(i) for i, name in names.items() if str(name).lower() == "entailment"), len(names) - 1)


def _probabilities(
    network: Network,
    label: int,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    leave_out: int | None = None,
) -> list[float]:
    """The probability of a label for each text, or for each pair of texts, among all labels but `leave_out`."""
    import torch

    positions = getattr(network.model.config, "max_position_embeddings", 514) - 2  # RoBERTa counts positions from 2
    limit = min(network.tokenizer.model_max_length, positions)
    probabilities: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(texts), _CLASSIFIER_BATCH):
            part = slice(start, start + _CLASSIFIER_BATCH)
            batch = network.encode(texts[part], limit, None if pairs is None else pairs[part])
            logits = network.model(**batch).logits.float()
            if leave_out is not None:
                logits[:, leave_out] = -torch.inf
            probabilities += logits.softmax(-1)[:, label].tolist()
    return probabilities
