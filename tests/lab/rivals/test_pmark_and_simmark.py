"""PMark at full strength: medians, the soft count of the authors, one batch of draws; and the intervals of SimMark."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rival_keys import EMBEDDER, human, key_of, learned
from scipy.stats import mstats

from alimark import Key, load
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.fitted import Fitted
from alimark.core.llm.base import Request
from alimark.errors import ContextFull, KeyFileError
from alimark.lab.rivals import pmark
from alimark.lab.rivals.simmark import SimMark
from alimark.testing import StandInLLM
from watched import watched


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 63, 64, 100, 1000])
def test_the_harrell_davis_median_is_scipys(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(count, 3)) ** 3
    expected = np.asarray(mstats.hdquantiles(values, prob=[0.5], axis=0))[0]
    assert pmark.harrell_davis(values) == pytest.approx(expected, abs=1e-12)


def test_the_soft_count_of_the_authors_drops_at_the_threshold() -> None:
    cosines = np.array([0.2, 0.0, -0.001, -0.0011, -0.01])
    counts = pmark.soft_counts(cosines, np.zeros(5), np.ones(5, bool), 250.0, 0.001)
    assert counts == pytest.approx([1.0, 1.0, 1.0, np.exp(-250 * 0.0011), np.exp(-2.5)])
    below = pmark.soft_counts(-cosines, np.zeros(5), np.zeros(5, bool), 250.0, 0.001)
    assert below == pytest.approx(counts)
    continuous = pmark.soft_counts(cosines, np.zeros(5), np.ones(5, bool), 250.0, 0.001, decay_from="threshold")
    assert continuous == pytest.approx([1.0, 1.0, 1.0, np.exp(-250 * 0.0001), np.exp(-250 * 0.009)])


def test_the_model_is_asked_for_all_sentences_at_once() -> None:
    mark = load(key_of("pmark", 21, median="sampled"), embedder=EMBEDDER)
    generation = mark.generate("It was a long day.", StandInLLM(), sentences=8, candidates=32, seed=1)
    assert (set(generation.matches), generation.candidates) == ({4}, 8 * 32)
    sizes: list[int] = []
    llm = watched(StandInLLM(), lambda requests: sizes.append(len(requests)))
    text, settings = [generation.text], RandomKeys(draws=200)
    answers: Any = [*mark.detect_batch(text, settings, llm=llm), *mark.detect_batch(text, settings)]
    detection, without = answers
    assert sizes == [7]
    assert detection.verdict(0.05) == "found"
    assert detection.evidence["median"] == "sampled"
    assert not detection.warnings
    assert "without it" in without.warnings[0]
    # Each sentence has the draws that it would have alone.
    alone = pmark.PMark(mark.key, embedder=EMBEDDER)._medians(detection.sentences[:3], StandInLLM(), 64)
    whole = pmark.PMark(mark.key, embedder=EMBEDDER)._medians(detection.sentences, StandInLLM(), 64)
    assert np.allclose(alone, whole[:3])
    assert not whole[0].any()
    assert whole[1:].all()


def test_sentences_after_which_the_model_has_no_room_have_the_median_0() -> None:
    sentences = [f"The captain counted {n} ships in the harbour." for n in range(8)]
    mark = pmark.PMark(key_of("pmark", 21, median="sampled"), embedder=EMBEDDER)
    full = mark._medians(sentences, StandInLLM(), 16)

    def check(requests: Sequence[Request]) -> None:
        if any(len(request.context) > len(" ".join(sentences[:4])) for request in requests):
            raise ContextFull("no room")

    some = mark._medians(sentences, watched(StandInLLM(), check), 16)
    assert np.array_equal(some[:5], full[:5])
    assert not some[5:].any()


class TestKeys:
    def test_new_keys_have_those_of_the_authors(self, tmp_path: Path) -> None:
        key = key_of("pmark", 1, preset="paper")
        assert (key.parameters["median"], key.parameters["estimator"]) == ("sampled", "harrell-davis")
        key.save(tmp_path / "k.json")
        stored = json.loads((tmp_path / "k.json").read_text())["parameters"]
        assert (stored["estimator"], stored["decay_from"]) == ("harrell-davis", "median")
        assert Key.load(tmp_path / "k.json") == key
        for name in ("estimator", "decay_from"):
            wrong: dict[str, Any] = {name: "zero"}
            with pytest.raises(KeyFileError, match=f"{name} must be"):
                key_of("pmark", 1, **wrong)


# SimMark's interval belongs to its embedder and to the instruction that stands before each sentence

LARGE = "hkunlp/instructor-large"
COSINE = "Represent the sentence for cosine similarity:"


class Renamed:
    """The stand-in under the name of another model, for what depends on the name alone."""

    def __init__(self, name: str) -> None:
        base = load_embedder("stand-in")
        self.name, self.fingerprint, self.backend = name, f"sha256:{name}", "renamed"
        self.dimension, self.languages, self.embed = base.dimension, base.languages, base.embed


def fitted_with(name: str, **options: Any) -> tuple[Any, Fitted]:
    embedder = Renamed(name)
    return embedder, SimMark.fit(human()[:30], embedder, **options)


@pytest.mark.parametrize(
    ("name", "options", "interval"),
    [
        (f"{LARGE}#{COSINE}", {}, (0.68, 0.76)),
        (f"models/instructor-large#{COSINE}", {}, (0.68, 0.76)),
        (f"{LARGE}#Represent the sentence for euclidean distance:", {"distance": "euclidean"}, (0.4, 0.55)),
        (f"{LARGE}#Represent the sentence for PCA:", {"distance": "euclidean", "components": 16}, (0.28, 0.36)),
        (LARGE, {}, None),
        (f"{LARGE}#Represent the sentence for PCA:", {}, None),
        (f"{LARGE}#{COSINE}", {"distance": "euclidean"}, None),
        (f"all-mpnet-base-v2#{COSINE}", {}, None),
        ("stand-in", {}, None),
    ],
)
def test_the_published_interval(name: str, options: dict[str, Any], interval: tuple[float, float] | None) -> None:
    embedder, fitted = fitted_with(name, **options)
    key = Key.generate(scheme="simmark", embedder=embedder, fitted=fitted, preset="paper", secret=bytes(32))
    assert (key.parameters["lower"], key.parameters["upper"]) == (interval or (None, None))
    rule = SimMark.rule(key)
    expected = interval or tuple(fitted.arrays["interval"].tolist())
    assert (rule.lower, rule.upper) == pytest.approx(expected)
    assert fitted.origin["embedder"] == name
    assert fitted.origin["interval"] == [round(value, 4) for value in fitted.arrays["interval"].tolist()]


def test_an_interval_that_is_given_is_used_with_any_embedder() -> None:
    embedder, fitted = fitted_with("stand-in")
    options: dict[str, Any] = {"scheme": "simmark", "embedder": embedder, "fitted": fitted, "preset": "paper"}
    key = Key.generate(**options, lower=0.1, upper=0.2)
    assert (key.parameters["lower"], key.parameters["upper"]) == (0.1, 0.2)
    with pytest.raises(KeyFileError, match="together"):
        Key.generate(**options, lower=0.1)


def test_an_instruction_changes_what_is_learned_and_a_key_holds_on_to_it() -> None:
    embedder = load_embedder(f"stand-in#{COSINE}")
    fitted = SimMark.fit(human()[:30], embedder)
    plain = learned("simmark")
    # All sentences begin with the same words, so all are more alike.
    assert np.median(fitted.arrays["similarities"]) > np.median(plain.arrays["similarities"]) + 0.1
    key = Key.generate(scheme="simmark", embedder=embedder, fitted=fitted, secret=bytes(32))
    with pytest.raises(KeyFileError, match="learned with the embedder"):
        Key.generate(scheme="simmark", embedder=embedder, fitted=plain)
    mark: Any = load(key)  # the key names the embedder with its instruction, and that is loaded
    generation = mark.generate("It was a long day in the harbour.", StandInLLM(), sentences=12, seed=2)
    assert mark.embedder.name == f"stand-in#{COSINE}"
    assert mark.detect(generation.text).verdict() == "found"
    other = load(key_of("simmark", 1), embedder=load_embedder("stand-in"))
    detection: Any = other.detect(generation.text)
    assert detection.z < mark.detect(generation.text).z
