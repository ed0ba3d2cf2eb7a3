"""Language models for the tests: a stand-in, a tiny random one on transformers, and real ones from the store."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from stories import sentence_over

from alimark.core.llm import DEFAULT_LLM, load_llm
from alimark.core.llm.base import LLM, Request, Sampling
from alimark.testing import StandInLLM
from tokenizing import CHAT_TEMPLATE, save_phi


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Phi (its output layer has biases, so that marks and ends can be made frequent) and a small BPE."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sentences = [draw.text for draw in StandInLLM().draw([Request("", 200, 0)], Sampling(), sentence_over)[0]]
    biases = {".": 6.0, "Ġ": 3.0, "Ċ": 2.0, "<end>": 1.0, "Ã": 2.0}
    sizes = {"vocabulary": 400, "num_attention_heads": 4, "max_position_embeddings": 256}
    return save_phi(
        tmp_path_factory.mktemp("tiny"), sentences, 20, lambda t: biases.get(t, 0.0), CHAT_TEMPLATE, **sizes
    )


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LLM:
    return load_llm(tiny_folder)


@pytest.fixture(scope="session")
def llama_cpp() -> LLM:
    pytest.importorskip("xllamacpp")
    return load_llm(f"llama.cpp:{DEFAULT_LLM}", parallel=8, context_tokens=1024, repeatable=True)


@pytest.fixture(scope="session")
def real_transformers() -> LLM:
    pytest.importorskip("transformers")
    return load_llm(f"transformers:{DEFAULT_LLM}")


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a llama.cpp server that wants a key, which is in the environment meanwhile."""
    xllamacpp = pytest.importorskip("xllamacpp")
    pytest.importorskip("httpx")
    from alimark.core.models import store

    key = secrets.token_hex(16)
    params = xllamacpp.CommonParams()
    params.model.path = str(store.resolve(DEFAULT_LLM))
    params.verbosity = -1
    params.warmup = False
    params.n_parallel = 4
    params.n_ctx = 2048
    params.kv_unified = True
    params.kv_unified_per_slot = 512
    params.ctx_shift = False
    params.cache_ram_mib = 0  # what it takes from there is not quite what it would compute
    params.n_threads_http = 8
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [key]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    running = xllamacpp.Server(params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALIMARK_API_KEY", key)
        yield f"{running.listening_address}/v1"
    del running


@pytest.fixture(scope="session")
def served(server: str) -> Iterator[LLM]:
    """A server in its own dialect; one request at a time, since others in the same batch would move its logits."""
    from alimark.core.llm.openai import OpenAI

    with OpenAI(server, concurrency=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def served_plainly(server: str) -> Iterator[LLM]:
    """A server taken for one of which nothing is known."""
    from alimark.core.llm.openai import OpenAI

    with OpenAI(server, dialect="openai", concurrency=1) as llm:
        yield llm
