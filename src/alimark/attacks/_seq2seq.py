"""Models on PyTorch that paraphrasers are made of: encoder-decoders that write, classifiers that judge.

Everything is float32, on a GPU too, since a batch then hardly ever moves what a model says; only a model that would not fit
otherwise is bfloat16, and that on a GPU alone. Neither pickled weights nor code that comes with a model is ever loaded.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from alimark.errors import AttackError, MissingExtra, ModelError

if TYPE_CHECKING:
    import torch

_TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, eq=False)
class Network:
    """A model with its tokenizer, ready to run."""

    tokenizer: Any
    model: Any
    device: torch.device

    def encode(self, texts: Sequence[str], max_tokens: int, pairs: Sequence[str] | None = None) -> Any:
        """The texts, or pairs of texts, as one padded batch; what is longer loses its end."""
        second = None if pairs is None else list(pairs)
        batch = self.tokenizer(
            list(texts), second, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt"
        )
        return batch.to(self.device)

    def decode(self, rows: Any) -> list[str]:
        """What was written, each on one line."""
        return [one_line(text) for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def one_line(text: str) -> str:
    """With single spaces, as these models know text."""
    return " ".join(text.split())


def writer(source: str, device: str, *, tokenizer: str = "", half: bool = False) -> Network:
    """An encoder-decoder. Its tokenizer is that of `tokenizer` where its own folder holds none."""
    return _shared("AutoModelForSeq2SeqLM", source, device, tokenizer, half)


def judge(source: str, device: str) -> Network:
    """A classifier of texts."""
    return _shared("AutoModelForSequenceClassification", source, device, "", False)


# One copy of a model for all attacks that use it, and none when the last of them is gone: some have billions of parameters.
_in_use: WeakValueDictionary[tuple[str, str, str, str, bool], Network] = WeakValueDictionary()
_loading = threading.Lock()


def _shared(kind: str, source: str, device: str, tokenizer: str, half: bool) -> Network:
    name = (kind, source, device, tokenizer, half)
    with _loading:
        found = _in_use.get(name)
        if found is None:
            found = _in_use[name] = _load(kind, source, device, tokenizer, half)
    return found


def _load(kind: str, source: str, device: str, tokenizer: str, half: bool) -> Network:
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "transformers") from None
    from alimark.llm.torch.weights import quiet
    from alimark.models import store

    place = _device(device)
    folder = store.resolve_weights(source)
    words = folder if not tokenizer or _holds_tokenizer(folder) else store.resolve_tokenizer(tokenizer)
    if not _holds_tokenizer(words):  # transformers would make one up that knows no word
        raise ModelError(f"{words} holds no tokenizer; take a folder with its tokenizer.json or spiece.model")
    _need_sentencepiece(words)
    dtype = torch.bfloat16 if half and place.type == "cuda" else torch.float32
    with quiet():
        try:
            speaks = transformers.AutoTokenizer.from_pretrained(str(words), trust_remote_code=False)
            model = getattr(transformers, kind).from_pretrained(
                str(folder), use_safetensors=True, trust_remote_code=False, dtype=dtype
            )
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"transformers cannot load {source}: {reason}") from error
    if model.can_generate():
        model.generation_config.max_length = None  # every call says how much may be written
    return Network(speaks, model.to(place).eval(), place)


def _device(name: str) -> torch.device:
    import torch

    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise AttackError(f"{name!r} is no device; use cpu or cuda") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise AttackError("PyTorch finds no GPU here; use cpu")
    return place


def _holds_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in _TOKENIZER_FILES)


def _need_sentencepiece(folder: Path) -> None:
    """Transformers reads a SentencePiece vocabulary by two libraries, and without them asks for a third that cannot."""
    if (folder / "tokenizer.json").is_file() or not any(folder.glob("s*p*.model")):
        return
    for library in ("sentencepiece", "google.protobuf"):
        if not _installed(library):
            raise MissingExtra(library, "translate")


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:  # of the package that it would be in
        return False
