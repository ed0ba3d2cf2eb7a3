"""Where KGW and SIR add their bias: before temperature and top-p as the authors' code does, or after as transformers does."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_token_level import key_of, mark_of

from alimark.core.keys.key import Key
from alimark.core.llm.base import Sampling
from alimark.core.llm.llama_cpp import LlamaCpp
from alimark.errors import KeyFileError
from alimark.lab.bench import jobs
from alimark.lab.bench.recipe import WatermarkRow
from alimark.lab.rivals import _token_engines, _token_sampling, kgw, sir

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAMPLING = Sampling(temperature=0.6, top_p=0.8, repetition_penalty=1.3, may_end=True)


def sampled_from(marker: Any, llm: Any, prompt: list[int], text: list[int]) -> Any:
    """The log-probabilities that the next token is sampled from, over the whole vocabulary."""
    engine: Any = _token_engines.engine_of(llm)
    source = _token_engines.TorchSource(engine, [prompt + text], SAMPLING)
    text_ids = torch.tensor([text])
    with torch.inference_mode():
        tokens, logs = source.candidates(marker.bias(text_ids))
        step = _token_sampling.TokenStep(tokens, logs, text_ids, torch.tensor([0.5], dtype=torch.float64))
        biased = marker.biased(step).log_softmax(dim=1)
    return torch.full((1, 500), -torch.inf).scatter(1, tokens, biased)


def generated_from(llm: Any, ids: list[int], **options: Any) -> Any:
    """The same by `generate` of transformers."""
    answer = _token_engines.engine_of(llm).model.generate(  # type: ignore[attr-defined]
        torch.tensor([ids]), max_new_tokens=1, do_sample=True, temperature=0.6, top_p=0.8, top_k=0,
        repetition_penalty=1.3, output_scores=True, return_dict_in_generate=True, pad_token_id=0, **options,
    )  # fmt: skip
    return answer.scores[0].float().log_softmax(dim=1)


def assert_same(ours: Any, theirs: Any) -> None:
    assert (torch.isfinite(ours) == torch.isfinite(theirs)).all()
    assert torch.allclose(ours.exp(), theirs.exp(), atol=1e-5)


@pytest.mark.parametrize("bias", ["logits", "nucleus"])
def test_kgw_samples_as_transformers_does(bias: str, folder: Path, llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the green list of transformers in place of the hash. A processor of the user comes before temperature and top-p."""
    config = transformers.WatermarkingConfig(greenlist_ratio=0.5, bias=2.0, context_width=1)
    processor = config.construct_processor(500, "cpu")

    def listed(secret: Any, context: Any, tokens: Any, gamma: float) -> Any:
        return torch.stack(
            [torch.isin(row, processor._get_greenlist_ids(before)) for before, row in zip(context, tokens, strict=True)]
        )

    monkeypatch.setattr(kgw, "torch_green", listed)
    mark = mark_of("kgw", folder, bias=bias)
    marker = mark.marker([1], SimpleNamespace(device=torch.device("cpu")))
    prompt, text = [5, 6, 7], [11, 12, 40]
    ours = sampled_from(marker, llm, prompt, text)
    after = generated_from(llm, prompt + text, watermarking_config=config)
    before = generated_from(llm, prompt + text, logits_processor=transformers.LogitsProcessorList([processor]))
    assert_same(ours, before if bias == "logits" else after)
    assert not torch.allclose(before.exp(), after.exp(), atol=1e-3)


@pytest.mark.parametrize("bias", ["logits", "nucleus"])
def test_sir_adds_its_bias_at_the_same_place(bias: str, folder: Path, llm: Any) -> None:
    mark = mark_of("sir", folder, bias=bias, chunk=3, window=6)
    signs = torch.from_numpy(mark.biases([mark.tokenizer.text([11, 12, 40]).strip()]))

    class Shifted(transformers.LogitsProcessor):  # type: ignore[misc, name-defined]
        def __call__(self, ids: Any, scores: Any) -> Any:
            places = torch.from_numpy(sir.assigned(mark.secret, torch.arange(500).numpy(), 60))
            return scores + mark.parameters.delta * signs[:, places]

    marker = mark.marker([1], SimpleNamespace(device=torch.device("cpu")))
    prompt, text = [5, 6, 7], [11, 12, 40]
    ours = sampled_from(marker, llm, prompt, text)
    if bias == "logits":
        theirs = generated_from(llm, prompt + text, logits_processor=transformers.LogitsProcessorList([Shifted()]))
    else:
        theirs = Shifted()(None, generated_from(llm, prompt + text)).log_softmax(dim=1)
    assert_same(ours, theirs)


