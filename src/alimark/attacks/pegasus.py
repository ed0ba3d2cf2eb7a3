"""Pegasus, fine-tuned to paraphrase sentences."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from alimark.attacks._seq2seq import Network, one_line, writer
from alimark.attacks.base import SentenceAttack
from alimark.attacks.settings import PegasusSettings
from alimark.errors import AttackError

_ANSWERS = 3  # of a sentence: where the checks do not pass the best beam, the next one's turn comes

_sampling = threading.Lock()  # the sampler of beams knows one source of random numbers only, the process's


@dataclass(frozen=True)
class Pegasus(PegasusSettings, SentenceAttack):
    """Have Pegasus paraphrase the text, sentence by sentence.

    The likeliest of its beams that is a paraphrase is taken. With --sample they are a function of
    the sentence and the settings: there is no other seed.
    """

    name: ClassVar[str] = "pegasus"

    def __post_init__(self) -> None:
        if min(self.beams, self.max_tokens, self.batch) < 1:
            raise AttackError("beams, max_tokens and batch are at least 1")
        if self.temperature <= 0:
            raise AttackError(f"a temperature is above 0, not {self.temperature}")

    @cached_property
    def _network(self) -> Network:
        return writer(self.model, self.device)

    def answers(self, sentences: Sequence[str]) -> list[list[str]]:
        texts = [one_line(sentence) for sentence in sentences]
        return [self._sampled(text) for text in texts] if self.sample else self._searched(texts)

    def _searched(self, texts: Sequence[str], **options: Any) -> list[list[str]]:
        import torch

        count = min(self.beams, _ANSWERS)
        network = self._network
        with torch.inference_mode():
            rows = network.model.generate(
                **network.encode(texts, self.max_tokens),
                num_beams=self.beams,
                num_return_sequences=count,
                max_new_tokens=self.max_tokens,
                **({"do_sample": False} | options),
            )
        said = network.decode(rows)
        return [said[i : i + count] for i in range(0, len(said), count)]

    def _sampled(self, text: str) -> list[str]:
        """Alone, since in a batch the random numbers of one sentence would depend on the others."""
        import torch

        devices = [self._network.device] if self._network.device.type == "cuda" else []
        with _sampling, torch.random.fork_rng(devices):
            torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))
            return self._searched([text], do_sample=True, temperature=self.temperature, top_k=0)[0]
