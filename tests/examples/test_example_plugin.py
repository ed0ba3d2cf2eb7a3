"""The package in `examples/plugin`, built and installed by pip: each of its four plugins is used through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from alimark import Key
from commands import Run

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture
def installed(install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path that pip installed the package into."""
    pytest.importorskip("hatchling")
    target = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", target, PLUGIN],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(str(target))
    return target


def test_each_plugin_is_used_through_the_command_line(installed: Path, tmp_path: Path, command: Run) -> None:
    listed = command("plugins", "list", "--json")
    assert listed.status == 0, listed.err
    plugins = [(plugin["kind"], plugin["name"], plugin["package"]) for plugin in json.loads(listed.out)]
    assert plugins == [
        (kind, name, "alimark-example")
        for kind, name in (("scheme", "side"), ("attack", "shout"), ("embedder", "letters"), ("engine", "phrases"))
    ]

    key, text, shouted = tmp_path / "key.json", tmp_path / "text.txt", tmp_path / "shouted.txt"
    words = ["keygen", "--scheme", "side", "--embedder", "letters", "--set", "margin=0.02", "-o", key]
    assert command(*words).status == 0
    assert (Key.load(key).scheme, Key.load(key).embedder) == ("side", "letters")

    words = ["generate", "-k", key, "-p", "It was late.", "--llm", "phrases:calm", "--sentences", 16, "--seed", 1]
    generated = command(*words)
    assert generated.status == 0, generated.err
    text.write_text(generated.out)

    attacked = command("attack", "shout", text, "--rate", 1)
    assert attacked.status == 0, attacked.err
    assert attacked.out.isupper()
    shouted.write_text(attacked.out)

    detected = command("detect", "-k", key, shouted, "--json")
    assert detected.status == 0, detected.err + detected.out
    assert json.loads(detected.out)["scheme"] == "side"

    refused = command("generate", "-k", key, "-p", "It was late.", "--llm", "phrases:loud")
    assert (refused.status, "has no model 'loud'; known: calm, excited" in refused.err) == (2, True)
