"""The vLLM adapter, against a stand-in that keeps to vLLM's documented interface."""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stories import never_over, sentence_over

from alimark.core import llm as package
from alimark.core.llm.base import Message, Request, Sampling
from alimark.core.llm.vllm import VLLM
from alimark.errors import ContextFull, LLMError, MissingExtra

CONTEXT = "It was late."
ASKED = (Message("user", "Why is the sky blue?"),)
END = 0
BEGIN = 1


class Tokenizer:
    """A token is a word with the blank before it. 0 ends a text, 1 begins it; both are special."""

    all_special_ids = (END, BEGIN)

    def __init__(self) -> None:
        self._words = ["<end>", "<begin>"]
        self.chat_template: str | None = "some"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [BEGIN] if add_special_tokens else []
        for word in re.findall(r"<\w+>|\s*[^\s<]+|\s+", text):
            if word not in self._words:
                self._words.append(word)
            ids.append(self._words.index(word))
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        shown = [i for i in ids if not (skip_special_tokens and i in self.all_special_ids)]
        return "".join(self._words[i] for i in shown)

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool = True, **options: Any) -> str:
        assert not tokenize
        assert options == {"add_generation_prompt": True, "enable_thinking": False}
        if self.chat_template is None:
            raise ValueError("tokenizer.chat_template is not set")
        return "<begin>" + "".join(f"[{one['role']}]{one['content']}" for one in messages) + "[assistant]"


@dataclass(kw_only=True)
class SamplingParams:
    """The fields of vLLM's class that are used here; another one is a TypeError, as there."""

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool = True


def output(text: str, ids: list[int], reason: str, stop: str | None = None) -> SimpleNamespace:
    """The fields of vLLM's CompletionOutput."""
    return SimpleNamespace(index=0, text=text, token_ids=ids, finish_reason=reason, stop_reason=stop)


def request_output(number: int, ids: list[int], answer: SimpleNamespace) -> SimpleNamespace:
    """The fields of vLLM's RequestOutput."""
    return SimpleNamespace(request_id=str(number), prompt_token_ids=ids, outputs=[answer])


class Engine:
    """In place of vllm.LLM. It tells `story`, or words by chance, and remembers what it was asked."""

    story: str | None = None
    made: Engine

    def __init__(self, model: str, **options: Any) -> None:
        if model == "broken":
            raise ValueError("no config.json\nand more")
        self.model, self.options = model, options
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=options.get("max_model_len", 200)))
        self.tokenizer = Tokenizer()
        self.calls: list[tuple[list[list[int]], list[SamplingParams]]] = []
        self.left_over: list[SimpleNamespace] = []
        self._busy = threading.Lock()
        type(self).made = self

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def generate(
        self, prompts: list[dict[str, list[int]]], sampling_params: list[SamplingParams], *, use_tqdm: bool = True
    ) -> list[SimpleNamespace]:
        assert not use_tqdm
        assert self._busy.acquire(blocking=False), "vllm.LLM is no thing for two threads"
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        self.calls.append((ids, sampling_params))
        outputs = [
            request_output(number, prompt, self._one(prompt, params))
            for number, (prompt, params) in enumerate(zip(ids, sampling_params, strict=True))
        ]
        self._busy.release()
        left, self.left_over = self.left_over, []
        return left + outputs

    def _one(self, prompt: list[int], params: SamplingParams) -> SimpleNamespace:
        assert params.max_tokens is not None
        ids: list[int] = []
        for token in self._tokens(prompt, params):
            ids.append(token)
            text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
            if token == END and not params.ignore_eos:
                return output(text, ids, "stop")
            for stop in params.stop or ():
                if (at := text.find(stop)) >= 0:
                    text = text[: at + len(stop) if params.include_stop_str_in_output else at]
                    return output(text, ids, "stop", stop)
            if len(ids) == params.max_tokens:
                break
        return output(text, ids, "length")

    def _tokens(self, prompt: list[int], params: SamplingParams) -> Any:
        if self.story is not None:
            told = [*self.tokenizer.encode(self.story, add_special_tokens=False), END]
            yield from told[len(prompt) - len(self.tokenizer.encode(CONTEXT)) :]
        chance = random.Random(f"{params.seed} {prompt}")
        words = self.tokenizer.encode(" red green blue black white. Or. pink! Grey", add_special_tokens=False)
        while True:
            banned = params.logit_bias or {}
            yield chance.choice([word for word in [*words, END] if banned.get(word, 0) > -100])


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> VLLM:
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = Engine, SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(device_type="cuda")
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(Engine, "story", None)
    return VLLM("some/model", gpu_memory_utilization=0.5)


