"""A tiny random language model whose every next token is nearly as likely as any other, so that short texts carry a mark."""

import json
from pathlib import Path

from alimark.core.llm.base import Request, Sampling, never
from alimark.testing import StandInLLM
from tokenizing import byte_level_tokenizer, save_phi


def save_tiny(folder: Path) -> None:
    """Whole words are likely, because they are read as they were written."""
    sizes = {"vocabulary": 500, "num_attention_heads": 2, "max_position_embeddings": 1024}
    save_phi(folder, _texts(), 6, lambda t: 2.5 if t == "." else 0.0 if t[:1] == "Ġ" else -8.0, "", **sizes)


def save_opt(folder: Path) -> None:
    """Saves a tiny OPT as the hub has OPT: weights as a pickled checkpoint, and a tokenizer without tokenizer.json."""
    import torch
    import transformers

    end = "</s>"
    tokenizer = byte_level_tokenizer(_texts(), 500, end)
    tokenizer.model.save(str(folder))
    config = transformers.OPTConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, word_embed_proj_dim=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        architectures=["OPTForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(config)
    with torch.no_grad():
        # The output layer is the input layer: a multiple of the full stop's own vector makes it likelier.
        model.lm_head.weight[tokenizer.get_vocab()["."]] *= 4
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), end)
    content = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


def _texts() -> list[str]:
    return [draw.text for draw in StandInLLM().draw([Request("", 200, 0)], Sampling(), never)[0]]
