"""Loads the tokenizer that a token-level key names, without the language model it belongs to."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.files import write_whole
from alimark.core._util.paths import cache_folder
from alimark.core.llm import plain_name
from alimark.errors import MissingExtra, ModelError

Ids = NDArray[np.int64]

SAMPLE = "The keeper's map, 12.5 miles wide (or so), was older than the town."
"""A text that different tokenizers encode differently."""

_PARTS = ("model", "normalizer", "pre_tokenizer", "added_tokens")


class TextTokenizer:
    """The tokenizer of a language model. Threads may share an instance."""

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
            raise ModelError(f"{file} is not a tokenizer file ({reason}); give a tokenizer.json") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = name
        self.fingerprint = fingerprint_of(content)

    @property
    def size(self) -> int:
        """The number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def ids(self, text: str) -> Ids:
        """Encodes a text as tokens, without special tokens at its start or end."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def pieces(self, text: str) -> list[str]:
        """The part of a text that each of its tokens stands for; together they are the text."""
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        return [text[start:end] for start, end in pairwise([0, *ends[:-1], len(text)])] if ends else []

    def text(self, ids: Ids | list[int]) -> str:
        """Decodes tokens, leaving out special ones."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def agrees(self, other: TextTokenizer) -> bool:
        """Whether another tokenizer encodes text in the same way, as far as a sample shows."""
        return self.fingerprint == other.fingerprint or bool(np.array_equal(self.ids(SAMPLE), other.ids(SAMPLE)))

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.name}>"


def fingerprint_of(content: dict[str, object]) -> str:
    """The hash of those parts of a tokenizer.json that decide how text is encoded; decoding and chat templates are left out."""
    parts = json.dumps({part: content.get(part) for part in _PARTS}, sort_keys=True, ensure_ascii=True)
    return "sha256:" + hashlib.sha256(parts.encode()).hexdigest()


@lru_cache(maxsize=8)
def load_tokenizer(name: str | Path) -> TextTokenizer:
    """Loads the tokenizer of a model of the store, of a path (a tokenizer.json, its folder or a GGUF file) or of a hub id."""
    plain = plain_name(str(name))
    file = _in_store(plain) or _resolved(plain)
    if file.is_dir():
        file = file / "tokenizer.json" if (file / "tokenizer.json").is_file() else _as_json(file, name)
    return TextTokenizer(file, plain)


def _as_json(folder: Path, name: str | Path) -> Path:
    """The tokenizer.json of a model that has the files of a slow tokenizer only, such as OPT; transformers converts them."""
    problem = ModelError(
        f"{name} has no tokenizer.json; name a model with a fast tokenizer, or the path of a tokenizer.json"
    )
    if not any(folder.glob("vocab.*")) and not any(folder.glob("*.model")):
        raise problem
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "transformers") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        content = tokenizer.backend_tokenizer.to_str().encode()
    except (AttributeError, OSError, ValueError, KeyError):
        raise problem from None
    file = cache_folder() / "converted" / f"tokenizer-{hashlib.sha256(content).hexdigest()[:16]}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    return file


def _in_store(name: str) -> Path | None:
    """The folder of a store model's converted tokenizer, if it exists, so that the weights need not be downloaded."""
    from alimark.core.models import store

    known = store.entries().get(name)
    if known is None or known.kind != "llm":
        return None
    weights = known.weights
    folder = cache_folder() / "converted" / f"{Path(weights.path).stem}-{weights.sha256[:16]}"
    return folder if (folder / "tokenizer.json").is_file() else None


def _resolved(name: str) -> Path:
    from alimark.core.models import store

    file = store.resolve_tokenizer(name)
    if file.suffix != ".gguf":
        return file
    from alimark.core.models.torch_weights import converted

    return converted(file)
