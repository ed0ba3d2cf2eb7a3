"""Fixtures of the tests of the command line: commands on stand-in models, a key file and a marked text."""

from pathlib import Path

import pytest

from alimark import Key
from alimark.core.generation.api import GenerationSettings
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from fixed_texts import generate

EMBEDDER = StandInEmbedder()


@pytest.fixture
def run(command: Run, stand_in_models: None) -> Run:
    """Runs a command on the stand-in models."""
    return command


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32))).save(path)  # the same in every run
    return path


@pytest.fixture
def marked_file(tmp_path: Path, key_file: Path) -> Path:
    marked = generate("A story.", Key.load(key_file), EMBEDDER, StandInLLM(), GenerationSettings(12, 64), seed=1)
    path = tmp_path / "marked.txt"
    path.write_text(marked.text, "utf-8")
    return path
