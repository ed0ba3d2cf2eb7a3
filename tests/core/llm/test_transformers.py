import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stories import never_over, sentence_over

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.generation.candidates import FirstSentence
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition, never
from alimark.core.text.continuations import read
from alimark.errors import LLMError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from alimark.gpu import adapter, attention, fused_layers  # noqa: E402
from alimark.gpu import engine as engine_module  # noqa: E402
from alimark.gpu import sampling as token_sampling  # noqa: E402
from alimark.gpu.continuous_batch import ContinuousBatch  # noqa: E402
from alimark.gpu.engine import Engine, TokenRequest  # noqa: E402
from alimark.gpu.sampling import rng_key  # noqa: E402

SETTINGS = [
    Sampling(),
    Sampling(1.0, 1.0, 1.0),
    Sampling(2.0, 0.5, 3.0),
    Sampling(0.3, 0.999, 0.8),
    Sampling(1.0, 1e-6),
]


def expected_law(logits: Any, history: Any, sampling: Sampling) -> Any:
    """By transformers' own processors."""
    from transformers.generation import logits_process as theirs

    scores = theirs.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(history, logits.clone())
    scores = theirs.TemperatureLogitsWarper(sampling.temperature)(history, scores)
    return torch.softmax(theirs.TopPLogitsWarper(sampling.top_p)(history, scores), dim=1)


def probabilities(*of: Any) -> Any:
    return torch.softmax(token_sampling.scores(*of), dim=1)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_the_law_is_that_of_transformers_own_processors(sampling: Sampling, spread: float) -> None:
    """Every token that may be drawn is drawn as often as it should be, and no other is."""
    generator = torch.Generator().manual_seed(1)
    logits = spread * torch.randn((2, 50), generator=generator)
    history = torch.randint(0, 50, (2, 20), generator=generator)
    expected = expected_law(logits, history, sampling)

    draws, tries = 20_000, token_sampling.tries_for(sampling.top_p)
    chances = probabilities(logits.clone(), history, sampling)
    keys = torch.randint(-(2**62), 2**62, (draws,), generator=generator)
    numbers = token_sampling.uniform_numbers(keys, torch.tensor(3), tries)
    for row in range(2):
        tokens = token_sampling.choose(chances[row : row + 1].expand(draws, -1), sampling.top_p, numbers)
        shares = torch.bincount(tokens, minlength=50) / draws
        assert not (shares[expected[row] == 0] > 0).any()
        torch.testing.assert_close(shares, expected[row], atol=0.015, rtol=0)


def test_a_bias_acts_inside_top_p() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, -3.0, -4.0]]).repeat(2, 1)
    sampling = Sampling(0.5, 0.9, 1.0)
    biases = torch.tensor([[0.0] * 5, [0.0, 1.0, 0.0, 30.0, 0.0]])
    plain = token_sampling.scores(logits, torch.zeros((2, 1), dtype=torch.long), sampling)
    law = torch.softmax(token_sampling.biased(plain, biases, torch.tensor([0, 1]), sampling), dim=1)
    expected = expected_law(logits, torch.zeros((2, 1), dtype=torch.long), sampling)
    torch.testing.assert_close(law[0], expected[0])
    assert law[1, 3] == 0, "no bias makes a token possible that lies outside"
    assert law[1, 1] / law[1, 0] == pytest.approx(float(expected[1, 1] / expected[1, 0]) * math.exp(1 / 0.5), rel=1e-4)


def test_a_model_that_would_end_goes_on_unless_it_may(tiny: Any) -> None:
    for may_end in (True, False):
        sampling = Sampling(10.0, 1.0, 1.0, max_tokens=100, may_end=may_end)
        [draws] = tiny.draw([Request("the", 200, 1)], sampling, never_over)
        assert ("model" in {draw.ended for draw in draws}) is may_end


