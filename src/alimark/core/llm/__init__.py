"""Language models: one protocol (`base`), and an adapter for each engine, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from alimark.core._util.registry import Registry
from alimark.core.llm.base import LLM, Draw, Message, Request, Sampling, StopCondition
from alimark.errors import LLMError, MissingExtra

if TYPE_CHECKING:
    from alimark.core.llm.openai import OpenAI
    from alimark.core.models.manifest import Entry

__all__ = [
    "DEFAULT_LLM",
    "LLM",
    "Draw",
    "Message",
    "Request",
    "Sampling",
    "SomeLLM",
    "StopCondition",
    "as_llm",
    "check_llm",
    "is_served",
    "known_llm",
    "load_llm",
    "may_give_next_tokens",
    "plain_name",
]

DEFAULT_LLM = "smollm2-135m"
SomeLLM: TypeAlias = LLM | str | Path  # a language model, or its name as `load_llm` takes it
ENGINES: Registry[Callable[..., LLM]] = Registry(
    "engine",
    "alimark.engines",
    {
        "llama.cpp": "alimark.core.llm:_llama_cpp",
        "transformers": "alimark.core.llm:_transformers",
        "vllm": "alimark.core.llm:_vllm",
        "openai": "alimark.core.llm:_openai",
        "trusted": "alimark.core.llm:_trusted",
        "stand-in": "alimark.testing:StandInLLM",  # needs no weights, for trying things out
    },
    error=LLMError,
)
"""Functions that make a language model: of what follows the colon in "engine:model", if anything does, and of options."""


def load_llm(name: str | Path = DEFAULT_LLM, /, **options: object) -> LLM:
    """Load a language model.

    A GGUF file runs on llama.cpp, or on transformers if only that is installed; everything else runs on transformers. A prefix
    chooses the engine: "llama.cpp:", "transformers:" or "vllm:". "openai:http://host:port/v1#model" is a model on a server;
    "#model" may be left out if the server has only one. "trusted:" in place of "openai:" says that the server may learn the
    keys that texts are marked with, so that its model is steered.

    Args:
        name: A name in the model store, a path, a hub id, or "stand-in" for a model that needs no weights.
        options: Options of the engine, such as `device`; the constructor of its adapter says what they mean.

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
    engine, colon, model = str(name).partition(":")
    if _registered(engine, bool(colon)):
        return ENGINES.make(
            engine,
            lambda adapter: adapter(model, **options) if colon else adapter(**options),
            attributes=("name", "draw"),
        )
    return _from_files("", str(name), **options)


def as_llm(llm: SomeLLM) -> LLM:
    """The model itself, or that of a name, which stays loaded until another is asked for by name."""
    if isinstance(llm, str | Path):
        return _kept(load_llm, str(llm))
    if not hasattr(llm, "draw"):
        raise LLMError(
            f"a language model is what alimark.load_llm returns, or its name such as {DEFAULT_LLM!r}, not "
            f"{type(llm).__name__}"
        )
    return llm


@lru_cache(maxsize=1)
def _kept(load: Callable[[str], LLM], name: str) -> LLM:
    return load(name)


def check_llm(name: str) -> None:
    """Check that a model of a name as for `load_llm` can be loaded, without downloading weights. A server is asked for it."""
    from alimark.core.models import store

    engine, colon, model = name.partition(":")
    if not _registered(engine, bool(colon)):
        engine, model = "", name
    elif engine in _SERVERS:
        _openai(model, retries=0, timeout=10.0).close()
        return
    elif engine not in _ENGINES_OF_FILES:
        ENGINES.get(engine)
        return
    _need(engine or _usual_engine(gguf=known_llm(model) is not None or model.endswith(".gguf")))
    store.check(model)


def known_llm(name: str) -> Entry | None:
    """What the store knows of a language model; nothing of a path or a hub id."""
    from alimark.core.models import store

    known = store.entries().get(name)
    if known and known.kind != "llm":
        llms = ", ".join(entry.name for entry in store.entries().values() if entry.kind == "llm")
        raise LLMError(f"{name} is not a language model but of the kind {known.kind}; language models are: {llms}")
    return known


def plain_name(llm: str) -> str:
    """The name of a language model without an engine of files in front of it.

    Example:
        >>> plain_name("transformers:smollm2-135m")
        'smollm2-135m'
    """
    engine, _, model = llm.partition(":")
    return model if model and engine in _ENGINES_OF_FILES else llm


def is_served(llm: str) -> bool:
    """Whether a language model, by its name, runs on a server, so that this process needs no GPU for it."""
    return llm.startswith(tuple(f"{engine}:" for engine in _SERVERS))


def may_give_next_tokens(llm: str) -> bool:
    """Whether a language model may offer its next tokens (`base.OffersNextTokens`), as far as its name tells."""
    return llm.partition(":")[0] not in (*_SERVERS, "vllm", "stand-in")


def _registered(engine: str, has_model: bool) -> bool:
    """Whether a name begins with an engine. Without a model it is one only where no model of the store has that name."""
    from alimark.core.models import store

    if not has_model and (engine in store.names() or engine in _ENGINES_OF_FILES):
        return False
    return engine in ENGINES


_ENGINES_OF_FILES = {
    "llama.cpp": ("xllamacpp", "llama-cpp", "alimark.core.llm.llama_cpp:LlamaCpp"),
    "transformers": ("transformers", "transformers", "alimark.gpu.adapter:Transformers"),
    "vllm": ("vllm", "vllm", "alimark.core.llm.vllm:VLLM"),
}
"""Engines that read files of weights: the library of each, the extra that installs it, and the adapter."""


def _from_files(engine: str, model: str, **options: Any) -> LLM:
    """A model from files of the store, a path or the hub, on an engine or, without one, on the one that fits the files."""
    from alimark.core.models import store

    known = known_llm(model)
    _need(engine)  # before gigabytes are fetched
    path = store.resolve(model)
    if not engine:
        engine = _usual_engine(gguf=path.suffix == ".gguf")
        _need(engine)
    if path.is_dir():
        path = store.resolve_weights(model)  # OPT and others are on the hub as pickled checkpoints only
    if known and known.add_bos is not None:
        options.setdefault("add_bos", known.add_bos)
    module, name = _ENGINES_OF_FILES[engine][2].split(":")
    adapter: Callable[..., LLM] = getattr(import_module(module), name)
    return adapter(path, **{"name": Path(model).name, **options})


_llama_cpp = partial(_from_files, "llama.cpp")
_transformers = partial(_from_files, "transformers")
_vllm = partial(_from_files, "vllm")


def _openai(address: str = "", **options: Any) -> OpenAI:
    from alimark.core.llm.openai import OpenAI

    base_url, _, model = address.partition("#")
    return OpenAI(base_url, **{"model": model or None, **options})


_SERVERS = ("openai", "trusted")
_trusted = partial(_openai, trusted=True)


def _usual_engine(gguf: bool) -> str:
    """The engine of a model whose name has none."""
    return "llama.cpp" if gguf and (find_spec("xllamacpp") or not find_spec("transformers")) else "transformers"


def _need(engine: str) -> None:
    if engine and not find_spec(_ENGINES_OF_FILES[engine][0]):
        raise MissingExtra(*_ENGINES_OF_FILES[engine][:2])
