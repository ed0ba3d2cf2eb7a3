"""The token-level rivals whole: written in batches by a tiny model, found again, and the same as transformers would have it."""

import pickle
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import token_models
from scipy import stats

import alimark
from alimark.core.detection.stats.p_values import RandomKeys, significance_of
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.llm import load_llm
from alimark.core.llm.base import Request, Sampling
from alimark.core.models import torch_weights
from alimark.errors import KeyFileError, KeyMismatch, LLMError, TextError
from alimark.lab.bench.evaluate import evaluate
from alimark.lab.bench.recipe_files import parse
from alimark.lab.bench.requirements import needs
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from alimark.lab.rivals import _prf, _token_engines, _token_sampling, kgw, sir, synthid
from alimark.lab.rivals.sir import SIR
from alimark.lab.rivals.tokens import load_tokenizer
from alimark.testing import StandInEmbedder, StandInLLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SCHEMES = ("kgw", "exp", "synthid", "sir")
PROMPTS = [
    "The teacher found a letter near the river.",
    "It was late.",
    "A stranger and the mayor sold the piano in the city.",
]
PLAIN = Sampling(temperature=1.0, top_p=1.0, repetition_penalty=1.0)
EMBEDDER = StandInEmbedder()


def prose(seed: int, sentences: int = 12) -> str:
    """What the stand-in writes."""
    draws = StandInLLM().draw([Request("", sentences, seed)], Sampling(), lambda text: text[-1:] in ".?!")[0]
    return " ".join(draw.text.strip() for draw in draws)


@cache
def network() -> Fitted:
    """Trained as `alimark fit sir` does."""
    return SIR.fit([prose(i) for i in range(40)], EMBEDDER, dimension=60, passages=200, epochs=10)


def key_of(scheme: str, folder: Path, number: int = 1, **parameters: Any) -> Key:
    more: dict[str, Any] = {"embedder": EMBEDDER, "fitted": network(), "dimension": 60} if scheme == "sir" else {}
    secret = bytes([number]) * 32
    return Key.generate(scheme=scheme, secret=secret, tokenizer=str(folder), **{**more, **parameters})


def mark_of(scheme: str, folder: Path, number: int = 1, **parameters: Any) -> Any:
    return alimark.load(key_of(scheme, folder, number, **parameters), embedder=EMBEDDER if scheme == "sir" else None)


def test_tokens_are_shown_in_a_notebook_and_stay_out_of_records(folder: Path) -> None:
    mark = mark_of("kgw", folder)
    detection = mark.detect(f"<b>The teacher</b> found a letter. {prose(1, 2)}")
    assert pickle.loads(pickle.dumps(detection)).tokens == ()  # noqa: S301
    shown = detection._repr_html_()
    assert "<b>The teacher" not in shown
    assert shown.count("<span") == len(detection.tokens) == detection.evidence["tokens"]
    assert "tokens" not in detection.report() | detection.details


