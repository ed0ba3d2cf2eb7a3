"""The batch changes no text on real engines either, where they are deterministic."""

from __future__ import annotations

import pytest

from alimark import Generation, Key
from alimark.generate import GenerationSettings, Prompt, generate_many
from alimark.llm.base import LLM, Sampling
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()
KEY = Key(bytes(range(32)), embedder="stand-in", fingerprint=EMBEDDER.fingerprint)
PROMPTS = [
    Prompt("The council met on Monday.", 1),
    Prompt("A storm came over the sea in the night and broke the wall of the harbour.", 2),
    Prompt("Bread begins with patience.", 3),
]


def texts(llm: LLM, batch: int) -> list[str]:
    settings = GenerationSettings(2, 3, Sampling(max_tokens=32))
    made = dict(generate_many(PROMPTS, KEY, EMBEDDER, llm, settings, batch=batch))
    return [one.text for _, one in sorted(made.items()) if isinstance(one, Generation)]


def test_on_a_tiny_model(tiny: LLM) -> None:
    assert texts(tiny, 1) == texts(tiny, 2) == texts(tiny, 3)


@pytest.mark.weights
@pytest.mark.parametrize("engine", ["real_transformers", "llama_cpp"])
def test_on_real_weights(engine: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(engine)
    alone = texts(llm, 1)
    assert len(alone) == 3
    assert texts(llm, 3) == alone
