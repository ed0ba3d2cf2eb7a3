"""A tiny random language model on transformers, for tests of token-level watermarks."""

from pathlib import Path
from typing import Any

import pytest
import token_models

from alimark.core.llm import load_llm


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-tokens")
    token_models.save_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def llm(folder: Path) -> Any:
    return load_llm(folder)
