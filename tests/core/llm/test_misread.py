"""A tokenizer that some version of transformers misread is refused before anybody draws from it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers  # noqa: E402

from alimark.core.models import torch_weights as weights  # noqa: E402
from alimark.errors import LLMError  # noqa: E402

WORDS = weights._PROBE.split()
MARKS = ("\u2581", "\u0120")
PIECES = [*dict.fromkeys("".join(WORDS)), *MARKS, *dict.fromkeys(f"{mark}{word}" for mark in MARKS for word in WORDS)]


def tokenizer(whole: bool, mark: str = "\u2581") -> Any:
    """With whole words as likely as their letters together, or less likely than those."""
    scores = [(piece, -1.0 if len(piece) == 1 or whole else -50.0) for piece in ["<unk>", *PIECES]]
    made = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    made.normalizer = normalizers.Replace(" ", mark)
    made.pre_tokenizer = pre_tokenizers.Split(mark, "merged_with_next")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


@pytest.mark.parametrize("mark", MARKS)
def test_words_that_are_tokens_have_to_be_read_as_tokens(mark: str) -> None:
    assert weights.tokenizer_fault(tokenizer(True, mark)) == ""
    fault = weights.tokenizer_fault(tokenizer(False, mark))
    assert fault.startswith("it knows 'was' as one token, yet cuts the sentence into I t")


def test_a_tokenizer_without_such_words_is_left_alone() -> None:
    made = Tokenizer(models.WordLevel({"<unk>": 0, "was": 1}, unk_token="<unk>"))
    assert weights.tokenizer_fault(transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")) == ""


def test_what_was_misread_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(weights, "_load", lambda *_, **__: (tokenizer(False), None))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(LLMError, match=rf"{transformers.__version__} misreads the tokenizer of model.gguf"):
        weights.converted(tmp_path / "model.gguf")
    assert not [path for path in (tmp_path / "home" / "converted").glob("*") if path.is_dir()]


def test_what_another_version_left_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "converted", lambda path: tmp_path / "left")
    monkeypatch.setattr(weights, "_load", lambda *_, **__: (tokenizer(False), None))
    with pytest.raises(LLMError, match=r"left is broken: .*; delete the folder"):
        weights.load(tmp_path / "model.gguf", None)  # type: ignore[arg-type]