@pytest.mark.parametrize("scheme", SCHEMES)
def test_marked_text_is_found_and_other_keys_find_nothing(scheme: str, folder: Path, llm: Any) -> None:
    own: dict[str, Any] = {"length": 64} if scheme == "exp" else {}
    mark = mark_of(scheme, folder, **own)
    made = mark.generate(PROMPTS, llm, tokens=64, seed=5, sampling=PLAIN)
    found = mark.detect([one.text for one in made], draws=100)
    assert [one.p_value for one in found] == [1 / 101] * 3
    assert min(one.score for one in found) > 3
    plain = mark.detect(prose(7)).tokens
    for text, detection in zip(made, found, strict=True):
        assert "".join(piece for piece, _ in detection.tokens) == text.text.strip()
        assert np.nanmean([strength for _, strength in detection.tokens]) > np.nanmean([x for _, x in plain]) + 0.05
    others = [mark_of(scheme, folder, number, **own).detect([one.text for one in made], draws=100) for number in (2,)]
    assert sum(one.p_value > 0.05 for some in others for one in some) >= 2
    assert {(one.scheme, one.key_id, one.tokens) for one in made} == {(scheme, mark.key.id, 64)}
    assert all(not one.text.startswith(prompt[:10]) for one, prompt in zip(made, PROMPTS, strict=True))
    again = mark.generate(PROMPTS, llm, tokens=10, seed=5, sampling=PLAIN)
    # Nothing is carried over.
    assert all(one.text.startswith(short.text) for one, short in zip(made, again, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_text_does_not_depend_on_its_batch(scheme: str, folder: Path, llm: Any) -> None:
    """Keys may differ, also in where they add their bias."""
    place: dict[str, Any] = {"bias": "nucleus"} if scheme in ("kgw", "sir") else {}
    keys = [key_of(scheme, folder), key_of(scheme, folder, 2, **place), key_of(scheme, folder)]
    prompts = [Prompt(text, 7 + i, key) for i, (text, key) in enumerate(zip(PROMPTS, keys, strict=True))]
    settings = GenerationSettings(2, 1, Sampling(temperature=0.9, top_p=0.9, max_tokens=20))
    mark = mark_of(scheme, folder)
    together = dict(mark.generate_many(prompts, llm, settings))
    for i, prompt in enumerate(prompts):
        one = alimark.load(keys[i], embedder=EMBEDDER if scheme == "sir" else None)
        alone = one.generate(prompt.text, llm, sentences=2, seed=7 + i, sampling=settings.sampling)
        assert together[i].text == alone.text
        assert together[i].key_id == keys[i].id


def test_length_in_sentences_or_tokens(folder: Path, llm: Any) -> None:
    mark = mark_of("kgw", folder)
    made = mark.generate(PROMPTS, llm, sentences=3, seed=1, sampling=Sampling(max_tokens=80))
    assert [len(one.sentences) for one in made] == [3, 3, 3]
    assert {one.ended for one in made} == {"complete"}
    [short] = mark.generate(PROMPTS[:1], llm, tokens=7, seed=1)
    assert short.tokens == 7
    assert "tokens" not in made[0].record("a")["settings"]
    assert short.record("a")["settings"]["tokens"] == 7
    with pytest.raises(alimark.AlimarkError, match="leave no room"):
        mark.generate("It was late.", llm, tokens=5000)


def test_the_model_is_shared_and_its_logits_are_its_own(folder: Path, llm: Any) -> None:
    engine: Any = _token_engines.engine_of(llm)
    assert id(engine) == id(_token_engines.engine_of(llm))
    assert engine.model.lm_head.weight is llm._model.lm_head.weight
    _, plain = torch_weights.load(folder, torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        assert torch.allclose(engine.model(ids).logits, plain(ids).logits, atol=1e-5)
    assert len(llm.draw([Request("It was", 1, 1)], Sampling(max_tokens=4), lambda _: False)[0]) == 1


def test_what_alimark_does_to_a_model_for_a_gpu_is_undone_in_the_copy() -> None:
    from alimark.gpu import attention, fused_layers

    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = model(ids).logits
        attention.install(model)
        fused_layers.fuse(model, object())
        assert torch.allclose(_token_engines._plain(model)(ids).logits, expected, atol=1e-5)
    assert "forward" in vars(model.model.layers[0].self_attn)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
def test_nucleus_is_that_of_transformers(top_p: float) -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)) * 2
    tokens, logs = _token_engines.nucleus(logits, top_p)
    warped = transformers.TopPLogitsWarper(top_p)(None, logits).log_softmax(dim=1)
    ours = torch.full_like(logits, -torch.inf).scatter(1, tokens, logs)
    assert (torch.isfinite(ours) == torch.isfinite(warped)).all()
    assert torch.allclose(ours.exp(), warped.exp(), atol=1e-6)


def test_repetition_is_penalised_as_in_transformers(folder: Path, llm: Any) -> None:
    engine: Any = _token_engines.engine_of(llm)
    source = _token_engines.TorchSource(engine, [[5, 6, 7], [9]], Sampling())
    for tokens in ([11, 13], [12, 9]):
        source.take(torch.tensor(tokens))
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(2))
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.15)
    for row, seen in enumerate(([5, 6, 7, 11, 12], [9, 13, 9])):
        expected = processor(torch.tensor([seen]), logits[row : row + 1].clone())[0]
        assert torch.allclose(source.penalised(logits)[row], expected)


def test_draws_follow_the_probabilities() -> None:
    chances = torch.tensor([0.5, 0.3, 0.2]).expand(20_000, 3)
    uniform = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    tokens = torch.tensor([[7, 8, 9]]).expand(20_000, 3)
    step = _token_sampling.TokenStep(tokens, chances.log(), tokens[:, :0], uniform)
    counts = torch.bincount(step.sampled(step.logs), minlength=10)[7:].numpy()
    assert stats.chisquare(counts, 20_000 * np.array([0.5, 0.3, 0.2])).pvalue > 0.001


def _step(own: Any, logits: Any) -> _token_sampling.TokenStep:
    tokens, logs = _token_engines.nucleus(logits, 1.0)
    return _token_sampling.TokenStep(tokens, logs, own, torch.full((len(own),), 0.5, dtype=torch.float64))


