"""Generation and detection with real weights: a small language model on llama.cpp and the default embedder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alimark import AliMark, Generation, Key, load_embedder, load_llm
from alimark.errors import LimitError

pytestmark = [pytest.mark.weights, pytest.mark.slow]


@pytest.fixture(scope="module")
def mark() -> AliMark:
    return AliMark(Key.generate(decision="hard", secret=bytes(range(32))))


@pytest.fixture(scope="module")
def generation(mark: AliMark) -> Generation:
    pytest.importorskip("xllamacpp")
    llm = load_llm("smollm2-135m", parallel=16, context_tokens=1024)
    return mark.generate("The harbour was quiet that morning.", llm, sentences=8, candidates=12, seed=11)


def test_marked_text_is_found(mark: AliMark, generation: Generation) -> None:
    assert generation.ended == "complete"
    assert generation.surviving == len(generation.sentences) == 8
    assert np.mean(generation.matches) > 5  # chance is 4, 12 candidates give about 6
    assert generation.tokens < 64 * generation.candidates  # 128 without stopping at the sentence's end
    assert mark.detect(generation.text).p_value < 0.05


def test_the_command_line_agrees_to_the_last_digit(mark: AliMark, generation: Generation, tmp_path: Path) -> None:
    mark.key.save(tmp_path / "key.json")
    (tmp_path / "text.txt").write_text(generation.text, "utf-8")
    words = ["detect", "-k", str(tmp_path / "key.json"), str(tmp_path / "text.txt"), "--json"]
    done = subprocess.run([sys.executable, "-m", "alimark", *words], capture_output=True, text=True, check=False)
    printed, here = json.loads(done.stdout), mark.detect(generation.text)
    assert (printed["p_value"], printed["z"]) == (here.p_value, here.z)
    assert printed["backend"] == "onnx"
    assert done.returncode == (0 if printed["verdict"] == "found" else 1)


def test_both_backends_find_the_same(mark: AliMark, generation: Generation) -> None:
    pytest.importorskip("sentence_transformers")
    other = AliMark(mark.key, embedder=load_embedder("all-MiniLM-L6-v2", backend="torch"))
    ours, theirs = mark.detect(generation.text), other.detect(generation.text)
    if ours.near_flips == 0:
        assert (ours.p_value, ours.z) == (theirs.p_value, theirs.z)


def test_ten_megabytes(mark: AliMark) -> None:
    """Words without a full stop are cut into sentences, so both texts have too many."""
    for text in ("word " * 2_000_000, "This is one of very many short sentences here. " * 220_000):
        with pytest.raises(LimitError, match="cut it into parts"):
            mark.detect(text)
