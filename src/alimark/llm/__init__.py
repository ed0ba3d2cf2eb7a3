"""Language models: one protocol (`base`), and an adapter for each engine, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from alimark.errors import LLMError, MissingExtra
from alimark.llm.base import LLM, Draw, Message, Request, Sampling, StopCondition
from alimark.llm.options import LLMOptions

if TYPE_CHECKING:
    from alimark.models.manifest import Entry

__all__ = [
    "DEFAULT_LLM",
    "LLM",
    "Draw",
    "LLMOptions",
    "Message",
    "Request",
    "Sampling",
    "StopCondition",
    "known_llm",
    "load_llm",
]

DEFAULT_LLM = "smollm2-135m"
STAND_IN = "stand-in"
"""The name of the model that needs no weights."""


def load_llm(name: str | Path = DEFAULT_LLM, /, **options: Unpack[LLMOptions]) -> LLM:
    """Load a language model.

    A GGUF file runs on llama.cpp, or on transformers if only that is installed; everything else runs on transformers. A prefix
    chooses the engine: "llama.cpp:", "transformers:" or "vllm:". "openai:http://host:port/v1#model" is a model on a server;
    "#model" may be left out if the server has only one.

    Args:
        name: A name in the model store, a path, a hub id, or "stand-in" for a model that needs no weights.
        options: Options of the engine, such as `device`; see `alimark.llm.options`.

    Returns:
        The model. It may be shared by threads.

    Raises:
        MissingExtra: The library of the engine is not installed.
        ModelError: The weights cannot be found or fetched.
        LLMError: The name is not that of a language model, or the engine cannot load it.

    Example:
        >>> import alimark
        >>> alimark.load_llm("stand-in").name
        'stand-in'
    """
    from alimark.models import store

    if name == STAND_IN:
        from alimark.testing import StandInLLM

        return StandInLLM()
    engine, model = _engine_of(str(name))
    if engine == "openai":
        return _openai(model, **options)
    known = known_llm(model)
    _need(engine)  # before gigabytes are fetched
    path = store.resolve(model)
    if not engine:
        gguf = path.suffix == ".gguf"
        engine = "llama.cpp" if gguf and (find_spec("xllamacpp") or not find_spec("transformers")) else "transformers"
        _need(engine)
    if known and known.add_bos is not None:
        options.setdefault("add_bos", known.add_bos)
    return _ADAPTERS[engine](path, **{"name": Path(model).name, **options})


def known_llm(name: str) -> Entry | None:
    """The entry of a language model in the model store, or None for a path or a hub id."""
    from alimark.models import store

    known = store.entries().get(name)
    if known and known.kind != "llm":
        llms = ", ".join(entry.name for entry in store.entries().values() if entry.kind == "llm")
        raise LLMError(f"{name} is not a language model but of kind {known.kind}; language models are: {llms}")
    return known


def _llama_cpp(path: Path, **options: Any) -> LLM:
    from alimark.llm.llama_cpp import LlamaCpp

    return LlamaCpp(path, **options)


def _transformers(path: Path, **options: Any) -> LLM:
    from alimark.llm.torch.adapter import Transformers

    return Transformers(path, **options)


def _vllm(path: Path, **options: Any) -> LLM:
    from alimark.llm.vllm import VLLM

    return VLLM(path, **options)


def _openai(address: str, **options: Any) -> LLM:
    from alimark.llm.openai import OpenAI

    base_url, _, model = address.partition("#")
    return OpenAI(base_url, **{"model": model or None, **options})


_ADAPTERS: dict[str, Callable[..., LLM]] = {"llama.cpp": _llama_cpp, "transformers": _transformers, "vllm": _vllm}
_LIBRARIES = {
    "llama.cpp": ("xllamacpp", "llama-cpp"),
    "transformers": ("transformers", "transformers"),
    "vllm": ("vllm", "vllm"),
}


def _engine_of(name: str) -> tuple[str, str]:
    engine, colon, model = name.partition(":")
    return (engine, model) if colon and engine in (*_ADAPTERS, "openai") else ("", name)


def _need(engine: str) -> None:
    if engine and not find_spec(_LIBRARIES[engine][0]):
        raise MissingExtra(*_LIBRARIES[engine])
