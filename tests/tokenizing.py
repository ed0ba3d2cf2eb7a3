"""Small byte-level BPE tokenizers, trained for a test, and tiny random models: a Phi, and an OPT as the model hub has it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


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


def save_opt(folder: Path, texts: Sequence[str], frequent: dict[str, float], template: str = "") -> Path:
    """Saves a random OPT as on the hub: pickled, without `model.` in its names, with vocab.json, merges.txt and a first token.

    Its output layer is the table of its inputs. What is `frequent` gets a share of one direction in it, which the last layer
    norm adds to every state.
    """
    import torch
    import transformers

    model_of_texts = byte_level_tokenizer(texts, 400, "</s>")
    model_of_texts.model.save(str(folder))
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "model_max_length": 256}
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "</s>")
    chat = {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | tokens | chat))
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    vocabulary = model_of_texts.get_vocab()
    config = transformers.OPTConfig(
        vocab_size=len(vocabulary), hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=2,
        word_embed_proj_dim=64, max_position_embeddings=256, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        architectures=["OPTForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(config)
    decoder = model.model.decoder
    with torch.no_grad():
        for parameter in decoder.layers.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)  # large, or each token would be followed by itself
        decoder.embed_positions.weight.normal_()
        decoder.embed_tokens.weight.normal_(std=0.15)
        decoder.embed_tokens.weight[:, 0] = 0.0
        for token, share in frequent.items():
            decoder.embed_tokens.weight[vocabulary[token], 0] = share
        decoder.final_layer_norm.bias[0] = 1.0
        decoder.final_layer_norm.weight[0] = 0.0
    state = {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
    torch.save(state, folder / "pytorch_model.bin")
    return folder