def test_numbers_depend_on_seed_draw_and_step_alone() -> None:
    keys = torch.tensor([rng_key(5, i) for i in range(6)])
    whole = token_sampling.uniform_numbers(keys, torch.tensor(7), 4)
    assert torch.equal(whole[2:5, :2], token_sampling.uniform_numbers(keys[2:5], torch.tensor(7), 2))
    assert not torch.isin(token_sampling.uniform_numbers(keys, torch.tensor(8), 4), whole).any()
    assert len({rng_key(seed, i) for seed in range(20) for i in range(20)}) == 400


def test_numbers_are_uniform_and_independent() -> None:
    stats = pytest.importorskip("scipy.stats")
    keys = torch.tensor([rng_key(1, i) for i in range(3000)])
    numbers = torch.cat(
        [token_sampling.uniform_numbers(keys, torch.tensor(step), 6) for step in range(3)], dim=1
    ).numpy()
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(numbers.T) - np.eye(18)).max() < 0.09


def test_a_small_batch_gives_the_same_draws(tiny: Any, tiny_folder: Path) -> None:
    request = Request("The mayor opened the bridge.", 7, 2)
    whole = tiny.draw([request], Sampling(max_tokens=40), sentence_over)
    assert adapter.Transformers(tiny_folder, rows=3).draw([request], Sampling(max_tokens=40), sentence_over) == whole


def test_stopping_changes_no_first_sentence(tiny: Any) -> None:
    """The draws that stop are prefixes of those that do not."""
    request = Request("The mayor opened the bridge.", 30, 2)
    [stopped] = tiny.draw([request], Sampling(max_tokens=40), sentence_over)
    [whole] = tiny.draw([request], Sampling(max_tokens=40), never_over)
    assert sum(draw.ended == "sentence" for draw in stopped) > 10
    for short, long in zip(stopped, whole, strict=True):
        assert long.text.startswith(short.text)
        assert not sentence_over(short.text) or not sentence_over(short.text[:-2].rstrip())


def plain_draw(llm: Any, request: Request, number: int, sampling: Sampling) -> str:
    """Plain sampling that reads the whole text anew for every token, by the model's own attention."""
    prompt = llm._prompt(request, sampling)
    ids, key = list(prompt), torch.tensor([rng_key(request.seed, number)])
    llm._model.set_attn_implementation("eager")
    try:
        for step in range(sampling.max_tokens):
            with torch.inference_mode():
                logits = llm._model(torch.tensor([ids]), use_cache=False).logits[:, -1]
            numbers = token_sampling.uniform_numbers(key, torch.tensor(step), token_sampling.tries_for(sampling.top_p))
            chances = probabilities(logits.clone(), torch.tensor([ids]), sampling, llm._control)
            ids.append(int(token_sampling.choose(chances, sampling.top_p, numbers)))
    finally:
        llm._model.set_attn_implementation(attention.ATTENTION)
    text: str = llm._vocabulary.text(prompt[-8:] + ids[len(prompt) :])
    return text[len(llm._vocabulary.text(prompt[-8:])) :].rstrip("\ufffd")


REQUESTS = [
    Request("The mayor opened the bridge.", 5, 2),
    Request("A visitor lost every window on Friday, and nobody saw the old sailor.", 3, 4, first=9),
    Request("Did", 1, 6),
]


def test_a_batch_of_contexts_gives_what_a_fresh_reading_gives(tiny: Any) -> None:
    sampling = Sampling(max_tokens=20)
    for request, draws in zip(REQUESTS, tiny.draw(REQUESTS, sampling, never_over), strict=True):
        for i, draw in enumerate(draws):
            assert draw.text == plain_draw(tiny, request, request.first + i, sampling)


