"""Perplexities against a plain loop and the loss of transformers, repetition, overlap and diversity."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alimark.errors import LLMError, MissingExtra
from alimark.lab.bench.quality import Oracle, distinct, diversity, repetition, self_overlap, windows
from tokenizing import byte_level_tokenizer

PROMPT = "The mayor opened the bridge in the rain."
TEXT = "Nobody had thought of a name for it, so the children called it the whale. It was grey, and it hummed."
PAIRS = [
    (PROMPT, TEXT),
    ("", TEXT),
    (PROMPT, "So."),
    ("It was late.\n", "The bridge hummed. " * 2),
    ("Why?", "The rain had a name. " * 3),
]
CONTEXT = 96
KINDS = ["gpt2", "llama"]


@pytest.fixture(scope="module")
def oracles(one_torch_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    """Random ones: a GPT-2 that has no begin-of-text token, and a Llama whose tokenizer puts one first."""
    pytest.importorskip("transformers")
    return {kind: Oracle(_saved(tmp_path_factory.mktemp(kind), kind), "cpu") for kind in KINDS}


def _saved(folder: Path, kind: str, bos: str = "") -> Path:
    import torch
    import transformers

    tokenizer = _tokenizer("<s>" if kind == "llama" else "")
    sizes = {"vocab_size": len(tokenizer), "initializer_range": 0.3, "tie_word_embeddings": False}
    torch.manual_seed(0)
    if kind == "gpt2":
        small = {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}
        config = transformers.GPT2Config(**sizes, **small, bos_token_id=None, eos_token_id=None)
    else:
        config = transformers.LlamaConfig(
            **sizes,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
        )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    if bos:  # one that the tokenizer knows and does not put first
        tokenizer = _tokenizer()
        tokenizer.add_special_tokens({"bos_token": bos})
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(bos: str = "") -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = byte_level_tokenizer([f"{PROMPT} {TEXT}"] * 9, 300, "<s>")
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def plain(oracle: Oracle, before: Sequence[int], ids: Sequence[int], context: int = 10**9) -> float:
    """One token at a time, each behind what the windows let it see."""
    import torch

    whole, losses = [*before, *ids], []
    for at in range(max(1, len(before)), len(whole)):
        start = 0
        while at >= start + context:
            start += context // 2
        with torch.inference_mode():
            logits = oracle._model(torch.tensor([whole[start:at]])).logits[0, -1].double()
        losses.append(-float(torch.log_softmax(logits, dim=0)[whole[at]]))
    return math.exp(sum(losses) / len(losses))


def encode(oracle: Oracle, text: str) -> list[int]:
    ids: list[int] = oracle._tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def perplexities(oracle: Oracle, pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [oracle.perplexity(prompt, text) for prompt, text in pairs]


@pytest.mark.parametrize("kind", KINDS)
class TestPerplexity:
    def test_agrees_with_a_plain_loop(self, oracles: dict[str, Oracle], kind: str) -> None:
        oracle = oracles[kind]
        bos = [0] if kind == "llama" else []
        expected = [
            plain(oracle, bos + encode(oracle, PROMPT), encode(oracle, " " + TEXT)),
            plain(oracle, bos, encode(oracle, TEXT)),
            plain(oracle, bos + encode(oracle, PROMPT), encode(oracle, " So.")),
            plain(oracle, bos + encode(oracle, "It was late.\n"), encode(oracle, ("The bridge hummed. " * 2)[:-1])),
            plain(oracle, bos + encode(oracle, "Why?"), encode(oracle, (" The rain had a name." * 3))),
        ]
        assert perplexities(oracle, PAIRS) == pytest.approx(expected, rel=1e-4)
        assert max(expected) > 1.2 * min(expected)

    def test_agrees_with_transformers_own_loss(self, oracles: dict[str, Oracle], kind: str) -> None:
        import torch

        oracle = oracles[kind]
        before, after = oracle._tokenizer(PROMPT)["input_ids"], encode(oracle, " " + TEXT)
        ids, labels = torch.tensor([before + after]), torch.tensor([[-100] * len(before) + after])
        with torch.inference_mode():
            loss = float(oracle._model(ids, labels=labels).loss)
        assert perplexities(oracle, [(PROMPT, TEXT)]) == pytest.approx([math.exp(loss)], rel=1e-4)

    @pytest.mark.slow
    def test_a_text_longer_than_the_context_is_read_in_windows(self, oracles: dict[str, Oracle], kind: str) -> None:
        oracle, text = oracles[kind], " ".join([TEXT] * 3)
        bos = [0] if kind == "llama" else []
        for prompt in (PROMPT, " ".join([PROMPT] * 9)):
            before, after = bos + encode(oracle, prompt), encode(oracle, " " + text)
            assert len(after) > 1.5 * CONTEXT
            values = perplexities(oracle, [(prompt, text)])
            assert values == pytest.approx([plain(oracle, before, after, CONTEXT)], rel=1e-4)

    def test_logits_are_computed_in_parts_where_memory_is_short(
        self, oracles: dict[str, Oracle], kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = perplexities(oracles[kind], PAIRS)
        for most in (1, 7, 50):
            monkeypatch.setattr(oracles[kind], "_most_tokens", most)
            assert perplexities(oracles[kind], PAIRS) == pytest.approx(whole, rel=1e-4)

    def test_layout_around_a_text_does_not_count(self, oracles: dict[str, Oracle], kind: str) -> None:
        pairs = [(PROMPT, TEXT), (PROMPT + " ", TEXT), (PROMPT, f" {TEXT}\n\n")]
        values = perplexities(oracles[kind], pairs)
        assert values == pytest.approx([values[0]] * 3, rel=1e-4)

    def test_nothing_to_score_is_nan(self, oracles: dict[str, Oracle], kind: str) -> None:
        empty, blank, word = perplexities(oracles[kind], [(PROMPT, ""), ("", " \n"), ("", "i")])
        assert math.isnan(empty)
        assert math.isnan(blank)
        assert math.isnan(word) is (kind == "gpt2")  # which has nothing to read it behind


def test_without_a_prompt_the_first_token_follows_the_begin_of_text_token(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    oracle = Oracle(_saved(tmp_path, "gpt2", bos="<s>"), "cpu")
    ids = encode(oracle, TEXT)
    expected = [plain(oracle, [0], ids), plain(oracle, encode(oracle, PROMPT), encode(oracle, " " + TEXT))]
    assert perplexities(oracle, [("", TEXT), (PROMPT, TEXT)]) == pytest.approx(expected, rel=1e-4)


def test_an_oracle_is_a_language_model(oracles: dict[str, Oracle], tmp_path: Path) -> None:
    assert oracles["gpt2"].name.startswith("gpt2")
    with pytest.raises(LLMError, match="language models are"):
        Oracle("all-MiniLM-L6-v2")


def test_without_transformers_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="transformers"):
        Oracle("smollm2-135m")


@given(st.integers(0, 200), st.integers(1, 200), st.integers(2, 40))
def test_windows_score_every_token_once(length: int, first: int, context: int) -> None:
    scored: list[int] = []
    for start, at, end in windows(length, first, context):
        assert end - start <= context
        assert at > start
        assert start == 0 or at - start >= context // 2
        scored += range(at, end)
    assert scored == list(range(first, length))


@pytest.mark.weights
def test_prose_reads_better_than_its_words_shuffled() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    text = "The old man walked slowly down the road, and his dog followed him home."
    words = text.split()
    np.random.default_rng(0).shuffle(words)
    oracle = Oracle("smollm2-135m")
    fluent, shuffled, alone = perplexities(
        oracle, [("It was late.", text), ("It was late.", " ".join(words)), ("", text)]
    )
    assert 3 < fluent < alone < shuffled / 5


class TestWords:
    def test_by_hand(self) -> None:
        text = "To be, or not to be: to be!"  # to-be or-not … to-be be-to to-be
        assert distinct(text) == pytest.approx(5 / 7)
        assert repetition(text, 2) == pytest.approx(2 / 7)
        assert distinct(text, 1) == pytest.approx(4 / 8)
        assert repetition(text) == 0
        assert repetition("a b c d " * 3) == pytest.approx(5 / 9)

    @pytest.mark.parametrize("text", ["", "…", "One", "One two three"])
    def test_a_text_too_short_to_repeat_itself_does_not(self, text: str) -> None:
        assert distinct(text, 4) == 1
        assert repetition(text) == 0

    @given(st.text(alphabet="ab ", max_size=40), st.integers(1, 4))
    def test_repetition_counts_what_came_before(self, text: str, n: int) -> None:
        words = text.split()
        runs = [words[i : i + n] for i in range(len(words) - n + 1)]
        before = sum(run in runs[:i] for i, run in enumerate(runs))
        assert repetition(text, n) == pytest.approx(before / len(runs) if runs else 0)

    def test_overlap_by_hand(self) -> None:
        texts = ["a b c d e", "x a b c d", "p q r s p q r s", "too short"]
        assert self_overlap(texts) == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
        assert self_overlap(["a b c d"] * 2) == 1
        for nothing in ([], ["a b c d"], ["a b", "a b"]):
            assert math.isnan(self_overlap(nothing))

    def test_a_run_has_words(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            distinct("a b", 0)


class TestDiversity:
    def test_is_that_of_all_pairs(self) -> None:
        vectors = np.random.default_rng(1).normal(size=(7, 5))
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = 1 - np.mean([a @ b for a, b in combinations(units, 2)])
        assert diversity(vectors.astype(np.float32)) == pytest.approx(expected, abs=1e-6)

    def test_ends_of_the_scale(self) -> None:
        assert diversity(np.ones((20, 3))) == pytest.approx(0)
        assert diversity(np.eye(4)) == pytest.approx(1)
        assert diversity(np.array([[1.0, 0], [-2, 0]])) == pytest.approx(2)
        assert diversity(np.zeros((3, 2))) == 1
        assert math.isnan(diversity(np.ones((1, 3))))
