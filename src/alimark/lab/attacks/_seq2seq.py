"""Loads the PyTorch models of paraphrasers: encoder-decoder models that generate text, and classifiers.

Models run in float32, on a GPU too, because the result then hardly ever depends on the batch. A model that is too large for
that runs in bfloat16 on a GPU. Pickled weights and code that comes with a model are never loaded.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from alimark.core.text.language import without_half_pairs
from alimark.errors import AttackError, MissingExtra, ModelError
from alimark.lab.attacks.base import Attack

if TYPE_CHECKING:
    import torch

LIBRARIES = (("torch", "transformers"), ("transformers", "transformers"))
"""What every attack by such a model needs: libraries, each with the extra that installs it."""

_TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, eq=False)
class Network:
    """A model with its tokenizer, ready to run."""

    tokenizer: Any
    model: Any
    device: torch.device

    def encode(self, texts: list[str], max_tokens: int, pairs: list[str] | None = None) -> Any:
        """The texts, or pairs of texts, as one padded batch, each cut to `max_tokens`."""
        options = {"padding": True, "truncation": True, "max_length": max_tokens, "return_tensors": "pt"}
        return self.tokenizer(texts, pairs, **options).to(self.device)

    def generate(self, texts: list[str], max_tokens: int, **options: Any) -> Any:
        """The rows of tokens that the model generates for texts, each cut to `max_tokens`."""
        import torch

        with torch.inference_mode():
            return self.model.generate(**self.encode(texts, max_tokens), **options)

    def lengths(self, rows: Any) -> list[int]:
        """The number of tokens in each row that was generated, without the start token."""
        lengths: list[int] = (rows[:, 1:] != self.model.generation_config.pad_token_id).sum(1).tolist()
        return lengths

    def decode(self, rows: Any) -> list[str]:
        """The texts of rows of tokens, each on one line."""
        return [one_line(text) for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def one_line(text: str) -> str:
    """The text with single spaces and no line breaks, as in the training texts of these models.

    Half a surrogate pair, which tokenizers cannot read, becomes the replacement character.
    """
    return without_half_pairs(" ".join(text.split()))


class NetworkAttack(Attack):
    """Base class of attacks by such models: its fields whose names end in `model` name them."""

    by_model = True
    device: str

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in self.options() if name.endswith("model"))

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        return LIBRARIES


SEQ2SEQ, CLASSIFIER = "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification"

# Attacks share a loaded model, since some have billions of parameters. It is freed with the last attack that uses it.
_in_use: WeakValueDictionary[tuple[str, str, str, str, bool], Network] = WeakValueDictionary()
_loading = threading.Lock()


def load_network(
    source: str, device: str, kind: str = SEQ2SEQ, *, tokenizer: str = "", bfloat16: bool = False
) -> Network:
    """Loads a model of the store, a folder or the hub; without a `device`, on the GPU if there is one.

    `kind` is the class of transformers that loads it, and `tokenizer` is used where the folder of the model has none.
    """
    name = (kind, source, device, tokenizer, bfloat16)
    with _loading:
        network = _in_use.get(name)
        if network is None:
            network = _in_use[name] = _load(*name)
    return network


def _load(kind: str, source: str, device: str, tokenizer: str, bfloat16: bool) -> Network:
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "transformers") from None
    from alimark.core.models import store
    from alimark.core.models.torch_weights import quiet

    torch_device = _device(device)
    folder = store.resolve_weights(source)
    tokenizer_folder = folder if not tokenizer or _has_tokenizer(folder) else store.resolve_tokenizer(tokenizer)
    if not _has_tokenizer(tokenizer_folder):  # transformers would create one with an empty vocabulary
        raise ModelError(f"{tokenizer_folder} holds no tokenizer; use a folder with a tokenizer.json or spiece.model")
    _need_sentencepiece(tokenizer_folder)
    dtype = torch.bfloat16 if bfloat16 and torch_device.type == "cuda" else torch.float32
    with quiet():
        try:
            loaded_tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(tokenizer_folder), trust_remote_code=False
            )
            model = getattr(transformers, kind).from_pretrained(
                str(folder), use_safetensors=True, trust_remote_code=False, dtype=dtype
            )
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"transformers cannot load {source}: {reason}") from error
    if model.can_generate():
        model.generation_config.max_length = None  # every call sets max_new_tokens
    return Network(loaded_tokenizer, model.to(torch_device).eval(), torch_device)


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise AttackError(f"{name!r} is not a device; use cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise AttackError("PyTorch finds no GPU on this machine; use cpu")
    return device


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / file).is_file() for file in _TOKENIZER_FILES)


def _need_sentencepiece(folder: Path) -> None:
    """Raises MissingExtra where a SentencePiece vocabulary cannot be read; transformers would name another library."""
    if (folder / "tokenizer.json").is_file() or not any(folder.glob("s*p*.model")):
        return
    for library in ("sentencepiece", "google.protobuf"):
        if not _installed(library):
            raise MissingExtra(library, "lab")


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:  # its parent package is missing
        return False
