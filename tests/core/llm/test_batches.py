"""The batch changes no text on real engines either, where they are deterministic."""

from __future__ import annotations

import pytest

from alimark import Generation, Key
from alimark.core.generation.api import GenerationSettings, Prompt, generate_many
from alimark.core.llm.base import LLM, Sampling
from alimark.core.schemes.registry import rule_for
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32)))
PROMPTS = [
    Prompt("The council met on Monday.", 1),
    Prompt("A storm came over the sea in the night and broke the wall of the harbour.", 2),
    Prompt("Bread begins with patience.", 3),
]


def texts(llm: LLM, batch: int, prompts: list[Prompt], tokens: int) -> list[str]:
    settings = GenerationSettings(2, 2, Sampling(max_tokens=tokens))
    made = dict(generate_many(prompts, KEY, EMBEDDER, llm, settings, rule=rule_for, batch=batch))
    return [one.text for _, one in sorted(made.items()) if isinstance(one, Generation)]


@pytest.mark.weights
@pytest.mark.parametrize("engine", ["real_transformers", "llama_cpp"])
def test_on_real_weights(engine: str, request: pytest.FixtureRequest) -> None:
    """Two texts of two short sentences: every step costs as much as reading all weights."""
    llm: LLM = request.getfixturevalue(engine)
    alone = texts(llm, 1, PROMPTS[:2], 12)
    assert len(alone) == 2
    assert texts(llm, 2, PROMPTS[:2], 12) == alone
