"""Options of the engines, as `load_llm` takes them. The adapters' constructors say what they mean."""

from __future__ import annotations

from typing import Literal, TypedDict

Api = Literal["auto", "completions", "chat"]
DialectName = Literal["openai", "vllm", "sglang", "llama.cpp"]


class CommonOptions(TypedDict, total=False):
    """Options of all engines that run in this process. A server takes `name` alone of them."""

    name: str | None
    add_bos: int | None


class LlamaCppOptions(CommonOptions, total=False):
    """Options of `alimark.core.llm.llama_cpp.LlamaCpp`."""

    context_tokens: int
    threads: int | None
    parallel: int
    gpu_layers: int | None
    repeatable: bool


class TransformersOptions(CommonOptions, total=False):
    """Options of `alimark.gpu.adapter.Transformers`."""

    device: str | None
    dtype: str | None
    rows: int | None


class OpenAIOptions(TypedDict, total=False):
    """Options of `alimark.core.llm.openai.OpenAI`."""

    name: str | None
    model: str | None
    api: Api
    dialect: DialectName | None
    concurrency: int
    timeout: float
    retries: int
    backoff: float
    per_request: int | None


class VLLMOptions(CommonOptions, total=False):
    """Frequent options of `vllm.LLM`; `alimark.core.llm.vllm.VLLM` takes all of them."""

    dtype: str | None
    enable_prefix_caching: bool
    gpu_memory_utilization: float
    max_model_len: int | None
    quantization: str | None
    tensor_parallel_size: int


class LLMOptions(LlamaCppOptions, TransformersOptions, OpenAIOptions, VLLMOptions, total=False):
    """The options of all engines. An engine refuses options that are not its own."""