def test_without_enough_text_nothing_is_added(folder: Path) -> None:
    for scheme in ("kgw", "sir"):
        marker = mark_of(scheme, folder).marker([1], SimpleNamespace(device=torch.device("cpu")))
        assert marker.bias(torch.zeros((1, 0), dtype=torch.long)) is None
        assert mark_of(scheme, folder, bias="nucleus").marker([1], SimpleNamespace(device="cpu")).bias(
            torch.ones((1, 20), dtype=torch.long)
        ) is None  # fmt: skip


class TestLlamaCpp:
    """Its server applies temperature and top-p itself, so with a bias of the logits it is asked for neither."""

    class Server:
        """Like the real one, it gives no probabilities where the token it sampled is a part of a character."""

        def __init__(self, parts: int) -> None:
            self.bodies: list[dict[str, Any]] = []
            self.parts = parts

        def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            self.bodies.append(body)
            if len(self.bodies) <= self.parts:
                return {"tokens": [7 + (len(self.bodies) % 4 != 1)]}
            probabilities = [{"id": 3, "prob": 0.5}, {"id": 9, "prob": 0.3}, {"id": 4, "prob": 0.2}]
            return {"tokens": [3], "completion_probabilities": [{"top_probs": probabilities}]}

    def source(self, parts: int = 0) -> tuple[Any, Any]:
        server = self.Server(parts)

        def body(ids: list[int], sampling: Sampling, tokens: int, seed: int) -> dict[str, Any]:
            return {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": seed}

        llm: Any = SimpleNamespace(name="llama", _server=server, _body=body)
        llm.next_tokens = partial(LlamaCpp.next_tokens, llm)
        return server, _token_engines.NextTokenSource(llm, [[1, 2]], Sampling(temperature=0.5, top_p=0.9))

    def test_the_rest_is_done_here(self) -> None:
        server, source = self.source()
        tokens, logs = source.candidates(lambda tokens: 2.0 * (tokens == 4))
        assert (server.bodies[0]["temperature"], server.bodies[0]["top_p"]) == (1.0, 1.0)
        logits = torch.tensor([[0.5, 0.3, 0.2]]).log() + torch.tensor([[0.0, 0.0, 2.0]])
        expected = transformers.TopPLogitsWarper(0.9)(None, logits / 0.5).softmax(dim=1)
        ours = torch.zeros((1, 10)).scatter(1, tokens, logs.exp())
        assert torch.allclose(ours[0, [3, 9, 4]], expected[0], atol=1e-6)

    def test_where_a_part_of_a_character_was_sampled_it_is_asked_again(self) -> None:
        server, source = self.source(parts=2)
        tokens, logs = source.candidates(None)
        assert [body["seed"] for body in server.bodies] == [0, 1, 2]
        assert tokens.tolist() == [[3, 9, 4]]
        assert torch.allclose(logs.exp(), torch.tensor([[0.5, 0.3, 0.2]]))

    def test_where_only_parts_of_characters_come_they_are_counted(self) -> None:
        server, source = self.source(parts=1000)
        tokens, logs = source.candidates(None)
        assert len(server.bodies) == 16
        assert tokens.tolist() == [[8, 7]]  # the likeliest first
        assert torch.allclose(logs.exp(), torch.tensor([[0.75, 0.25]]))


class TestKeys:
    def test_new_keys_add_to_the_logits_and_say_so(self, folder: Path, tmp_path: Path) -> None:
        for scheme in ("kgw", "sir"):
            key = key_of(scheme, folder)
            assert key.parameters["bias"] == "logits"
            key.save(tmp_path / f"{scheme}.json")
            assert json.loads((tmp_path / f"{scheme}.json").read_text())["parameters"]["bias"] == "logits"
            again = Key.load(tmp_path / f"{scheme}.json")
            assert (again, again.parameters["bias"]) == (key, "logits")
            assert "bias" not in key_of(scheme, folder, bias="nucleus").public()["parameters"]
        assert key_of("kgw", folder, preset="transformers").parameters["bias"] == "nucleus"
        with pytest.raises(KeyFileError, match=r"one of logits, nucleus"):
            key_of("kgw", folder, bias="end")

    def test_records_of_the_bench_do_not_mix_the_two(self) -> None:
        row = {name: WatermarkRow(scheme="kgw", key={"bias": name}) for name in ("logits", "nucleus")}
        assert jobs._generation_parameters(WatermarkRow(scheme="kgw")) == {"bias": "logits"}
        assert jobs._generation_parameters(row["logits"]) == {"bias": "logits"}
        assert jobs._generation_parameters(row["nucleus"]) == {"bias": "nucleus"}
        assert jobs._generation_parameters(WatermarkRow(scheme="exp")) == {}
