"""Tiny sentence embedders with random weights, saved in sentence-transformers form."""

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = ["the", "a", "river", "council", "report", "water", "story", "engine", "garden", "winter"]
WORDS += ["many", "small", "said", "ran", "quickly", "over", "under"]
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + n]) for i, n in enumerate(range(1, 18))]
SPECIAL = {"bert": ("[CLS]", "[SEP]", "[PAD]"), "mpnet": ("<s>", "</s>", "<pad>")}
MAX_TOKENS = 40


def save_tokenizer(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    cls, sep, pad = SPECIAL[kind]
    # MPNet's padding token is number 1; the order makes it so.
    vocabulary = {word: i for i, word in enumerate([cls, pad, sep, "[UNK]", *WORDS, "中", "文"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([cls, sep, pad, "[UNK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])]
    )
    tokenizer.enable_truncation(8)  # as upstream's files do, to be overridden
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": cls, "sep_token": sep, "pad_token": pad}
    write(folder / "tokenizer_config.json", settings | {"unk_token": "[UNK]", "model_max_length": 512})


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def save_encoder(folder: Path, kind: str) -> None:
    import torch
    import transformers

    torch.manual_seed(7)
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS) + 6,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 200,
        "pad_token_id": 1,
        "initializer_range": 0.4,  # large, so that an error anywhere shows
    }
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**settings))
    else:
        model = transformers.MPNetModel(transformers.MPNetConfig(**settings))
    model.save_pretrained(folder, safe_serialization=True)


def make_model(folder: Path, kind: str, pooling: str = "mean", max_tokens: int = MAX_TOKENS) -> Path:
    pytest.importorskip("sentence_transformers")
    save_encoder(folder, kind)
    save_tokenizer(folder, kind)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    write(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(modules)
        ],
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    modes = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32} | modes)
    (folder / "2_Normalize").mkdir()
    return folder


def make_instructor(folder: Path, pickled: tuple[str, ...]) -> Path:
    """A model with a Dense module behind the pooling, whose weights are pickled in the folders `pickled`."""
    import torch
    from safetensors.torch import load_file, save_file

    make_model(folder, "bert")
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    write(folder / "modules.json", [*modules[:2], dense, {**modules[2], "idx": 3, "name": "3", "path": "3_Normalize"}])
    (folder / "2_Normalize").rename(folder / "3_Normalize")
    identity = {"in_features": 32, "out_features": 24, "bias": False}
    write(folder / "2_Dense/config.json", identity | {"activation_function": "torch.nn.modules.linear.Identity"})
    random = torch.Generator().manual_seed(3)
    save_file({"linear.weight": torch.randn(24, 32, generator=random)}, folder / "2_Dense/model.safetensors")
    for part in pickled:
        torch.save(load_file(folder / part / "model.safetensors"), folder / part / "pytorch_model.bin")
        (folder / part / "model.safetensors").unlink()
    return folder
