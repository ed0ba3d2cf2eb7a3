"""Fixed keys of the stand-in embedder, and texts of the stand-in model that are marked with them or not."""

from __future__ import annotations

from alimark import Key
from alimark.core.generation.api import GenerationSettings
from alimark.testing import StandInEmbedder, StandInLLM
from single_text import generate

EMBEDDER = StandInEmbedder()


def fixed_key(number: int) -> Key:
    """A hard key, the same in every run: a random key is found in unmarked text as often as the rate says."""
    return Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes([number, *range(1, 32)]))


def soft_key(number: int, m: int = 32) -> Key:
    """A soft key, the same in every run."""
    secret = bytes([number, *range(1, 32)])
    return Key.generate(secret=secret, decision="soft", block_size=m, embedder=EMBEDDER)


def written(key: Key | None, sentences: int = 12, seed: int = 5, candidates: int = 64) -> list[str]:
    """The sentences of a text that is marked with the key, or of an unmarked text where there is none."""
    settings = GenerationSettings(sentences, candidates)
    return list(generate("A long story.", key, EMBEDDER, StandInLLM(), settings, seed=seed).sentences)


def unmarked(sentences: int, seed: int) -> list[str]:
    """A text under a key that no test detects with, from one candidate per sentence."""
    return written(fixed_key(250), sentences, seed, candidates=1)
