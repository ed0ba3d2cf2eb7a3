"""SimMark's interval belongs to its embedder and to the instruction that stands before each sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rival_keys import human, key_of, learned

from alimark import Key, load
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.fitted import Fitted
from alimark.errors import KeyFileError
from alimark.lab.rivals.simmark import SimMark
from alimark.testing import StandInLLM

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