def test_a_longer_context_is_read_from_where_it_goes_on(
    tiny: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = ContinuousBatch.prefill

    def reading(self: Any, places: Any, contexts: Any, cached: Any) -> Any:
        read.append(sum(map(len, contexts)) - len(contexts) - sum(cached))
        return real(self, places, contexts, cached)

    monkeypatch.setattr(ContinuousBatch, "prefill", reading)
    start = "The teacher carried two horses across the border before dinner."
    sampling = Sampling(max_tokens=8)
    tiny.draw([Request(start, 2, 1)], sampling, never_over)
    tiny.draw([Request(start, 2, 1, first=2)], sampling, never_over)
    longer = Request(start + " The mayor sold a garden.", 2, 1)
    again = tiny.draw([longer], sampling, never_over)
    whole = len(tiny._prompt(longer, sampling))
    assert read[1] == 0
    assert 1 < read[2] < whole - read[0] + 3
    assert adapter.Transformers(tiny_folder).draw([longer], sampling, never_over) == again


@pytest.mark.parametrize("family", ["opt", "gemma2", "gemma3", "qwen2", "qwen3", "gpt_neox", "mistral"])
def test_models_of_many_kinds(family: str, tiny: Any, tmp_path: Path) -> None:
    """Learned positions, sliding windows, capped scores, fewer heads for keys: all as the model itself would attend."""
    import transformers

    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, len(tiny._tokenizer)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.save_pretrained(tmp_path)
    tiny._tokenizer.save_pretrained(tmp_path)
    llm = adapter.Transformers(tmp_path)
    sampling = Sampling(max_tokens=12)
    for request, draws in zip(REQUESTS, llm.draw(REQUESTS, sampling, never_over), strict=True):
        for i, draw in enumerate(draws):
            assert draw.text == plain_draw(llm, request, request.first + i, sampling)


def tiny_config(family: str, vocabulary: int) -> Any:
    import transformers

    options: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    special: dict[str, dict[str, Any]] = {
        "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
        "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "attn_logit_softcapping": 2.0},
        "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2},
        "qwen2": {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
        "mistral": {"num_key_value_heads": 2, "sliding_window": 8},
    }
    name = "gemma3_text" if family == "gemma3" else family
    return transformers.AutoConfig.for_model(name, **(options | special.get(name, {})))


def test_a_folder_without_a_model_and_pickled_weights_are_errors(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LLMError, match="cannot load"):
        adapter.Transformers(tmp_path)
    for file in tiny_folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(LLMError, match="cannot load"):
        adapter.Transformers(tmp_path)


@pytest.mark.parametrize("size", [0.5, 30.0, 1000.0])
def test_fused_norms_compute_what_the_models_own_do(size: float) -> None:
    """Also with weights so large that one more or less hardly shows, as gemma's are."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norms = torch.nn.ModuleList([LlamaRMSNorm(64), Gemma3RMSNorm(64)])
    values = torch.randn((5, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for norm in norms:
            norm.weight.copy_(size * torch.rand(64, generator=torch.Generator().manual_seed(2)))
        expected = [norm(values) for norm in norms]
        fused_layers.fuse(norms, None)
        for norm, wanted in zip(norms, expected, strict=True):
            torch.testing.assert_close(norm(values), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [7, 64])
def test_the_running_batch_gives_what_one_call_at_a_time_gives(tiny: Any, rows: int) -> None:
    """As on a GPU, steps ahead of the reading: draws of many callers come and go, and each is what it would be alone."""
    engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control, max_slots=rows, ahead=True)
    sampling, over = Sampling(max_tokens=24), FirstSentence(splitter(DEFAULT_SPLITTER))
    contexts = [f"The {noun} came over the sea" for noun in ("storm", "boat", "wind of the north", "birds")]
    contexts.append(contexts[0] + " in the night")  # begins as another does
    requests = [Request(context, 5 + i, seed=i, first=i) for i, context in enumerate(contexts)]

    def ask(request: Request, stop: StopCondition) -> list[Draw]:
        keys = [rng_key(request.seed, request.first + i) for i in range(request.count)]
        [found] = engine.draw([TokenRequest(tiny._prompt(request, sampling), keys)], sampling, stop)
        return found

    def firsts(found: list[list[Draw]]) -> list[str]:
        return [read(splitter(), draw.text, draw.ended).line for draws in found for draw in draws]

    with ThreadPoolExecutor(len(requests)) as callers:
        for _ in range(2):  # the second time what was read is still there
            whole = list(callers.map(ask, requests, [never] * len(requests)))
            assert whole == [one for request in requests for one in tiny.draw([request], sampling, never)]
            found = list(callers.map(ask, requests, [over] * len(requests)))
            # One looks at every fourth token, which may show some more behind the sentence.
            assert firsts(found) == firsts(
                [one for request in requests for one in tiny.draw([request], sampling, over)]
            )
    longer = Sampling(max_tokens=12)  # another way of sampling: all is laid out anew
    assert [one.tokens for one in engine.draw([TokenRequest([5, 6, 7], [1, 2])], longer, never)[0]] == [12, 12]


def test_callers_with_other_sampling_settings_keep_their_own(tiny: Any) -> None:
    """Both wait when the engine begins: the second must not change how the first is sampled."""
    engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control, max_slots=8)
    lengths = (20, 6, 20)
    with ThreadPoolExecutor(3) as callers:
        with engine._changed:  # the engine cannot begin before all have asked
            asked = [
                callers.submit(engine.draw, [TokenRequest([5, 6], [n])], Sampling(max_tokens=length), never)
                for n, length in enumerate(lengths)
            ]
            time.sleep(0.2)
        assert [one.result()[0][0].tokens for one in asked] == list(lengths)


def test_a_long_prompt_behind_short_ones_waits_for_a_batch_with_room(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wait when the engine begins. A batch for long contexts holds fewer of them than there are short ones."""
    monkeypatch.setattr(engine_module, "_MIN_CONTEXT_TOKENS", 4)
    monkeypatch.setattr(Engine, "_capacity", lambda self, context_tokens, max_tokens: (8, 64 // context_tokens))
    engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control)
    prompts = [[5, 6]] * 6 + [[5, 6, 7, 8] * 7]
    asked = [TokenRequest(prompt, [n]) for n, prompt in enumerate(prompts)]
    found = engine.draw(asked, Sampling(max_tokens=6), never)
    assert [[draw.tokens for draw in draws] for draws in found] == [[6]] * len(prompts)


@pytest.mark.parametrize(("owner", "step"), [(ContinuousBatch, "advance"), (Engine, "_choose_context")])
def test_an_engine_that_fails_tells_everybody_and_goes_on(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control, max_slots=8, ahead=True)
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, lambda *_: 1 / 0)
        with ThreadPoolExecutor(3) as callers:
            asked = [
                callers.submit(engine.draw, [TokenRequest([5, 6], [n])], Sampling(max_tokens=4), never)
                for n in range(3)
            ]
            assert [type(one.exception(timeout=20)) for one in asked] == [ZeroDivisionError] * 3
    assert len(engine.draw([TokenRequest([5, 6], [1])], Sampling(max_tokens=4), never)[0]) == 1


def test_a_thread_may_draw_after_the_main_thread_has_ended(tiny_folder: Path) -> None:
    program = f"""
import threading, time
from alimark.core.generation.candidates import FirstSentence
from alimark.core.llm.base import Request, Sampling
from alimark.gpu.adapter import Transformers
from alimark.gpu.engine import Engine, TokenRequest
from alimark.core.frozen.text.splitting import splitter

tiny = Transformers({str(tiny_folder)!r}, device="cpu")
engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control, max_slots=8)
sampling = Sampling(max_tokens=24)
prompt = tiny._prompt(Request("The storm came", 1, 1), sampling)

def draw():
    threading.main_thread().join()
    time.sleep(0.5)
    print(len(engine.draw([TokenRequest(prompt, list(range(6)))], sampling, FirstSentence(splitter()))[0]))

threading.Thread(target=draw).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "6", done.stderr


def test_a_closed_engine_ends_its_thread_and_says_so(tiny: Any) -> None:
    engine = Engine(tiny._model, tiny._layout, tiny._vocabulary, tiny._control, max_slots=8, ahead=True)
    with ThreadPoolExecutor(1) as callers:
        asked = callers.submit(engine.draw, [TokenRequest([5, 6], list(range(8)))], Sampling(max_tokens=200), never)
        while engine._thread is None:
            time.sleep(0.001)
        thread = engine._thread
        engine.close()
        assert not thread.is_alive()
        assert isinstance(asked.exception(), LLMError)
    with pytest.raises(LLMError, match="closed"):
        engine.draw([TokenRequest([5, 6], [1])], Sampling(max_tokens=4), never)
