from __future__ import annotations

import numpy as np
import pytest

from alimark.core.frozen.text.splitting import splitter
from alimark.core.llm.base import LLM, Draw, Request, Sampling
from alimark.errors import ContextFull
from alimark.testing import StandInEmbedder, StandInLLM

over = splitter().first_sentence_over


def _draw(llm: LLM, context: str = "It began.", count: int = 64) -> list[Draw]:
    [draws] = llm.draw([Request(context, count, 1)], Sampling(), over)
    return draws


def test_candidates_are_mostly_distinct_and_vectors_spread() -> None:
    texts = [draw.text for draw in _draw(StandInLLM())]
    assert len(set(texts)) > 60
    vectors = StandInEmbedder().embed(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    bits = vectors @ np.random.default_rng(0).normal(size=(64, 8)) > 0
    assert 0.2 < bits.mean() < 0.8
    assert len({row.tobytes() for row in bits}) > 20


def test_an_embedder_knows_itself_and_like_from_unlike() -> None:
    embedder = StandInEmbedder(32)
    near, same, far = embedder.embed(["The old man sold a horse.", "An old man sold the horse!", "Tax law is dull."])
    assert near @ same > near @ far + 0.2
    assert embedder.embed([]).shape == (0, 32)
    assert np.isfinite(embedder.embed(["", "…"])).all()
    assert embedder.fingerprint == StandInEmbedder(32).fingerprint != StandInEmbedder(64).fingerprint


def test_text_holds_abbreviations_and_quotes() -> None:
    text = " ".join(draw.text for draw in _draw(StandInLLM(), count=200))
    assert "Dr. Smith" in text
    assert '"' in text


def test_misbehaviour() -> None:
    assert {draw.ended for draw in _draw(StandInLLM(endless=True), count=4)} == {"length"}
    assert {draw.tokens for draw in _draw(StandInLLM(endless=True), count=4)} == {128}
    assert {draw.text for draw in _draw(StandInLLM(ends_after=2), "One. Two.")} == {""}
    assert all(draw.text.strip() for draw in _draw(StandInLLM(ends_after=2), "One."))
    assert 10 < sum(not draw.text.strip() for draw in _draw(StandInLLM(blanks=0.5))) < 54
    assert len({draw.text for draw in _draw(StandInLLM(repeats=1.0))}) == 1
    with pytest.raises(ContextFull):
        _draw(StandInLLM(context_characters=5))
    llm = StandInLLM(interrupt_at=2)
    _draw(llm)
    with pytest.raises(KeyboardInterrupt):
        _draw(llm)
