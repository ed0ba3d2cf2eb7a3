"""The vLLM adapter on vLLM itself, on the CPU: `make test-vllm`. Where vLLM is not installed, nothing here runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stories import sentence_over
from test_llm_protocol import Promises

from alimark.core.llm import DEFAULT_LLM, load_llm
from alimark.core.llm.base import LLM, Request, Sampling
from alimark.errors import LLMError
from alimark.testing import StandInLLM
from tokenizing import CHAT_TEMPLATE, save_opt

pytest.importorskip("vllm")

OPTIONS = {"device": "cpu", "dtype": "float32", "enforce_eager": True}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """Lets the engine run in this process: processes of its own are ended hard, with messages, when the tests end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


@pytest.fixture(scope="module")
def opt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentences = [draw.text for draw in StandInLLM().draw([Request("", 200, 0)], Sampling(), sentence_over)[0]]
    frequent = {".": 3.5, "Ġ": 3.5, "Ċ": 1.5, "Ã": 1.5}
    return save_opt(tmp_path_factory.mktemp("opt"), sentences, frequent, CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def tiny_opt(opt_folder: Path) -> LLM:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALIMARK_HOME", str(opt_folder / "home"))  # the weights are converted
        return load_llm(f"vllm:{opt_folder}", **OPTIONS)


@pytest.fixture(scope="module")
def smollm() -> LLM:
    return load_llm(f"vllm:{DEFAULT_LLM}", max_model_len=1024, **OPTIONS)


class TestTinyOPT(Promises):
    """A random OPT in the layout of the model hub: a pickled checkpoint whose names begin with `decoder`."""

    engine = "tiny_opt"


@pytest.mark.weights
class TestSmolLM2(Promises):
    engine = "smollm"
    knows_france = True


def test_another_device_than_vllms_own_is_refused(opt_folder: Path) -> None:
    with pytest.raises(LLMError, match="runs on cpu, not on cuda"):
        load_llm(f"vllm:{opt_folder}", device="cuda")
