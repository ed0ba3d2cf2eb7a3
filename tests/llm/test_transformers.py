from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overs import never_over, sentence_over

from alimark.errors import LLMError
from alimark.llm.base import Request, Sampling

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from alimark.llm import transformers as adapter  # noqa: E402

SETTINGS = [
    Sampling(),
    Sampling(1.0, 1.0, 1.0),
    Sampling(2.0, 0.5, 3.0),
    Sampling(0.3, 0.999, 0.8),
    Sampling(1.0, 1e-6),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_the_distribution_is_that_of_transformers_own_processors(sampling: Sampling, spread: float) -> None:
    from transformers.generation import logits_process as theirs

    generator = torch.Generator().manual_seed(1)
    logits = spread * torch.randn((8, 500), generator=generator)
    history = torch.randint(0, 500, (8, 60), generator=generator)
    seen = torch.zeros((8, 500), dtype=torch.bool).scatter_(1, history, True)

    scores = theirs.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(history, logits.clone())
    scores = theirs.TemperatureLogitsWarper(sampling.temperature)(history, scores)
    scores = theirs.TopPLogitsWarper(sampling.top_p)(history, scores)
    expected = torch.softmax(scores, dim=1)

    weights, ids = adapter.filtered(logits, seen, sampling)
    found = torch.zeros_like(expected).scatter_(1, ids, weights / weights.sum(dim=1, keepdim=True))
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected)


def test_sampling_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(20_000, 1)
    seen = torch.zeros_like(logits, dtype=torch.bool)
    numbers = torch.from_numpy(adapter.uniform_numbers(3, 0, 20_000, 1))[:, 0]
    tokens = adapter.sample(logits, seen, Sampling(1.0, 0.9, 1.0), numbers)
    shares = np.bincount(tokens.numpy(), minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=0.015)


def test_a_model_that_would_end_goes_on_unless_it_may(tiny: Any) -> None:
    for may_end in (True, False):
        sampling = Sampling(10.0, 1.0, 1.0, max_tokens=100, may_end=may_end)
        [draws] = tiny.draw([Request("the", 200, 1)], sampling, never_over)
        assert ("model" in {draw.ended for draw in draws}) is may_end


def test_numbers_depend_on_seed_and_draw_alone() -> None:
    whole = adapter.uniform_numbers(5, 0, 6, 10)
    np.testing.assert_array_equal(whole[2:5, :4], adapter.uniform_numbers(5, 2, 3, 4))
    assert not np.isin(adapter.uniform_numbers(6, 0, 6, 10), whole).any()


def test_a_batch_in_turns_gives_the_same_draws(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("The mayor opened the bridge.", 7, 2)
    whole = tiny.draw([request], Sampling(max_tokens=40), sentence_over)
    monkeypatch.setattr(adapter, "ROWS", 3)
    assert tiny.draw([request], Sampling(max_tokens=40), sentence_over) == whole


def test_stopping_changes_no_first_sentence(tiny: Any) -> None:
    """The draws that stop are prefixes of those that do not."""
    request = Request("The mayor opened the bridge.", 30, 2)
    [stopped] = tiny.draw([request], Sampling(max_tokens=40), sentence_over)
    [whole] = tiny.draw([request], Sampling(max_tokens=40), never_over)
    assert sum(draw.ended == "sentence" for draw in stopped) > 10
    for short, long in zip(stopped, whole, strict=True):
        assert long.text.startswith(short.text)
        assert not sentence_over(short.text) or not sentence_over(short.text[:-2].rstrip())


def test_the_cache_gives_what_a_fresh_reading_gives(tiny: Any) -> None:
    """Draws against plain sampling that reads the whole text anew for every token."""
    request, sampling = Request("The mayor opened the bridge.", 3, 2), Sampling(max_tokens=20)
    [draws] = tiny.draw([request], sampling, never_over)
    numbers = adapter.uniform_numbers(2, 0, 3, 20)
    prompt = tiny._prompt(request.context, sampling)
    for row, draw in enumerate(draws):
        ids = list(prompt)
        for step in range(draw.tokens):
            with torch.inference_mode():
                logits = tiny._model(torch.tensor([ids])).logits[:, -1]
            seen = torch.zeros_like(logits, dtype=torch.bool)
            seen[:, ids] = True
            ids.append(int(adapter.sample(logits, seen, sampling, torch.from_numpy(numbers[row, step : step + 1]))))
        text = tiny._tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        assert text.rstrip("\ufffd") == draw.text


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LLMError, match="cannot load"):
        adapter.Transformers(tmp_path)


def test_pickled_weights_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for file in tiny_folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(LLMError, match="cannot load"):
        adapter.Transformers(tmp_path)
