"""The stand-in model, and models that are loaded by their names."""

import sys
from pathlib import Path

import numpy as np
import pytest

from alimark.core import llm
from alimark.core.frozen.text.splitting import splitter
from alimark.core.llm.base import LLM, Draw, Request, Sampling
from alimark.errors import ContextFull, LLMError, MissingExtra, ModelError
from alimark.testing import StandInEmbedder, StandInLLM

over = splitter().first_sentence_over


def _draw(model: LLM, context: str = "It began.", count: int = 64) -> list[Draw]:
    [draws] = model.draw([Request(context, count, 1)], Sampling(), over)
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


def test_misbehaviour() -> None:
    assert {draw.ended for draw in _draw(StandInLLM(endless=True), count=4)} == {"length"}
    assert {draw.tokens for draw in _draw(StandInLLM(endless=True), count=4)} == {128}
    assert {draw.text for draw in _draw(StandInLLM(ends_after=2), "One. Two.")} == {""}
    assert all(draw.text.strip() for draw in _draw(StandInLLM(ends_after=2), "One."))
    assert 10 < sum(not draw.text.strip() for draw in _draw(StandInLLM(blanks=0.5))) < 54
    assert len({draw.text for draw in _draw(StandInLLM(repeats=1.0))}) == 1
    with pytest.raises(ContextFull):
        _draw(StandInLLM(context_characters=5))
    interrupted = StandInLLM(interrupt_at=2)
    _draw(interrupted)
    with pytest.raises(KeyboardInterrupt):
        _draw(interrupted)


def test_a_folder_runs_on_transformers(tiny_folder: Path) -> None:
    loaded = llm.load_llm(tiny_folder, name="mine")
    assert type(loaded).__name__ == "Transformers"
    assert loaded.name == "mine"
    assert llm.load_llm(f"transformers:{tiny_folder}").name == tiny_folder.name


def test_a_missing_engine_names_its_extra(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"alimark\[llama-cpp\]"):
        llm.load_llm("llama.cpp:smollm2-135m")
    with pytest.raises(MissingExtra, match=r"alimark\[transformers\]"):
        llm.load_llm(tiny_folder)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"alimark\[openai\]"):
        llm.load_llm("openai:http://localhost:1/v1")


def test_what_is_no_language_model_is_an_error() -> None:
    with pytest.raises(LLMError, match="not the address of a server"):
        llm.load_llm("openai:localhost")
    with pytest.raises(LLMError, match="embedder"):
        llm.load_llm("all-MiniLM-L6-v2")
    with pytest.raises(ModelError):
        llm.load_llm("no such model")
