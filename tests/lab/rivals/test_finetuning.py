"""Fine-tuning of an embedder on paraphrase pairs, on a tiny model."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from test_embedders import home

from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Key
from alimark.core.schemes.api import load
from alimark.errors import AlimarkError, KeyMismatch, RecordError
from alimark.lab.rivals import finetuning
from alimark.lab.rivals.finetuning import FineTuning, SentencePair, fine_tune, read_pairs
from alimark.testing import StandInEmbedder, StandInLLM
from tiny_embedders import WORDS, make_model

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

__all__ = ["home"]  # a fixture that is used by every test

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# Two pairs in a batch: with harder negatives an untrained model would give all sentences the same vector.
QUICK = FineTuning(epochs=2, rate=1e-3, warm_up=4, batch=2)


def pairs_of(count: int) -> list[SentencePair]:
    """Sentences of three random words, and the same with the first two exchanged."""
    random = Random(1)
    words = [random.sample(WORDS, 3) for _ in range(count)]
    return [SentencePair(f"{a} {b} {c}.", f"{b} {a} {c}.") for a, b, c in words]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base", "bert")


@pytest.fixture(scope="module")
def tuned(base: Path, one_torch_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("models") / "tuned"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALIMARK_HOME", str(folder.parent / "home"))
        return folder, fine_tune(str(base), pairs_of(160), folder, QUICK)


class TestLoss:
    def test_it_is_the_margin_ranking_loss_with_the_hardest_negative_of_the_batch(self) -> None:
        random = torch.Generator().manual_seed(1)
        original, paraphrase = (torch.randn(6, 5, generator=random) for _ in range(2))
        cosines = torch.nn.functional.cosine_similarity(original[:, None], paraphrase[None], dim=2)
        closest = torch.stack([max(cosines[i, j] for j in range(6) if j != i) for i in range(6)])
        expected = torch.nn.MarginRankingLoss(margin=0.8)(cosines.diagonal(), closest, torch.ones(6))
        assert finetuning.margin_loss(original, paraphrase, torch.arange(6), 0.8) == pytest.approx(float(expected))

    def test_paraphrases_of_the_same_sentence_are_no_negatives(self) -> None:
        rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        assert float(finetuning.margin_loss(rows, rows, torch.tensor([0, 0, 1]), 0.8)) == 0
        assert float(finetuning.margin_loss(rows, rows, torch.arange(3), 0.8)) == pytest.approx(2 * 0.8 / 3)


class TestFineTuning:
    def test_paraphrases_are_told_from_other_sentences(self, tuned: tuple[Path, dict[str, Any]]) -> None:
        folder, origin = tuned
        before, after = origin["before"], origin["after"]
        for name in ("cosine", "same_region"):
            assert after[name] - after[f"{name}_of_others"] > before[name] - before[f"{name}_of_others"] + 0.1
        assert origin == json.loads((folder / finetuning.ORIGIN).read_text())
        assert (origin["pairs"], origin["held_out_pairs"], origin["settings"]["margin"]) == (144, 16, 0.8)

    def test_both_backends_load_it_and_agree(self, base: Path, tuned: tuple[Path, dict[str, Any]]) -> None:
        texts = [pair.original for pair in pairs_of(20)]
        onnx, torch_ = load_embedder(str(tuned[0])), load_embedder(str(tuned[0]), backend="torch")
        assert (onnx.backend, torch_.backend) == ("onnx", "sentence-transformers")
        assert onnx.fingerprint == torch_.fingerprint != load_embedder(str(base)).fingerprint
        assert np.allclose(onnx.embed(texts), torch_.embed(texts), atol=1e-4)
        assert not np.allclose(onnx.embed(texts), load_embedder(str(base)).embed(texts), atol=1e-2)
        assert sorted(path.name for path in tuned[0].iterdir()) == sorted(
            [*(path.name for path in base.iterdir()), finetuning.ORIGIN]
        )

    def test_it_is_repeatable(self, base: Path, tmp_path: Path, tuned: tuple[Path, dict[str, Any]]) -> None:
        assert fine_tune(str(base), pairs_of(160), tmp_path / "again", QUICK) == tuned[1]
        files = [folder / "model.safetensors" for folder in (tuned[0], tmp_path / "again")]
        assert files[0].read_bytes() == files[1].read_bytes()

    def test_a_key_names_it_and_refuses_the_model_it_was_made_from(
        self, base: Path, tuned: tuple[Path, dict[str, Any]], tmp_path: Path
    ) -> None:
        key = Key.generate(scheme="semstamp", embedder=str(tuned[0]), secret=bytes(32))
        key.save(tmp_path / "key.json")
        again = Key.load(tmp_path / "key.json")
        assert (again.embedder, again.fingerprint) == (str(tuned[0]), load_embedder(str(tuned[0])).fingerprint)
        mark = load(again)
        generation = mark.generate("It was late.", StandInLLM(), sentences=5, candidates=16, seed=1)
        assert mark.detect(generation.text, draws=50).scheme == "semstamp"
        with pytest.raises(KeyMismatch, match="use the embedder that the key names"):
            load(again, embedder=load_embedder(str(base)))

    def test_what_makes_no_sense_is_refused(
        self, base: Path, tuned: tuple[Path, dict[str, Any]], tmp_path: Path
    ) -> None:
        with pytest.raises(AlimarkError, match="exists"):
            fine_tune(str(base), pairs_of(100), tuned[0], QUICK)
        with pytest.raises(AlimarkError, match="too few"):
            fine_tune(str(base), pairs_of(10), tmp_path / "out", QUICK)
        assert not (tmp_path / "out").exists()
        wrong_settings: list[dict[str, Any]] = [{"margin": 0.0}, {"epochs": 0}, {"batch": 1}, {"held_out": 1.0}]
        for wrong in wrong_settings:
            with pytest.raises(AlimarkError):
                FineTuning(**wrong)


class TestPairs:
    def test_files_of_paraphrases_and_of_attacks_are_read(self, tmp_path: Path) -> None:
        text = "The old boat left. A young doctor sold the piano."
        rewritten = "The old boat has left. The piano was sold by a young doctor."
        path = tmp_path / "pairs.jsonl"
        records = [
            {"original": text, "paraphrase": rewritten},
            {"original": text, "text": rewritten, "attack": {"name": "chat"}},
            {"original": text, "failed": True, "error": "no answer"},
            {"original": text, "paraphrase": text},
        ]
        path.write_text("\n".join(map(json.dumps, records)))
        assert read_pairs([path], StandInEmbedder()) == [
            SentencePair("The old boat left.", "The old boat has left."),
            SentencePair("A young doctor sold the piano.", "The piano was sold by a young doctor."),
        ]
        path.write_text(json.dumps({"original": text}))
        with pytest.raises(RecordError, match="needs `original`"):
            read_pairs([path], StandInEmbedder())

    def test_the_learning_rate_rises_and_falls(self) -> None:
        rates = [finetuning.learning_rate(step, FineTuning(warm_up=10), 100) for step in range(100)]
        assert all(left < right for left, right in pairwise(rates[:10]))
        assert all(left > right for left, right in pairwise(rates[10:]))
        assert max(rates) <= 1
        assert rates[-1] > 0
