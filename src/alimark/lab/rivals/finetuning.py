"""Fine-tunes a sentence embedder on paraphrase pairs, as SemStamp does, so that a paraphrase stays in its sentence's region.

The loss is SemStamp's: the cosine of a sentence with its paraphrase should exceed its cosine with any other paraphrase of the
batch by a margin. The result is a copy of the model's folder with other weights, which any backend loads like the model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alimark.core._util.json_types import JsonObject
from alimark.core._util.jsonl import read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.learning import aligned
from alimark.core.embedding.loading import load_model_files
from alimark.core.embedding.sentence_transformers import TorchEmbedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.errors import AlimarkError, MissingExtra, ModelError, RecordError

if TYPE_CHECKING:
    import torch

ORIGIN = "alimark.json"
"""The file inside the folder that says what the weights were learned from."""

_FEWEST_PAIRS = 64
_LONGEST = 40  # sentences of a text
_PLANES, _DRAWS = 3, 200  # regions by which the result is judged: SemStamp's number of hyperplanes, drawn so often


class SentencePair(NamedTuple):
    """A sentence and its paraphrase."""

    original: str
    paraphrase: str


@dataclass(frozen=True)
class FineTuning:
    """The settings of fine-tuning. The margin, epochs, rate, warm-up and length are those of SemStamp's code.

    Args:
        margin: By how much the cosine with the paraphrase should exceed the cosine with any other one.
        epochs: How often each pair is used.
        rate: The highest learning rate, reached after the warm-up; it falls to 0 until the end.
        warm_up: Steps until the highest learning rate.
        batch: Pairs in a batch. A larger batch has harder negatives.
        max_tokens: The most tokens of a sentence while training.
        held_out: The share of the pairs that the result is judged by and not trained on.
        seed: Makes the result repeatable on one machine.
        device: A torch device such as "cuda"; the CPU by default.

    Raises:
        AlimarkError: A value is out of range.
    """

    margin: float = 0.8
    epochs: int = 3
    rate: float = 4e-5
    warm_up: int = 50
    batch: int = 32
    max_tokens: int = 64
    held_out: float = 0.1
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.margin <= 2 or not 0 < self.rate < 1:
            raise AlimarkError("margin must be above 0 and at most 2, and rate between 0 and 1")
        if self.epochs < 1 or self.warm_up < 0 or self.batch < 2 or self.max_tokens < 4:
            raise AlimarkError("epochs must be at least 1, warm_up at least 0, batch at least 2, max_tokens at least 4")
        if not 0 < self.held_out < 1:
            raise AlimarkError(f"held_out, a share of the pairs, must be between 0 and 1, not {self.held_out}")


def read_pairs(paths: Sequence[Path | str], embedder: Embedder) -> list[SentencePair]:
    """Reads texts with their paraphrases and aligns their sentences by the cosines of an embedder.

    Args:
        paths: JSONL files, plain or .gz. A record has `original` and `paraphrase`, or `original` and `text` as the records of
            `alimark attack` have; those of failed attacks are skipped.
        embedder: The embedder before fine-tuning.

    Returns:
        The distinct pairs of sentences that stand for each other one to one and are not the same.

    Raises:
        RecordError: A record has no such fields.
    """
    pairs: dict[SentencePair, None] = {}
    for path in paths:
        for original, paraphrase in _texts(path):
            before, after = (embedder.embed(list(part)).astype(np.float64) for part in (original, paraphrase))
            for i, j in aligned(before, after).tolist():
                if original[i] != paraphrase[j]:
                    pairs[SentencePair(original[i], paraphrase[j])] = None
    return list(pairs)


def _texts(path: Path | str) -> Iterator[tuple[list[str], list[str]]]:
    """The sentences of each text of a file and those of its paraphrase."""
    cut = splitter(DEFAULT_SPLITTER)
    for number, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        if record.get("failed"):
            continue
        original, paraphrase = record.get("original"), record.get("paraphrase", record.get("text"))
        if not isinstance(original, str) or not isinstance(paraphrase, str):
            raise RecordError(f"{path}:{number} needs `original` and `paraphrase` (or `text`), both of them texts")
        sentences = cut.units(original)[:_LONGEST], cut.units(paraphrase)[:_LONGEST]
        if all(sentences):
            yield sentences


def fine_tune(base: str, pairs: Sequence[SentencePair], output: Path | str, settings: FineTuning) -> JsonObject:
    """Fine-tunes an embedder and writes it to a folder in sentence-transformers form.

    Args:
        base: The embedder to start from: a name of `alimark models list`, a folder or a hub id.
        pairs: Sentences with their paraphrases.
        output: The folder to write, which must not exist.
        settings: How to train.

    Returns:
        What the file `alimark.json` of the folder holds: the base, the pairs, the settings, and how pairs that were held out
        fare before and after.

    Raises:
        AlimarkError: There are too few pairs, or the folder exists.
        MissingExtra: A library is not installed.
    """
    output = Path(output)
    if output.exists():
        raise AlimarkError(f"{output} exists; an embedder is not overwritten, choose another name")
    if len(pairs) < _FEWEST_PAIRS:
        raise AlimarkError(f"{len(pairs)} pairs are too few to learn from; give at least {_FEWEST_PAIRS}")
    model = load_model_files(base)
    embedder = TorchEmbedder(model, settings.device)
    order = np.random.default_rng(settings.seed).permutation(len(pairs))
    held = max(1, round(settings.held_out * len(pairs)))
    tested, trained = ([pairs[i] for i in part] for part in (order[:held], order[held:]))
    before = judged(tested, embedder)
    loss = _train(embedder.encoder, trained, settings)
    digest = hashlib.sha256("\0".join(part for pair in pairs for part in pair).encode("utf-8", "surrogatepass"))
    origin: JsonObject = {
        "base": model.name, "base_fingerprint": model.fingerprint, "pairs": len(trained), "held_out_pairs": held,
        "pairs_sha256": digest.hexdigest(), "settings": asdict(settings), "loss": round(loss, 4),
        "before": before, "after": judged(tested, embedder),
    }  # fmt: skip
    _save(embedder.encoder, model.folder, model.weights, output, origin)
    return origin


def judged(pairs: Sequence[SentencePair], embedder: Embedder) -> dict[str, float]:
    """How an embedder fares on pairs: the mean cosine of sentences with their paraphrases and with those of others, and the
    share of either kind in the same region, a mean over random hyperplanes. An eighth would be in it by chance."""
    original, paraphrase = (embedder.embed([pair[i] for pair in pairs]).astype(np.float64) for i in range(2))
    normals = np.random.default_rng(0).normal(size=(_DRAWS * _PLANES, original.shape[1]))
    values = {}
    for suffix, rows in (("", paraphrase), ("_of_others", np.roll(paraphrase, 1, axis=0))):
        same = ((original @ normals.T > 0) == (rows @ normals.T > 0)).reshape(len(pairs), _DRAWS, _PLANES)
        values[f"cosine{suffix}"] = (original * rows).sum(axis=1).mean()
        values[f"same_region{suffix}"] = same.all(axis=2).mean()
    return {name: round(float(value), 4) for name, value in values.items()}


def margin_loss(original: torch.Tensor, paraphrase: torch.Tensor, groups: torch.Tensor, margin: float) -> torch.Tensor:
    """SemStamp's loss: the mean of max(0, margin - cosine with the paraphrase + largest cosine with another paraphrase).

    Args:
        original: The embeddings of sentences, one per row.
        paraphrase: The embeddings of their paraphrases.
        groups: A number for each sentence; paraphrases of the same sentence do not count as others.
        margin: The margin.
    """
    import torch
    import torch.nn.functional as F

    cosines = F.normalize(original, dim=1) @ F.normalize(paraphrase, dim=1).T
    others = cosines.masked_fill(groups[:, None] == groups[None, :], -1.0).max(dim=1).values
    return torch.relu(margin - cosines.diagonal() + others).mean()


def _train(encoder: Any, pairs: Sequence[SentencePair], settings: FineTuning) -> float:
    """Trains the encoder in place and returns the mean loss of the last epoch."""
    import torch

    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed + 1)
    numbers: dict[str, int] = {}
    groups = np.array([numbers.setdefault(pair.original, len(numbers)) for pair in pairs])
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=settings.rate, weight_decay=0.0)
    steps = settings.epochs * -(-len(pairs) // settings.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate(step, settings, steps))
    encoder.train()
    losses: list[float] = []
    for _ in range(settings.epochs):
        losses = []
        for rows in np.split(order.permutation(len(pairs)), range(settings.batch, len(pairs), settings.batch)):
            batch = [pairs[row] for row in rows]
            original, paraphrase = (_embedded(encoder, [pair[i] for pair in batch], settings) for i in range(2))
            same = torch.from_numpy(groups[rows]).to(original.device)
            loss = margin_loss(original, paraphrase, same, settings.margin)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
    encoder.eval()
    return float(np.mean(losses))


def learning_rate(step: int, settings: FineTuning, steps: int) -> float:
    """The learning rate of a step as a share of the highest one: a linear rise, then a linear fall."""
    if step < settings.warm_up:
        return (step + 1) / (settings.warm_up + 1)
    return max(0.0, (steps - step) / max(1, steps - settings.warm_up))


def _embedded(encoder: Any, texts: list[str], settings: FineTuning) -> Any:
    features = encoder.tokenizer(
        texts, padding=True, truncation=True, max_length=settings.max_tokens, return_tensors="pt"
    )
    wanted = {name: features[name].to(encoder.device) for name in ("input_ids", "attention_mask")}
    return encoder(wanted)["sentence_embedding"]


def _save(encoder: Any, folder: Path, weights: Path, output: Path, origin: JsonObject) -> None:
    """Copies the folder of the model with the new weights, under the names of the old ones, and a record of their origin."""
    try:
        from safetensors import safe_open
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtra("safetensors", "transformers") from None
    state = encoder[0].auto_model.state_dict()
    with safe_open(weights, "pt") as file:
        names = list(file.keys())
    if missing := [name for name in names if name not in state and not name.endswith("position_ids")]:
        raise ModelError(f"the weights {missing[0]} of {folder} are not part of the model that was trained")
    tensors = {name: state[name].detach().cpu().contiguous() for name in names if name in state}
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as place:
        copy = Path(place) / "model"
        shutil.copytree(folder, copy)
        save_file(tensors, copy / weights.relative_to(folder), metadata={"format": "pt"})
        (copy / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        copy.rename(output)
