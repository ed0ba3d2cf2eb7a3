"""Loading of weights with transformers: safetensors, or GGUF, which is converted to safetensors once."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alimark.core._util.paths import cache_folder
from alimark.errors import LLMError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PROBE = "It was the end of the day and there had been no time for all that they had to do"
"""Words so common that every English tokenizer whose vocabulary holds them must read them as single tokens."""


def load(source: str | Path, dtype: torch.dtype) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load the tokenizer and the model, on the CPU, from a safetensors folder, a hub id or a GGUF file."""
    if not str(source).endswith(".gguf"):
        return _load(source, dtype)
    folder = converted(Path(source))
    tokenizer, model = _load(folder, dtype)
    if fault := tokenizer_fault(tokenizer):  # converted by another version of transformers
        raise LLMError(f"the tokenizer in {folder} is broken: {fault}; delete the folder, and it is converted again")
    return tokenizer, model


def _load(source: str | Path, dtype: torch.dtype, **options: Any) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"trust_remote_code": False, **options}
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source), **safe)
            model = AutoModelForCausalLM.from_pretrained(str(source), use_safetensors=True, dtype=dtype, **safe)
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"transformers cannot load {source}: {reason}") from error
    return tokenizer, model


def converted(path: Path) -> Path:
    """The folder of safetensors converted from a GGUF file. Reading GGUF takes transformers minutes, so it is done once."""
    from alimark.core.models.fetching import build_once, sha256_of

    if not path.is_file():
        raise LLMError(f"there is no GGUF file at {path}; check the path")
    digest = sha256_of(path)
    return build_once(cache_folder(), f"{path.stem}-{digest[:16]}", lambda ready: _convert(path, ready))


def _convert(path: Path, folder: Path) -> None:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):  # its progress bar ignores every setting
        # Half precision is enough for weights of a few bits each.
        tokenizer, read = _load(path.parent, torch.float16, gguf_file=path.name)
    if fault := tokenizer_fault(tokenizer):
        raise LLMError(
            f"transformers {transformers.__version__} misreads the tokenizer of {path.name}: {fault}; install another version "
            "of transformers, or let llama.cpp, which reads such files itself, run the model"
        )
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):  # the weights are no longer quantised, and could not be saved with it
        del config.quantization_config
    with quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def tokenizer_fault(tokenizer: PreTrainedTokenizerBase) -> str:
    """What is wrong with a tokenizer that splits common words of its own vocabulary; empty if it does not.

    Some versions of transformers misread the merges of a GGUF's tokenizer. The model then gets its prompt in tokens that it
    was not trained on, and writes nonsense without any error.
    """
    known = tokenizer.get_vocab()
    tokens = tokenizer.tokenize(_PROBE)
    for word in _PROBE.split()[1:]:
        whole = {mark + word for mark in ("\u2581", "\u0120")} & known.keys()
        if whole and not whole.intersection(tokens):
            return f"it knows {word!r} as one token, yet cuts the sentence into {' '.join(tokens[:12])} ..."
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the progress bars and warnings of transformers."""
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
