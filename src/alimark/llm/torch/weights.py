"""Weights for transformers: safetensors, or GGUF turned into safetensors once."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alimark._util.paths import cache_folder
from alimark.errors import LLMError

if TYPE_CHECKING:
    import torch

_PROBE = "It was the end of the day and there had been no time for all that they had to do"
"""Words so common that every tokenizer of English which has them as tokens reads them as such."""


def load(source: str | Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The tokenizer and the model, on the CPU, of a safetensors folder, a hub id or a GGUF file."""
    if not str(source).endswith(".gguf"):
        return _load(source, {"dtype": dtype})
    folder = converted(Path(source))
    tokenizer, model = _load(folder, {"dtype": dtype})
    if fault := misread(tokenizer):  # a folder of another version's making
        raise LLMError(f"the tokenizer in {folder} is broken: {fault}; delete the folder, and it is made anew")
    return tokenizer, model


def _load(source: str | Path, model_options: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"trust_remote_code": False, **options}
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source), **safe)
            model = AutoModelForCausalLM.from_pretrained(str(source), use_safetensors=True, **safe, **model_options)
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"transformers cannot load {source}: {reason}") from error
    return tokenizer, model


def converted(path: Path) -> Path:
    """The folder of safetensors made from a GGUF file; transformers takes minutes to read one, so it is done once."""
    from alimark.models.fetching import install, locked, staged

    if not path.is_file():
        raise LLMError(f"there is no GGUF file at {path}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    home = cache_folder()
    folder = home / "converted" / f"{path.stem}-{digest[:16]}"
    work = f"converted-{folder.name}"
    with locked(home, work):
        if not folder.is_dir():
            with staged(home, work) as staging:
                ready = staging / "ready"
                _convert(path, ready)
                install(ready, folder, staging)
    return folder


def _convert(path: Path, folder: Path) -> None:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):  # its progress bar heeds no setting
        # Half precision holds what was made of a few bits a weight, in half the space.
        tokenizer, read = _load(path.parent, {"dtype": torch.float16}, gguf_file=path.name)
    if fault := misread(tokenizer):
        raise LLMError(
            f"transformers {transformers.__version__} misreads the tokenizer of {path.name}: {fault}; install another version "
            "of transformers, or let llama.cpp, which reads such files itself, run the model"
        )
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):  # the numbers are plain by now, yet it would not be saved with that
        del config.quantization_config
    with quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def misread(tokenizer: Any) -> str:
    """How an English sentence shows that words were learned whole but are not read so; empty where nothing is wrong.

    Some versions of transformers take the merges of a GGUF's tokenizer for flat scores. The model then sees its prompt in
    pieces that it never learned, and writes nonsense without any error.
    """
    known = tokenizer.get_vocab()
    found = tokenizer.tokenize(_PROBE)
    for word in _PROBE.split()[1:]:
        whole = {mark + word for mark in ("\u2581", "\u0120")} & known.keys()
        if whole and not whole.intersection(found):
            return f"it knows {word!r} as one token, yet cuts the sentence into {' '.join(found[:12])} ..."
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice on stderr."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