class HashedGreenList(transformers.WatermarkLogitsProcessor):  # type: ignore[misc, name-defined]
    """The processor of transformers with the green list of a key."""

    def __init__(self, mark: kgw.KGW) -> None:
        parameters = mark.parameters
        super().__init__(
            500, "cpu", greenlist_ratio=parameters.gamma, bias=parameters.delta, context_width=parameters.context
        )
        self.mark = mark

    def _get_greenlist_ids(self, input_seq: Any) -> Any:
        context = input_seq[None, -self.context_width :]
        secret, gamma = _prf.on("cpu", self.mark.secret), self.mark.parameters.gamma
        return kgw.torch_green(secret, context, torch.arange(500)[None], gamma)[0].nonzero()[:, 0]


def test_kgw_is_transformers_processor_and_detector_with_a_hashed_list(folder: Path, llm: Any) -> None:
    mark = mark_of("kgw", folder, gamma=0.25, bias="nucleus")
    processor = HashedGreenList(mark)
    own = torch.tensor([[3, 4, 5], [6, 7, 8]])
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(4)).log_softmax(dim=1)
    ours = kgw.GreenBias(mark.secret, mark.parameters, "cpu").biased(_step(own, logits))
    assert torch.allclose(ours, processor(own, logits), atol=1e-6)
    config = transformers.WatermarkingConfig(greenlist_ratio=0.25, context_width=1)
    settings = transformers.PretrainedConfig(vocab_size=500, bos_token_id=-1, is_encoder_decoder=False)
    detector = transformers.WatermarkDetector(settings, "cpu", config, ignore_repeated_ngrams=True)
    detector.processor = processor
    made = mark.generate("It was late.", llm, tokens=60, seed=1, sampling=PLAIN)
    theirs = detector(torch.from_numpy(mark.tokenizer.ids(made.text))[None], return_dict=True)
    found = mark.detect(made.text)
    assert found.evidence["green"] == theirs.num_green_tokens[0]
    assert found.evidence["scored"] == theirs.num_tokens_scored[0]
    assert found.z == pytest.approx(theirs.z_score[0])
    assert found.evidence["p_normal"] == pytest.approx(stats.norm.sf(found.z))
    assert found.evidence["p_binomial"] == pytest.approx(
        stats.binom.sf(found.evidence["green"] - 1, found.evidence["scored"], 0.25)
    )


def test_synthid_plays_the_tournaments_of_transformers(folder: Path) -> None:
    mark = mark_of("synthid", folder, ngram=3, history=3)
    processor = mark.logits_processor()
    tournament = mark.marker([1, 2], SimpleNamespace(device=torch.device("cpu")))
    own = torch.zeros((2, 0), dtype=torch.long)
    random = torch.Generator().manual_seed(5)
    tokens = torch.tensor([[4, 5, 4, 5, 4, 9, 4, 5], [7, 7, 7, 7, 7, 7, 7, 7]])  # contexts that come again
    prompt = torch.tensor([[1, 2], [3, 3]])
    unmarked = 0
    for n in range(8):
        logits = torch.randn(2, 500, generator=random).log_softmax(dim=1)
        ours = tournament.played(_step(own, logits))
        theirs = processor(torch.cat([prompt, own], dim=1), logits)
        assert torch.allclose(ours.exp(), theirs.exp(), atol=1e-6)
        unmarked += int(torch.allclose(ours[1], logits[1]))
        own = tokens[:, : n + 1]
    assert 0 < unmarked < 8


