"""Perplexities against a plain loop and the loss of transformers, repetition and diversity."""

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
from alimark.lab.bench.quality import Oracle, distinct, diversity, repetition
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
        small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.LlamaConfig(**sizes, **small, max_position_embeddings=CONTEXT)
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


def plain(oracle: Oracle, before: Sequence[int], ids: Sequence[int]) -> float:
    """One token at a time."""
    import torch

    whole, losses = [*before, *ids], []
    for at in range(max(1, len(before)), len(whole)):
        with torch.inference_mode():
            logits = oracle._model(torch.tensor([whole[:at]])).logits[0, -1].double()
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

    def test_a_text_longer_than_the_context_is_read_up_to_there(self, oracles: dict[str, Oracle], kind: str) -> None:
        oracle = oracles[kind]
        before = [0] * (kind == "llama") + encode(oracle, PROMPT)
        after = encode(oracle, " " + " ".join([TEXT] * 3))
        assert len(before + after) > CONTEXT
        expected = plain(oracle, before, after[: CONTEXT - len(before)])
        assert oracle.perplexity(PROMPT, " ".join([TEXT] * 3)) == pytest.approx(expected, rel=1e-4)
        assert math.isnan(oracle.perplexity(" ".join([PROMPT] * 40), TEXT))

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


@pytest.mark.weights
def test_prose_reads_better_than_its_words_shuffled() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    text = "The old man walked slowly down the road, and his dog followed him home."
    words = text.split()
    np.random.default_rng(0).shuffle(words)
    oracle = Oracle("smollm2-135m")
    start = "It was late."
    fluent, shuffled, alone = perplexities(oracle, [(start, text), (start, " ".join(words)), ("", text)])
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
