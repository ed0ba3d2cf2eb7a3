from __future__ import annotations

import sys
from pathlib import Path

import pytest

from alimark.core import llm
from alimark.errors import LLMError, MissingExtra, ModelError


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
