"""Parrot: a T5 that paraphrases, and two classifiers that filter its paraphrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from alimark.attacks._beams import diverse_beams
from alimark.attacks._seq2seq import LIBRARIES, Network, load_classifier, load_seq2seq, one_line
from alimark.attacks.base import SentenceAttack
from alimark.attacks.settings import ParrotSettings
from alimark.errors import AttackError

_TASK = "paraphrase: "
_FLUENCY_TASK = "Sentence: "  # the prefix in the training of the fluency model

_CLASSIFIER_BATCH = 32


@dataclass(frozen=True)
class Parrot(ParrotSettings, SentenceAttack):
    """Have Parrot paraphrase the text, sentence by sentence.

    Diverse beam search writes several paraphrases of a sentence. Of those that keep
    the meaning and are fluent, the one that differs most is used.
    """

    name: ClassVar[str] = "parrot"

    def __post_init__(self) -> None:
        if min(self.beams, self.groups, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, groups, max_tokens and batch must be at least 1")
        if self.beams % self.groups:
            raise AttackError(f"{self.beams} beams cannot be divided into {self.groups} groups of the same size")
        if not (0 <= self.adequacy <= 1 and 0 <= self.fluency <= 1):
            raise AttackError("adequacy and fluency are probabilities and must lie between 0 and 1")
        if self.diversity_penalty < 0:
            raise AttackError(f"the diversity penalty must be at least 0, not {self.diversity_penalty}")

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
        pairs = [(i, text) for i, beams in enumerate(self._beams(texts)) for text in _different(beams, texts[i])]
        pairs = self._adequate(texts, pairs)
        pairs = self._fluent(pairs)
        pairs.sort(key=lambda pair: -edit_distance(texts[pair[0]], pair[1]))
        return [[text for index, text in pairs if index == i] for i in range(len(texts))]

    def _beams(self, texts: Sequence[str]) -> list[list[str]]:
        network = self._paraphraser
        batch = network.encode([_TASK + text for text in texts], self.max_tokens)
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

    def _adequate(self, texts: Sequence[str], pairs: list[tuple[int, str]]) -> list[tuple[int, str]]:
        network = self._adequacy
        originals, paraphrases = [texts[i] for i, _ in pairs], [text for _, text in pairs]
        probabilities = _probabilities(network, _entailment(network), originals, paraphrases)
        return [pair for pair, probability in zip(pairs, probabilities, strict=True) if probability >= self.adequacy]

    def _fluent(self, pairs: list[tuple[int, str]]) -> list[tuple[int, str]]:
        probabilities = _probabilities(self._fluency, 1, [_FLUENCY_TASK + text for _, text in pairs])
        return [pair for pair, probability in zip(pairs, probabilities, strict=True) if probability >= self.fluency]


def edit_distance(text: str, other: str) -> float:
    """The Levenshtein distance of two texts without regard to case, as a share of the length of the longer one."""
    a, b = (np.array([ord(c) for c in side.casefold()], dtype=np.int64) for side in (text, other))
    if not len(a) or not len(b):
        return float(len(a) != len(b))
    columns = np.arange(len(b) + 1)
    row = columns.copy()
    for character in a:
        costs = row + 1
        costs[1:] = np.minimum(costs[1:], row[:-1] + (b != character))
        # Insertions cost 1 for each column: the minimum over the column where a run of them begins.
        row = np.minimum.accumulate(costs - columns) + columns
    return float(row[-1]) / max(len(a), len(b))


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
    network: Network, label: int, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> list[float]:
    """The probability of a label for each text, or for each pair of texts."""
    import torch

    positions = getattr(network.model.config, "max_position_embeddings", 514) - 2  # RoBERTa counts positions from 2
    limit = min(network.tokenizer.model_max_length, positions)
    probabilities: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(texts), _CLASSIFIER_BATCH):
            part = slice(start, start + _CLASSIFIER_BATCH)
            batch = network.encode(texts[part], limit, None if pairs is None else pairs[part])
            probabilities += network.model(**batch).logits.float().softmax(-1)[:, label].tolist()
    return probabilities
