"""A small byte-level BPE tokenizer, trained for a test."""

from __future__ import annotations

from collections.abc import Sequence
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
