import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stories import never_over, sentence_over

from alimark.core.llm import DEFAULT_LLM
from alimark.core.llm import llama_cpp as adapter
from alimark.core.llm.base import Request, Sampling
from alimark.errors import LLMError

GREEDY: dict[str, Any] = {"temperature": 0.01, "top_p": 0.01}


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    from alimark.core.llm.llama_cpp import LlamaCpp

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, but not really")
    with pytest.raises(LLMError, match="cannot load"):
        LlamaCpp(broken)
    with pytest.raises(LLMError, match="no GGUF file"):
        LlamaCpp(tmp_path / "absent.gguf")
    assert capfd.readouterr() == ("", "")


def test_busy_cores_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for idle, cores in ((1.0, 8), (0.5, 4), (0.0, 1)):
        ticks = iter([(0, 0), (int(800 * idle), 800)])
        monkeypatch.setattr(adapter, "_ticks", lambda ticks=ticks: next(ticks))
        assert adapter.free_cores(0) == cores

    def no_such_file() -> tuple[int, int]:
        raise FileNotFoundError

    monkeypatch.setattr(adapter, "_ticks", no_such_file)
    assert adapter.free_cores(0) == 8


@pytest.mark.weights
class TestLlamaCpp:
    def test_a_model_that_was_loaded_and_not_used_ends(self) -> None:
        """Its server's thread was not listening yet; dropping it then waited for ever."""
        program = f"from alimark.core.llm import load_llm; llm = load_llm({DEFAULT_LLM!r}); del llm; print('ended')"
        ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
        assert ended.stdout == "ended\n"

    def test_the_chain_is_temperature_then_top_p(self, llama_cpp: Any) -> None:
        """The server's probabilities after sampling, against transformers' rules on the raw ones."""
        torch = pytest.importorskip("torch")
        warpers = pytest.importorskip("transformers.generation.logits_process")

        sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.0)
        prompt = llama_cpp._prompt(Request("The weather in the north of the country was", 1, 1), sampling)
        body = {**llama_cpp._body(prompt, sampling, 1, 1), "response_fields": ["completion_probabilities"]}
        ask = llama_cpp._server.post
        llama_cpp._server.clear_caches()
        raw = ask("/completion", {**body, "n_probs": 49152})["completion_probabilities"][0]["top_logprobs"]
        llama_cpp._server.clear_caches()
        seen = ask("/completion", {**body, "n_probs": 2000, "post_sampling_probs": True})
        found = {token["id"]: token["prob"] for token in seen["completion_probabilities"][0]["top_probs"]}

        logits = torch.tensor([[token["logprob"] for token in raw]])
        scores = warpers.TopPLogitsWarper(0.9)(None, warpers.TemperatureLogitsWarper(0.7)(None, logits))
        weights = torch.softmax(scores, dim=1)[0].tolist()
        expected = {token["id"]: weight for token, weight in zip(raw, weights, strict=True) if weight}
        assert len(found) > 5
        assert found == pytest.approx(expected, abs=1e-4)

    def test_a_narrow_top_p_leaves_one_choice(self, llama_cpp: Any) -> None:
        sampling = Sampling(max_tokens=8, temperature=1.0, top_p=0.001)
        [draws] = llama_cpp.draw([Request("The capital of France is", 5, 1)], sampling, never_over)
        assert len({draw.text for draw in draws}) == 1

    def test_going_on_after_an_abbreviation_changes_no_choice(self, llama_cpp: Any) -> None:
        context = "My name is Dr. John, my name is Dr. John, my name is Dr. John, my name is"
        sampling = Sampling(max_tokens=12, repetition_penalty=1.0, **GREEDY)
        [[draw]] = llama_cpp.draw([Request(context, 1, 1)], sampling, never_over)
        body = llama_cpp._body(llama_cpp._prompt(Request(context, 1, 1), sampling), sampling, 12, 1)
        assert draw.text == llama_cpp._server.post("/completion", {**body, "stop": []})["content"]
        assert draw.text.startswith(" Dr. John")
        assert draw.tokens == 12

    def test_a_draw_goes_on_without_reading_the_prompt(self, llama_cpp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[int] = []
        post = llama_cpp._server.post

        def posted(path: str, body: dict[str, Any]) -> Any:
            answer = post(path, {**body, "response_fields": [*body.get("response_fields", []), "timings"]})
            if "id_slot" in body:
                read.append(answer["timings"]["prompt_n"])
            return answer

        monkeypatch.setattr(llama_cpp._server, "post", posted)
        context = "It was late and he was tired. She slept already. " * 10
        llama_cpp.draw([Request(context, 4, 1)], Sampling(max_tokens=60), never_over)
        assert read
        assert max(read) <= 60  # some of the draw itself, never the prompt

    def test_more_draws_than_slots_and_cells(self, llama_cpp: Any) -> None:
        sampling = Sampling(max_tokens=300)  # times eight, that is more than the cells
        context = "This text is about trains. They are old. People like them. " * 35 + "They are"
        [draws] = llama_cpp.draw([Request(context, 9, 3)], sampling, sentence_over)
        assert len(draws) == 9

    def test_threads_take_turns(self, llama_cpp: Any) -> None:
        def draws(seed: int) -> int:
            return len(llama_cpp.draw([Request("It was late.", 3, seed)], Sampling(max_tokens=8), sentence_over)[0])

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(draws, range(3))) == [3, 3, 3]

    def test_an_interrupt_comes_through(self, llama_cpp: Any) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
        timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
        started = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llama_cpp.draw([Request("It was late.", 64, 1)], Sampling(max_tokens=500), lambda text: len(text) > 9999)
        assert time.monotonic() - started < 10
        assert len(llama_cpp.draw([Request("It was late.", 2, 1)], Sampling(max_tokens=4), sentence_over)[0]) == 2

    def test_nothing_is_written_to_the_terminal(self, llama_cpp: Any, capfd: pytest.CaptureFixture[str]) -> None:
        llama_cpp.draw([Request("It was late.", 2, 1)], Sampling(max_tokens=8), sentence_over)
        assert capfd.readouterr() == ("", "")

    def test_a_missing_first_token_is_put_there(self, llama_cpp: Any) -> None:
        llama_cpp._add_bos = 1
        try:
            assert llama_cpp._prompt(Request("Hello", 1, 1), Sampling())[0] == 1
        finally:
            llama_cpp._add_bos = None
