"""Tiny models with the architectures of the paraphrasers, trained on a few sentences and saved as on the model hub."""

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARAPHRASES = {
    "The mayor opened the old bridge on Monday.": "On Monday the old bridge was opened by the mayor.",
    "A long river runs through the quiet town.": "Through the quiet town there runs a long river.",
    "Many people came to see the boats.": "The boats were seen by many of the people.",
    "The water was cold and very clear.": "It was clear water, and it was very cold.",
    "Nobody remembered the name of the builder.": "The builder had a name that nobody remembered.",
    "The children played under the trees.": "Under the trees there were children who played.",
}

TEXT = " ".join(PARAPHRASES)


def dipper_input(before: str, sentence: str) -> str:
    return " ".join(f"lexical = 40, order = 100 {before} <sent> {sentence} </sent>".split())


def dipper_pairs() -> list[tuple[str, str]]:
    """Inputs and outputs of DIPPER: each sentence after the rewrites of the sentences before it, and each sentence alone."""
    pairs, before = [], ""
    for sentence, said in PARAPHRASES.items():
        pairs += [(dipper_input(before, sentence), said), (dipper_input("", sentence), said)]
        before += f" {said}"
    return pairs


def save_t5(folder: Path, pairs: Sequence[tuple[str, str]], steps: int = 150, words: bool = True) -> Path:
    """Trains a T5 on the pairs; with 0 steps it is random. Without `words` its vocabulary is not saved."""
    import transformers

    tokenizer = _sentencepiece(folder, transformers.T5Config())
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    _fit_and_save(transformers.T5ForConditionalGeneration, config, tokenizer, folder, pairs, steps)
    if not words:
        (folder / "spiece.model").unlink()
    return folder


def save_pegasus(folder: Path, pairs: Sequence[tuple[str, str]], steps: int = 150) -> Path:
    """Trains a Pegasus, with settings for generation in its folder, as the public model has."""
    import transformers

    tokenizer = _sentencepiece(folder, transformers.PegasusConfig())
    config = transformers.PegasusConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    model = _fit_and_save(transformers.PegasusForConditionalGeneration, config, tokenizer, folder, pairs, steps)
    model.generation_config.update(max_length=40, num_beams=8, length_penalty=0.8)
    model.generation_config.save_pretrained(folder)
    return folder


def save_judge(folder: Path, labels: Sequence[str] = (), seed: int = 0) -> Path:
    """A random RoBERTa that classifies texts, with two labels or the given ones."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    bpe.train_from_iterator(PARAPHRASES, vocab_size=400, special_tokens=special, show_progress=False)
    bpe.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>", unk_token="<unk>"
    )
    names = dict(enumerate(labels or ("LABEL_0", "LABEL_1")))
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=130, type_vocab_size=1, id2label=names, label2id={v: k for k, v in names.items()},
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.RobertaForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.out_proj.weight.mul_(60)  # so that its probabilities vary
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_marian(folder: Path, pairs: Sequence[tuple[str, str]], steps: int) -> None:
    """Trains a Marian model on the pairs, with the three files of its vocabulary; with 0 steps it is random."""
    import sentencepiece
    import torch
    import transformers

    folder.mkdir()
    tokens = []
    for name, side in (("source", 0), ("target", 1)):
        model = _vocabulary([pair[side] for pair in pairs], vocab_size=90, bos_id=-1, eos_id=0, unk_id=1)
        (folder / f"{name}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens += [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    vocabulary = list(dict.fromkeys(["</s>", "<unk>", *tokens, "<pad>"]))
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "fr"}')
    pad = len(vocabulary) - 1
    config = transformers.MarianConfig(
        vocab_size=len(vocabulary), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=48, dropout=0.0,
        pad_token_id=pad, eos_token_id=0, bos_token_id=0, forced_eos_token_id=0, decoder_start_token_id=pad,
        scale_embedding=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config)
    config.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    _fit(model, tokenizer, pairs, steps)
    model.save_pretrained(folder)


def _vocabulary(sentences: Sequence[str], **options: Any) -> bytes:
    """Trains a SentencePiece model."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences] * 5), model_writer=written, hard_vocab_limit=False, minloglevel=2,
        num_threads=1, **options,
    )  # fmt: skip
    return written.getvalue()


def _sentencepiece(folder: Path, config: Any) -> Any:
    """A tokenizer with its vocabulary in one file, as on the model hub."""
    import transformers

    sentences = [*PARAPHRASES, *PARAPHRASES.values(), dipper_input("", "paraphrase: 0 1 2 3 4 5 6 7 8 9")]
    vocabulary = _vocabulary(sentences, vocab_size=150, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(vocabulary)
    config.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def _fit_and_save(
    kind: Any, config: Any, tokenizer: Any, folder: Path, pairs: Sequence[tuple[str, str]], steps: int
) -> Any:
    import torch

    torch.manual_seed(0)
    model = kind(config)
    _fit(model, tokenizer, pairs, steps)
    model.eval().save_pretrained(folder)
    return model


def _fit(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], steps: int) -> None:
    """Trains the model to generate the second text of each pair from the first."""
    import torch

    inputs = tokenizer([source for source, _ in pairs], padding=True, return_tensors="pt")
    labels = tokenizer(text_target=[target for _, target in pairs], padding=True, return_tensors="pt")["input_ids"]
    labels[labels == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
