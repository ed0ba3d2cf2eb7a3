"""The programs, the notebook and the plugins in `examples/` run, in small and on stand-in models."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alimark import Key, load
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run as Command

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a program of the folder in this process, and returns what it printed."""
    monkeypatch.setenv("EXAMPLE_LLM", "stand-in")
    monkeypatch.setenv("EXAMPLE_EMBEDDER", "stand-in")
    monkeypatch.chdir(tmp_path)

    def call(program: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_mark_and_check(run: Run) -> None:
    assert run("mark_and_check.py").splitlines()[-1].startswith("found, p = 0.00")
    lines = (EXAMPLES / "mark_and_check.py").read_text().splitlines()[1:]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 10


def test_hf_pipeline(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_torch_thread: None) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<end>", ".", *"the old house was dark and nobody came back after winter".split()]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = tmp_path / "tiny"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<end>").save_pretrained(folder)
    sizes = {"n_positions": 256, "n_embd": 8, "n_layer": 1, "n_head": 1, "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(words), **sizes)).save_pretrained(folder)
    monkeypatch.setenv("EXAMPLE_SENTENCES", "1")
    assert run("huggingface_pipeline.py", folder).splitlines()[-1].endswith(f"written by {folder}")


@pytest.mark.ray
def test_audit_of_a_parquet_folder_with_ray(run: Run, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("ray")
    embedder = StandInEmbedder()
    key = Key.generate(embedder=embedder, decision="hard", secret=bytes(range(32)))
    key.save(tmp_path / "key.json")
    mark = load(key, embedder=embedder)
    texts = [
        mark.generate("It was late.", StandInLLM(), sentences=12, candidates=candidates, seed=1).text
        for candidates in (1, 24)
    ]
    (tmp_path / "docs").mkdir()
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "docs" / "part-0.parquet")
    lines = run("audit_parquet_with_ray.py", tmp_path / "key.json", tmp_path / "docs", tmp_path / "found").splitlines()
    assert lines[0] == "2 documents"
    assert "row 1: p = 0.00" in lines[1]


def test_the_notebook(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its code cells run in their order, as a program; a Jupyter kernel would add nothing but packages to install."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.setenv("EXAMPLE_TEXTS", "2")
    notebook: dict[str, Any] = json.loads((EXAMPLES / "notebooks" / "mark_attack_detect.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["outputs"]] == []
    program = tmp_path / "notebook.py"
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    program.write_text("import matplotlib.pyplot\nmatplotlib.pyplot.show = lambda: None\n" + "\n\n".join(cells))
    printed = run(str(program))
    assert "unmarked             0 of 2 found" in printed
    assert "marked               2 of 2 found" in printed


@pytest.fixture
def installed(install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path that pip installed the package into."""
    pytest.importorskip("hatchling")
    target = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", target, EXAMPLES / "plugin"],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(str(target))
    return target


def test_each_plugin_is_used_through_the_command_line(installed: Path, tmp_path: Path, command: Command) -> None:
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