def test_synthid_scores_what_transformers_detectors_would(folder: Path, llm: Any, tmp_path: Path) -> None:
    torch.manual_seed(6)
    config = transformers.BayesianDetectorConfig(watermarking_depth=30, base_rate=0.4)
    detector = transformers.BayesianDetectorModel(config)
    with torch.no_grad():
        detector.likelihood_model_watermarked.delta.normal_(0, 0.3)
        detector.likelihood_model_watermarked.beta.normal_(-1, 0.5)
    detector.save_pretrained(tmp_path)
    plain = mark_of("synthid", folder)
    text = plain.generate("It was late.", llm, tokens=60, seed=1, sampling=PLAIN).text
    ids = torch.from_numpy(plain.tokenizer.ids(text))[None]
    processor = plain.logits_processor()
    mask = processor.compute_context_repetition_mask(ids)
    values = processor.compute_g_values(ids)
    found = plain.detect(text)
    assert found.raw == pytest.approx(float(values[mask].double().mean()))
    assert found.z == pytest.approx((found.raw - 0.5) / np.sqrt(0.25 / (30 * int(mask.sum()))))
    weighted = mark_of("synthid", folder, score="weighted")
    weights = torch.linspace(10, 1, 30, dtype=torch.float64)
    assert weighted.detect(text).raw == pytest.approx(float((values[mask].double() @ weights).mean() / weights.sum()))
    learned = Fitted.load(tmp_path / "model.safetensors")
    bayesian = mark_of("synthid", folder, score="bayesian", fitted=learned)
    odds = bayesian.detect(text).raw
    with torch.no_grad():
        theirs = transformers.SynthIDTextWatermarkDetector(detector, processor, SimpleNamespace(eos_token_id=0))(ids)[0]
    assert 1 / (1 + np.exp(-odds)) == pytest.approx(float(theirs), rel=1e-4)
    with pytest.raises(KeyFileError, match="trained detector"):
        key_of("synthid", folder, score="bayesian")
    with pytest.raises(KeyFileError, match="5 layers"):
        key_of("synthid", folder, score="bayesian", depth=5, fitted=learned)


@pytest.mark.parametrize("scheme", ["kgw", "synthid"])
def test_texts_that_transformers_wrote_under_the_key_are_found(scheme: str, folder: Path, llm: Any) -> None:
    mark = mark_of(scheme, folder)
    processor = HashedGreenList(mark) if scheme == "kgw" else mark.logits_processor()
    torch.manual_seed(3)
    engine: Any = _token_engines.engine_of(llm)
    prompt = torch.from_numpy(mark.tokenizer.ids("It was late."))[None]
    processors = transformers.LogitsProcessorList([processor])
    ids = engine.model.generate(
        prompt, max_new_tokens=80, do_sample=True, top_k=0, pad_token_id=0, logits_processor=processors
    )
    text = mark.tokenizer.text(ids[0, prompt.shape[1] :].tolist())
    found, other = mark.detect(text), mark_of(scheme, folder, 2).detect(text)
    assert found.p_value <= 0.005
    assert found.z > 3
    assert abs(other.z) < 3


@pytest.mark.parametrize(("scheme", "count"), [("kgw", 300), ("exp", 300), ("synthid", 300), ("sir", 100)])
def test_p_values_of_unmarked_text_are_uniform(scheme: str, count: int, folder: Path) -> None:
    """Texts that repeat themselves, one key each; ties are broken at random."""
    random = np.random.default_rng(8)
    size = load_tokenizer(folder).size
    found = []
    for number in range(count):
        mark = mark_of(scheme, folder, number % 250, **({"length": 32} if scheme == "exp" else {}))
        ids = random.choice(random.integers(1, size, 12), 40)
        seen = mark.find(ids)
        found.append(significance_of(seen.raw, seen.null, RandomKeys(draws=40)).randomised(random.random()))
    assert stats.kstest(found, "uniform").pvalue > 0.01


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_come_back_from_their_files(scheme: str, folder: Path, tmp_path: Path) -> None:
    own: dict[str, Any] = {"length": 16} if scheme == "exp" else {}
    key = key_of(scheme, folder, **own)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again.id, dict(again.parameters)) == (key.id, dict(key.parameters))
    text = prose(1, 5)
    mark = mark_of(scheme, folder, **own)
    other: Any = alimark.load(again, embedder=EMBEDDER if scheme == "sir" else None)
    assert other.detect(text).to_dict() == mark.detect(text).to_dict()
    assert key._secret.hex() not in repr(mark)


@pytest.fixture(scope="module")
def written() -> Any:
    pytest.importorskip("xllamacpp")
    return load_llm("llama.cpp:smollm2-135m", parallel=2, context_tokens=256, threads=1)


@pytest.mark.weights
@pytest.mark.parametrize("scheme", ["kgw", "exp"])
def test_llama_cpp_writes_marked_text_a_request_for_each_token(scheme: str, written: Any) -> None:
    mark: Any = alimark.load(Key.generate(scheme=scheme, secret=bytes(32)))
    made = mark.generate(PROMPTS[:2], written, tokens=30, seed=3, sampling=Sampling(temperature=1.2))
    assert [one.tokens for one in made] == [30, 30]
    assert min(mark.detect(one.text, draws=100).p_value for one in made) < 0.05
    with pytest.raises(LLMError, match="may_end"):
        mark.generate("It was late.", written, tokens=5, sampling=Sampling(may_end=True))
    with pytest.raises(alimark.AlimarkError, match="leave no room"):
        mark.generate("It was late.", written, tokens=500)


