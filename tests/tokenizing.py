"""Small byte-level BPE tokenizers, trained for a test, and a tiny random Phi."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def byte_level_tokenizer(texts: Sequence[str], vocab_size: int, special: str) -> Any:
    """A tokenizer of the tokenizers library, with one special token of id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_phi(
    folder: Path, texts: Sequence[str], scale: float, bias: Callable[[str], float], template: str = "", **options: int
) -> Path:
    """Saves a random Phi and its tokenizer; the output layer has biases, so that some tokens can be made frequent."""
    import torch
    import transformers

    model_of_texts = byte_level_tokenizer(texts, options.pop("vocabulary"), "<end>")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model_of_texts, eos_token="<end>")
    tokenizer.chat_template = template or None
    config = transformers.PhiConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, bos_token_id=None,
        eos_token_id=tokenizer.get_vocab()["<end>"], tie_word_embeddings=False, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.PhiForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
        for token, number in tokenizer.get_vocab().items():
            model.lm_head.bias[number] = bias(token)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
