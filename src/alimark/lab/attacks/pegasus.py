"""Pegasus, a model fine-tuned to paraphrase sentences."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar

from alimark.errors import AttackError
from alimark.lab.attacks._public import well_formed
from alimark.lab.attacks._seq2seq import LIBRARIES, Network, load_seq2seq, one_line
from alimark.lab.attacks.base import PAPER_PRESET, SentenceAttack, apply_preset
from alimark.lab.attacks.settings import PegasusSettings

_ANSWERS = 3  # beams of a sentence: the first that passes the checks is used

_sampling = threading.Lock()  # sampling in `generate` uses the random state of the process


@dataclass(frozen=True)
class Pegasus(PegasusSettings, SentenceAttack):
    """Have Pegasus paraphrase the text, sentence by sentence.

    The most probable of its beams that passes the checks is used. The result depends
    on the sentence and the settings only, with --sample too: the seed is not used.

    With --preset paper, beams are sampled at temperature 2, and the first is used
    whatever it says.
    """

    name: ClassVar[str] = "pegasus"
    presets = MappingProxyType(
        {PAPER_PRESET: {"sample": True, "temperature": 2.0, "top_k": 50, "repetition_penalty": 1.03}}
    )

    def __post_init__(self) -> None:
        apply_preset(self)
        if min(self.beams, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, max_tokens and batch must be at least 1")
        if not 0 < self.temperature < inf:  # true for nan, too
            raise AttackError(f"the temperature must be above 0 and finite, not {self.temperature}")
        if not 0 < self.repetition_penalty < inf:
            raise AttackError(f"the repetition penalty must be above 0 and finite, not {self.repetition_penalty}")
        if self.top_k < 0:
            raise AttackError(f"top_k must be at least 0, not {self.top_k}")

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,)

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        return LIBRARIES

    @cached_property
    def _network(self) -> Network:
        return load_seq2seq(self.model, self.device)

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence) for sentence in sentences]
        rows = [self._sampled(text) for text in texts] if self.sample else self._searched(texts)
        return [[well_formed(text) for text in row] for row in rows] if self.follows_public_code else rows

    def _searched(self, texts: Sequence[str], **options: Any) -> list[list[str]]:
        import torch

        count = min(self.beams, _ANSWERS)
        network = self._network
        if self.repetition_penalty != 1:
            options["repetition_penalty"] = self.repetition_penalty
        with torch.inference_mode():
            rows = network.model.generate(
                **network.encode(texts, self.max_tokens),
                num_beams=self.beams,
                num_return_sequences=count,
                max_new_tokens=self.max_tokens,
                **({"do_sample": False} | options),
            )
        answers = network.decode(rows)
        return [answers[i : i + count] for i in range(0, len(answers), count)]

    def _sampled(self, text: str) -> list[str]:
        """Samples for a single text: in a batch its random numbers would depend on the other texts."""
        import torch

        devices = [self._network.device] if self._network.device.type == "cuda" else []
        with _sampling, torch.random.fork_rng(devices):
            torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))
            return self._searched([text], do_sample=True, temperature=self.temperature, top_k=self.top_k)[0]