def test_what_the_engine_is_told(llm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Engine.made.model == "some/model"
    assert Engine.made.options == {
        "enable_prefix_caching": True,
        "trust_remote_code": False,
        "load_format": "safetensors",
        "gpu_memory_utilization": 0.5,
    }
    assert (llm.name, repr(llm), llm.max_concurrency, llm.limits) == ("model", "<VLLM model>", 1, ())
    monkeypatch.setattr("alimark.core.llm.vllm.converted", lambda path: path.with_suffix(""))
    VLLM("x.gguf", name="mine", enable_prefix_caching=False)
    assert (Engine.made.model, Engine.made.options["enable_prefix_caching"]) == ("x", False)


def test_a_model_that_cannot_be_loaded_is_an_error(llm: VLLM) -> None:
    with pytest.raises(LLMError, match=r"cannot load broken: no config.json$"):
        VLLM("broken")


def test_the_device_is_vllms_own(llm: VLLM) -> None:
    VLLM("some/model", device="cuda:0")
    assert "device" not in Engine.made.options
    with pytest.raises(LLMError, match="runs on cuda, not on cpu"):
        VLLM("some/model", device="cpu")


def test_loading_by_name(llm: VLLM, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").touch()
    with monkeypatch.context() as patch:
        patch.setattr(package, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"alimark\[vllm\]"):
            package.load_llm(f"vllm:{tmp_path}")
    monkeypatch.setattr(package, "find_spec", lambda name: name == "vllm")
    loaded = package.load_llm(f"vllm:{tmp_path}", max_model_len=77)
    assert isinstance(loaded, VLLM)
    assert loaded.name == tmp_path.name
    assert (Engine.made.model, Engine.made.options["max_model_len"]) == (str(tmp_path), 77)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"alimark\[vllm\]"):
        VLLM("some/model")


def test_how_it_samples(llm: VLLM) -> None:
    llm.draw([Request(CONTEXT, 2, 1)], Sampling(0.5, 0.9, 1.3, 99), sentence_over)
    prompts, (one, other) = Engine.made.calls[0]
    assert prompts == [Engine.made.tokenizer.encode(CONTEXT)] * 2
    assert one.seed != other.seed
    assert (one.n, one.temperature, one.top_p, one.repetition_penalty, one.max_tokens) == (1, 0.5, 0.9, 1.3, 99)
    assert one.stop is not None
    assert {". ", "! ", ".\n"} <= set(one.stop)
    assert one.ignore_eos
    assert one.logit_bias == {END: -100.0, BEGIN: -100.0}
    bias = np.array([0, 0.5], np.float32)
    llm.draw([Request(CONTEXT, 1, 1, bias=bias), Request(CONTEXT, 1, 1)], Sampling(), sentence_over)
    assert [params.logit_bias for params in Engine.made.calls[-1][1]] == [{1: 0.5, **one.logit_bias}, one.logit_bias]
    llm.draw([Request(CONTEXT, 1, 1)], Sampling(may_end=True), sentence_over)
    [free] = Engine.made.calls[-1][1]
    assert (free.ignore_eos, free.logit_bias) == (False, None)


def test_all_requests_run_as_one_batch_and_waves_give_the_same(llm: VLLM) -> None:
    requests = [Request(CONTEXT, 3, 1), Request("It rained.", 1, 2), Request(CONTEXT, 0, 3)]
    draws = llm.draw(requests, Sampling(), sentence_over)
    assert [len(group) for group in draws] == [3, 1, 0]
    assert len(Engine.made.calls[0][0]) == 4
    assert len({one.text for one in draws[0]}) == 3
    waves = [llm.draw([Request(CONTEXT, n, 1, first)], Sampling(), sentence_over)[0] for n, first in ((1, 0), (2, 1))]
    assert waves[0] + waves[1] == draws[0]
    assert llm.draw([], Sampling(), sentence_over) == []


def test_a_draw_goes_on_from_its_exact_tokens(llm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "story", " There Mr. Dr. Prof. King St. Helen went home. Then all slept.")
    [[one]] = llm.draw([Request(CONTEXT, 1, 1)], Sampling(), lambda text: "home. " in text)
    assert (one.text, one.ended) == (" There Mr. Dr. Prof. King St. Helen went home. ", "sentence")
    told = Engine.made.tokenizer.encode(CONTEXT + " There Mr. Dr.")
    [second], [params] = Engine.made.calls[1]
    assert second == told  # with the word that made the blank
    assert params.max_tokens == 128 - 3
    assert params.seed != Engine.made.calls[0][1][0].seed
    assert [bool(params.stop) for _, [params] in Engine.made.calls] == [True, True, True, False]


def test_a_sentence_may_be_over_behind_the_stop(llm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "story", " One etc. Two three.")
    [[one]] = llm.draw([Request(CONTEXT, 1, 1)], Sampling(), lambda text: text.endswith("etc. Two"))
    assert (one.text, one.tokens, one.ended) == (" One etc. Two", 3, "sentence")
    assert len(Engine.made.calls) == 1


def test_why_a_draw_ends(llm: VLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "story", " One. Two three. Four")
    for sampling, text, tokens, ended in (
        (Sampling(may_end=True), " One. Two three. Four", 5, "model"),
        (Sampling(max_tokens=3), " One. Two three.", 3, "length"),
    ):
        [[one]] = llm.draw([Request(CONTEXT, 1, 1)], sampling, never_over)
        assert (one.text, one.tokens, one.ended) == (text, tokens, ended)
    [[one]] = llm.draw([Request(CONTEXT, 1, 1)], Sampling(), sentence_over)
    assert (one.text, one.tokens, one.ended) == (" One. ", 2, "sentence")


def test_a_chat(llm: VLLM) -> None:
    fresh, begun = Request("", 1, 1, messages=ASKED), Request("Air is", 1, 1, messages=ASKED)
    llm.draw([fresh, begun], Sampling(max_tokens=4), never_over)
    opened = f"<begin>[user]{ASKED[0].content}[assistant]"
    tokenizer = Engine.made.tokenizer
    assert [tokenizer.decode(ids) for ids in Engine.made.calls[0][0]] == [opened, opened + "Air is"]
    tokenizer.chat_template = None
    with pytest.raises(LLMError, match="chat template"):
        llm.draw([fresh], Sampling(), never_over)


def test_a_context_without_room_is_an_error(llm: VLLM) -> None:
    assert llm.draw([Request("word " * 70, 1, 1)], Sampling(max_tokens=128), sentence_over)
    with pytest.raises(ContextFull, match="200"):
        llm.draw([Request("word " * 71, 1, 1)], Sampling(max_tokens=128), sentence_over)


def test_an_empty_context_is_an_error_and_a_missing_first_token_is_put_there(llm: VLLM) -> None:
    tokenizer = Engine.made.tokenizer
    tokenizer.encode = lambda text, add_special_tokens=True: [7] if text else []  # type: ignore[method-assign]
    with pytest.raises(LLMError, match="empty"):
        llm.draw([Request("", 1, 1)], Sampling(), sentence_over)
    llm._add_bos = BEGIN
    assert llm._prompt(Request("x", 1, 1), Sampling()) == [BEGIN, 7]


def test_what_an_interrupt_left_behind_is_dropped(llm: VLLM) -> None:
    expected = llm.draw([Request(CONTEXT, 2, 1)], Sampling(), sentence_over)
    Engine.made.left_over = [request_output(0, [], output("stale", [9], "length"))]
    assert llm.draw([Request(CONTEXT, 2, 1)], Sampling(), sentence_over) == expected


def test_threads_take_turns(llm: VLLM) -> None:
    with ThreadPoolExecutor(8) as pool:
        draws = list(pool.map(lambda seed: llm.draw([Request(CONTEXT, 5, seed)], Sampling(), sentence_over), range(40)))
    assert [len(group) for [group] in draws] == [5] * 40
