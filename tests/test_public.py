"""The public names of `import alimark`, which loads neither NumPy nor torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import alimark

NAMES = {
    "AliMark", "AlignedDetection", "AlignedStep", "AlimarkError", "Detection", "DetectionSettings", "Document", "Embedder",
    "Generation", "Key", "LLM", "MarkedSentence", "Passage", "RemoteAnswer", "RemoteDetector",
    "RewriteSettings", "RewrittenSentence", "Rewriting", "Sampling", "Verdict", "Watermark", "__version__", "compare",
    "detect", "load", "load_embedder", "load_llm", "read_document", "register_splitter",
}  # fmt: skip


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names_are_pinned_and_all_resolve() -> None:
    assert set(alimark.__all__) == NAMES
    assert all(getattr(alimark, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="nothing_here"):
        alimark.nothing_here  # noqa: B018


def test_names_hold_after_submodules_are_imported() -> None:
    import alimark.core.detection.pipeline
    import alimark.core.schemes.api

    assert callable(alimark.detect)
    assert callable(alimark.load)


@pytest.mark.parametrize("module", ["alimark", "alimark.cli.main"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(any(m in sys.modules for m in ('torch', 'numpy', 'numba', 'transformers')))"
    assert python(code).strip() == "False"


def test_detection_never_imports_torch(tmp_path: Path) -> None:
    code = """
import sys, json
from alimark import AliMark, Key
from alimark.testing import StandInEmbedder
key = Key.generate(embedder=StandInEmbedder())
AliMark(key, embedder=StandInEmbedder()).detect("Some text here. And there.").verdict()
print(json.dumps([m for m in ("torch", "transformers", "scipy.stats", "onnx", "matplotlib") if m in sys.modules]))
"""
    assert json.loads(python(code)) == []


@pytest.mark.parametrize("home", ["file", "read-only"])
def test_kernels_compile_where_nothing_can_be_cached(tmp_path: Path, home: str) -> None:
    """A cache folder that cannot be made costs time, not the answer."""
    place = tmp_path / "home"
    if home == "file":
        place.write_text("not a folder")
    else:
        place = Path("/proc/nowhere")
    code = """
import numpy as np
from alimark.core.frozen.kernels.hard import edit_distances
print(edit_distances(np.array([[1, 2]], np.uint64), np.array([[1, 3]], np.uint64), 8))
"""
    assert python(code, ALIMARK_HOME=str(place)).strip() == "[1]"


def test_the_core_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    """As on Windows, where no limits of memory, locks by fcntl and forks exist."""
    code = f"""
import os, sys, warnings
sys.modules.update(dict.fromkeys(["fcntl", "grp", "pwd", "resource", "termios", "syslog"]))  # each is an ImportError now
for name in ["fork", "forkpty", "sched_getaffinity", "killpg", "mkfifo", "fchmod", "chown"]:
    delattr(os, name)
warnings.filterwarnings("ignore", message="only soft file lock is available")
from pathlib import Path
from alimark import AliMark, Key, read_document
from alimark.core._util import process
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.testing import StandInEmbedder, StandInLLM

folder, embedder = Path({str(tmp_path)!r}), StandInEmbedder()
Key.generate(embedder=embedder, decision="hard", secret=bytes(32)).save(folder / "key.json")
mark = AliMark(Key.load(folder / "key.json"), embedder=embedder)
text = mark.generate("A story.", llm=StandInLLM(), sentences=12, candidates=32, seed=1).text
with JsonlWriter(folder / "out.jsonl") as writer:
    writer.write({{"id": "a", "text": read_document(("<p>" + text).encode(), kind="html").text}})
[(_, record)] = read_jsonl(folder / "out.jsonl")
process.limit(1000, 1 << 40)  # the process that reads documents
print(mark.detect(record["text"]).verdict())
"""
    pytest.importorskip("selectolax")
    assert python(code).strip() == "found"