def test_the_bench_has_its_llms_tokenizer_and_trains_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model in the form in which the hub has OPT: neither safetensors nor a tokenizer.json."""
    monkeypatch.setenv("ALIMARK_HOME", str(tmp_path / "home"))
    (tmp_path / "opt").mkdir()
    token_models.save_opt(tmp_path / "opt")
    rows: list[dict[str, Any]] = [{"label": name, "scheme": name} for name in ("kgw", "exp", "synthid", "sir")]
    rows[3]["fit"] = {"passages": 100, "epochs": 1}
    wanted = parse({
        "title": "tokens", "embedder": "stand-in", "llm": {"name": str(tmp_path / "opt")}, "watermark": rows,
        "data": {"sets": ["manual"], "texts": 2, "sentences": 3, "human_texts": 10}, "fit": {"texts": 40},
        "detection": [{"options": {"draws": 19}}],
    })  # fmt: skip
    assert needs(wanted).problems == []
    bench = Run(wanted, Workspace(tmp_path / "work"))
    bench.run()
    results = evaluate(bench, "tokens")
    assert [(row["method"], row["texts"]) for row in results["rows"]] == [(row["label"], 2) for row in rows]
    # A key for another tokenizer: the texts fail, each with the reason, and the run goes on.
    token_models.save_tiny(tmp_path)
    other = {"label": "other", "scheme": "kgw", "key": {"tokenizer": str(tmp_path)}}
    bench = Run(parse(wanted.model_dump() | {"watermark": [other]}), Workspace(tmp_path / "other"))
    bench.run()
    texts = bench.workspace.records("generate", {job.id for job in bench.generate_jobs()})
    assert len(texts) == 2
    assert all("has another" in record["error"] for record in texts.values())


def test_what_does_not_fit_is_refused(folder: Path, llm: Any, tmp_path: Path) -> None:
    mark = mark_of("kgw", folder)
    with pytest.raises(TextError, match="blank"):
        mark.detect(" \n")
    with pytest.raises(LLMError, match="transformers:"):
        mark.generate("It was late.", StandInLLM())
    with pytest.raises(KeyMismatch, match="another tokenizer"):
        mark_of("kgw", folder, vocabulary="sha256:0").detect("It was late.")
    changed = (folder / "tokenizer.json").read_text().replace("<end>", "<stop>")
    (tmp_path / "tokenizer.json").write_text(changed)
    with pytest.raises(KeyMismatch, match="has another"):
        mark_of("kgw", tmp_path).generate("It was late.", llm)
    [(place, answer)] = mark_of("kgw", tmp_path).generate_many([Prompt("It was late.")], llm, GenerationSettings(2))
    assert place == 0
    assert isinstance(answer, KeyMismatch)  # a text's own error, so that other texts are written
    with pytest.raises(KeyFileError, match="needs a trained network"):
        Key.generate(scheme="sir", embedder=EMBEDDER, tokenizer=str(folder))
    with pytest.raises(KeyFileError, match="60 outputs"):
        key_of("sir", folder, dimension=300)
    for wrong in ({"gamma": 1.5}, {"delta": 0.0}, {"context": -1}):
        with pytest.raises(KeyFileError):
            key_of("kgw", folder, **wrong)


def test_a_network_is_saved_as_safetensors(tmp_path: Path) -> None:
    made = network()
    made.save(tmp_path / "sir.safetensors")
    again = Fitted.load(tmp_path / "sir.safetensors")
    assert (again.scheme, dict(again.origin)) == ("sir", dict(made.origin))
    assert all((again.arrays[name] == array).all() for name, array in made.arrays.items())
    assert made.origin["texts"] == 40
    (tmp_path / "sir.safetensors").write_bytes(b"{}")
    with pytest.raises(KeyFileError, match="not written by"):
        Fitted.load(tmp_path / "sir.safetensors")


def test_sir_embeds_what_it_says_it_will(folder: Path) -> None:
    mark = mark_of("sir", folder)
    text = prose(1, 6)
    ids = mark.tokenizer.ids(text)
    contexts = list(mark.units([text]))
    assert contexts == mark.contexts(ids)
    assert text.startswith(contexts[0])
    signs = mark.network.signs(EMBEDDER.embed(contexts))
    columns = sir.assigned(mark.secret, ids, 60)
    expected = [signs[i // 10 - 1, columns[i]] for i in range(10, len(ids))]
    assert mark.detect(text).raw == pytest.approx(np.mean(expected), abs=1e-6)
    assert synthid.SynthID.Parameters.embeds is False
