"""Paraphrasers of single sentences: Pegasus, and Parrot, a T5 whose paraphrases two classifiers filter."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from string import punctuation
from typing import Any, ClassVar

import numpy as np

from alimark.errors import AttackError
from alimark.lab.attacks import base
from alimark.lab.attacks._beams import diverse_beams
from alimark.lab.attacks._seq2seq import CLASSIFIER, Network, NetworkAttack, load_network, one_line

_ANSWERS = 3  # beams of a sentence: the first that passes the checks is used

_sampling = threading.Lock()  # sampling in `generate` uses the random state of the process


@dataclass(frozen=True)
class Pegasus(NetworkAttack, base.SentenceAttack):
    """Have Pegasus paraphrase the text, sentence by sentence.

    The most probable of its beams that passes the checks is used. The result depends
    on the sentence and the settings only, with --sample too: the seed is not used.

    With --preset paper, beams are sampled at temperature 2, and the first is used
    whatever it says.
    """

    name: ClassVar[str] = "pegasus"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"sample": True, "temperature": 2.0, "top_k": 50, "repetition_penalty": 1.03}
    }
    model: str = base.setting("tuner007/pegasus_paraphrase", "Pegasus, fine-tuned to paraphrase: a hub id or a folder.")
    beams: int = base.setting(10, "The number of beams.")
    max_tokens: int = base.max_tokens_setting(60, "of a sentence, before and after")
    temperature: float = base.setting(
        2.0,
        "The paper's value is 2. It has an effect with --sample only: beam search without sampling does not use it.",
    )
    sample: bool = base.setting(False, "Sample along the beams instead of taking the most probable tokens.")
    batch: int = base.batch_setting(16)
    device: str = base.device_setting()
    top_k: int = base.setting(0, "With --sample: the number of most probable tokens that are sampled from; 0 for all.")
    repetition_penalty: float = base.setting(
        1.0, "Divides the probability of tokens that were used before; 1 is no penalty."
    )
    preset: str = base.preset_setting()

    def __post_init__(self) -> None:
        if min(self.beams, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, max_tokens and batch must be at least 1")
        if not 0 < self.temperature < inf:  # true for nan, too
            raise AttackError(f"the temperature must be above 0 and finite, not {self.temperature}")
        if not 0 < self.repetition_penalty < inf:
            raise AttackError(f"the repetition penalty must be above 0 and finite, not {self.repetition_penalty}")
        if self.top_k < 0:
            raise AttackError(f"top_k must be at least 0, not {self.top_k}")

    @cached_property
    def _network(self) -> Network:
        return load_network(self.model, self.device)

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence) for sentence in sentences]
        rows = [self._sampled(text) for text in texts] if self.sample else self._searched(texts)
        return [[well_formed(text) for text in row] for row in rows] if self.follows_public_code else rows

    def _searched(self, texts: list[str], **options: Any) -> list[list[str]]:
        count = min(self.beams, _ANSWERS)
        if self.repetition_penalty != 1:
            options["repetition_penalty"] = self.repetition_penalty
        rows = self._network.generate(
            texts, self.max_tokens, num_beams=self.beams, num_return_sequences=count, max_new_tokens=self.max_tokens,
            **({"do_sample": False} | options),
        )  # fmt: skip
        answers = self._network.decode(rows)
        return [answers[i : i + count] for i in range(0, len(answers), count)]

    def _sampled(self, text: str) -> list[str]:
        """Samples for a single text: in a batch its random numbers would depend on the other texts."""
        import torch

        devices = [self._network.device] if self._network.device.type == "cuda" else []
        with _sampling, torch.random.fork_rng(devices):
            torch.manual_seed(base.hashed_seed(text))
            return self._searched([text], do_sample=True, temperature=self.temperature, top_k=self.top_k)[0]


# Parrot

_TASK = "paraphrase: "
_FLUENCY_TASK = "Sentence: "  # the prefix in the training of the fluency model

_CLASSIFIER_BATCH = 32

# What the parrot library removes from a sentence before the model reads it, and from what the model wrote.
_NOT_READ = re.compile(r"[^a-zA-Z0-9 ?'\-/:.]")
_NOT_WRITTEN = re.compile(r"[^a-zA-Z0-9 ?'\-]")
_LONGEST_INPUT = 512

_Pairs = list[tuple[int, str]]  # paraphrases, each with the number of its sentence


@dataclass(frozen=True)
class Parrot(NetworkAttack, base.SentenceAttack):
    """Have Parrot paraphrase the text, sentence by sentence.

    Diverse beam search writes several paraphrases of a sentence. Of those that keep
    the meaning and are fluent, the one that differs most is used.

    With --preset paper, paraphrases are in lower case and without most punctuation,
    and where none keeps the meaning or is fluent, one of the others is used.
    """

    name: ClassVar[str] = "parrot"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"max_tokens": 92}}
    model: str = base.setting("prithivida/parrot_paraphraser_on_T5", "Parrot's T5: a hub id or a folder.")
    adequacy_model: str = base.setting(
        "prithivida/parrot_adequacy_model", "The model that estimates whether a paraphrase keeps the meaning."
    )
    fluency_model: str = base.setting(
        "prithivida/parrot_fluency_model", "The model that estimates whether a paraphrase is fluent."
    )
    adequacy: float = base.setting(0.8, "The minimum probability that a paraphrase keeps the meaning.")
    fluency: float = base.setting(0.8, "The minimum probability that a paraphrase is fluent.")
    beams: int = base.setting(10, "The number of beams, and of paraphrases to choose from.")
    groups: int = base.setting(2, "The number of groups of beams (diverse beam search).")
    diversity_penalty: float = base.setting(
        2.0, "What is subtracted from a token's score for each beam of an earlier group that chose it at this position."
    )
    max_tokens: int = base.max_tokens_setting(128, "of a sentence")
    batch: int = base.batch_setting(8)
    device: str = base.device_setting()
    preset: str = base.preset_setting()

    def __post_init__(self) -> None:
        if min(self.beams, self.groups, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, groups, max_tokens and batch must be at least 1")
        if self.beams % self.groups:
            raise AttackError(f"{self.beams} beams cannot be divided into {self.groups} groups of the same size")
        if not (0 <= self.adequacy <= 1 and 0 <= self.fluency <= 1):
            raise AttackError("adequacy and fluency are probabilities and must lie between 0 and 1")
        if not 0 <= self.diversity_penalty < inf:  # true for nan, too
            raise AttackError(f"the diversity penalty must be at least 0 and finite, not {self.diversity_penalty}")

    @cached_property
    def _paraphraser(self) -> Network:
        return load_network(self.model, self.device)

    @cached_property
    def _adequacy(self) -> Network:
        return load_network(self.adequacy_model, self.device, CLASSIFIER)

    @cached_property
    def _fluency(self) -> Network:
        return load_network(self.fluency_model, self.device, CLASSIFIER)

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
            network.model, batch["input_ids"], batch["attention_mask"], beams=self.beams, groups=self.groups,
            penalty=self.diversity_penalty, max_tokens=self.max_tokens,
        )  # fmt: skip
        return [network.decode([list(beam.tokens) for beam in row]) for row in beams]

    def _adequate(self, texts: Sequence[str], pairs: _Pairs) -> _Pairs:
        network = self._adequacy
        originals, paraphrases = [texts[i] for i, _ in pairs], [text for _, text in pairs]
        # The public code leaves the neutral label of three out of the probabilities.
        leave_out = 1 if self.follows_public_code and len(network.model.config.id2label) == 3 else None
        probabilities = _probabilities(network, _entailment(network), originals, paraphrases, leave_out)
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
    network: Network, label: int, texts: list[str], pairs: list[str] | None = None, leave_out: int | None = None
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


# What the public code does to answers

_REPEATED_MARK = re.compile(rf"([{re.escape(punctuation.replace('.', ''))}])\1+")


def well_formed(sentence: str, *, full_stop: bool = False) -> str:
    """A paraphrase with a capital letter at its start, a capital "I", and without repeated punctuation marks.

    With `full_stop`, one is added where there is no mark at the end.

    Example:
        >>> well_formed("so i went home,, and  slept", full_stop=True)
        'So I went home, and slept.'
    """
    text = " ".join(sentence.split())
    text = (text[:1].upper() + text[1:]).replace(" i ", " I ")
    if full_stop and text and text[-1] not in "!.?":
        text += "."
    return _REPEATED_MARK.sub(r"\1", text)
