"""The tokenizer that a token-level key names: all that its detector needs of the language model."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark._util.paths import cache_folder
from alimark.errors import KeyMismatch, ModelError

Ids = NDArray[np.int64]

_PARTS = ("model", "normalizer", "pre_tokenizer", "added_tokens")
_ENGINES = ("transformers:", "llama.cpp:", "vllm:")


class TextTokenizer:
    """A model's tokenizer without the model. Safe to share by threads."""

    def __init__(self, file: Path, name: str) -> None:
        from tokenizers import Tokenizer

        try:
            data = file.read_bytes()
            self._tokenizer = Tokenizer.from_buffer(data)
            content = json.loads(data)
        except OSError as error:
            raise ModelError(f"cannot read the tokenizer {file}: {error.strerror}") from None
        except Exception as error:  # the library raises no narrower one
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{file} is no tokenizer file: {reason}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = name
        self.fingerprint = _fingerprint(content)

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def ids(self, text: str) -> Ids:
        """The tokens of a text and nothing else: no sign that begins or ends one is added."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def text(self, ids: Ids | list[int]) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.name}>"


def _fingerprint(content: dict[str, object]) -> str:
    """Of what decides which tokens a text has; decoding and templates do not."""
    parts = json.dumps({part: content.get(part) for part in _PARTS}, sort_keys=True, ensure_ascii=True)
    return "sha256:" + hashlib.sha256(parts.encode()).hexdigest()


def vocabulary_of(tokenizer_json: str) -> str:
    """The fingerprint of a tokenizer that is loaded elsewhere."""
    return _fingerprint(json.loads(tokenizer_json))


def load_tokenizer(name: str | Path) -> TextTokenizer:
    """By the name of a language model of the store, a path (a tokenizer.json, its folder, a GGUF file) or a hub id."""
    return _loaded(str(name))


@lru_cache(maxsize=8)
def _loaded(name: str) -> TextTokenizer:
    plain = next((name[len(engine) :] for engine in _ENGINES if name.startswith(engine)), name)
    file = _in_store(plain) or _resolved(plain)
    if file.is_dir():
        file /= "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{name} has no tokenizer.json; name a model with a fast tokenizer, or that file itself")
    return TextTokenizer(file, plain)


def _in_store(name: str) -> Path | None:
    """Where the store holds a model's tokenizer already: then its weights are not asked for."""
    from alimark.models import store

    known = store.entries().get(name)
    if known is None or known.kind != "llm":
        return None
    weights = known.weights
    folder = cache_folder() / "converted" / f"{Path(weights.path).stem}-{weights.sha256[:16]}"
    return folder if (folder / "tokenizer.json").is_file() else None


def _resolved(name: str) -> Path:
    from alimark.models import store

    file = store.resolve_tokenizer(name)
    if file.suffix != ".gguf":
        return file
    from alimark.llm.torch.weights import converted

    return converted(file)


def check_tokenizer(tokenizer: TextTokenizer, vocabulary: str, key_id: str) -> None:
    """Raises KeyMismatch where a key was made for another tokenizer."""
    if vocabulary and tokenizer.fingerprint != vocabulary:
        raise KeyMismatch(
            f"key {key_id} was made for another tokenizer ({vocabulary[:19]}...) than {tokenizer.name} "
            f"({tokenizer.fingerprint[:19]}...); use the one of the model that wrote the text"
        )
