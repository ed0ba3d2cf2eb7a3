"""A package outside alimark adds a scheme, an attack, an embedder, an engine and a splitter, and all work together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alimark
from alimark.core.frozen.text.splitting import splitter
from alimark.core.parameters import SCHEMES
from alimark.errors import KeyFileError, KeyMismatch
from alimark.lab.attacks import load_attack, names
from commands import Run

SCHEME = Path(__file__).parents[3] / "examples" / "plugin" / "src" / "alimark_example" / "scheme.py"
PACKAGE = (
    SCHEME.read_text("utf-8")
    + """
import re

from alimark.lab.attacks.base import TextAttack
from alimark.testing import StandInEmbedder, StandInLLM


@dataclass(frozen=True)
class Upper(TextAttack):
    name = "upper"

    def rewrite(self, text, random):
        return text.upper()


def small():
    return StandInEmbedder(48, name="small")


def engine(model, **options):
    return StandInLLM(name=f"{model} on plug", **options)


def full_stops():
    return lambda text: [match.span() for match in re.finditer(r"\\S[^.!?]*[.!?]+\\S*", text)]
"""
)
ENTRY_POINTS = {
    "schemes": {"side": "plug:Side"},
    "attacks": {"upper": "plug:Upper"},
    "embedders": {"small": "plug:small"},
    "engines": {"plug": "plug:engine"},
    "splitters": {"full-stops": "plug:full_stops"},
}


@pytest.fixture
def key(install: Callable[..., None]) -> alimark.Key:
    """A key of the installed scheme."""
    install("plug", PACKAGE, **ENTRY_POINTS)
    names: dict[str, Any] = {"scheme": "side", "embedder": "small", "splitter": "full-stops"}
    return alimark.Key.generate(**names, secret=bytes(range(32)), margin=0.02)


def test_a_scheme_of_a_package_generates_and_detects(key: alimark.Key, tmp_path: Path) -> None:
    key.save(tmp_path / "key.json")
    loaded = alimark.Key.load(tmp_path / "key.json")
    assert (loaded, loaded.parameters["margin"]) == (key, 0.02)
    mark = alimark.load(loaded)
    generation = mark.generate("It was late.", alimark.load_llm("plug:m"), sentences=16, seed=1)
    assert (generation.scheme, generation.llm, len(generation.sentences)) == ("side", "m on plug", 16)
    detection = mark.detect(generation.text)
    assert (detection.scheme, str(detection.verdict())) == ("side", "found")
    unmarked = mark.generate("It was late.", alimark.load_llm("plug:m"), sentences=16, candidates=1, seed=3)
    assert mark.detect(unmarked.text).p_value > 0.05
    attacked = load_attack("upper")(generation.text)
    assert attacked.isupper()
    assert mark.detect(attacked).evidence["counted"] == 16
    assert splitter("full-stops").sentences("One; two. Three.") == ["One; two.", "Three."]
    assert {"side"} < set(SCHEMES.names())
    assert {"upper"} < set(names())


def test_a_scheme_of_a_package_is_told_apart_among_keys_of_several_schemes(key: alimark.Key) -> None:
    embedder = alimark.load_embedder("small")
    text = alimark.load(key).generate("It was late.", alimark.load_llm("plug:m"), sentences=16, seed=1).text
    others = [key.like(bytes(32)), alimark.Key.generate(embedder=embedder, decision="hard", secret=bytes(32))]
    answers = alimark.detect(text, [*others, key], embedder=embedder)
    assert len(answers) == 3
    assert answers[0].key_id == key.id
    assert str(answers[0].verdict()) == "found"
    assert [answer.key_id for answer in alimark.detect(text, [key])] == [key.id]


def test_the_command_line_knows_the_scheme_of_a_package(key: alimark.Key, tmp_path: Path, command: Run) -> None:
    file = tmp_path / "key.json"
    assert command("keygen", "--scheme", "side", "--embedder", "small", "--set", "margin=0.03", "-o", file).status == 0
    assert alimark.Key.load(file).parameters["margin"] == 0.03
    mark = alimark.load(alimark.Key.load(file))
    text = mark.generate("It was late.", alimark.load_llm("plug:m"), sentences=16, seed=1)
    (tmp_path / "text.txt").write_text(text.text)
    result = command("detect", "-k", file, tmp_path / "text.txt", "--json")
    assert (result.status, json.loads(result.out)["scheme"]) == (0, "side")


def test_wrong_parameters_and_keys_of_other_schemes_are_refused(key: alimark.Key) -> None:
    with pytest.raises(KeyFileError, match="margin must be at least 0"):
        alimark.Key.generate(scheme="side", embedder="small", margin=2.0)
    with pytest.raises(KeyFileError, match="side has no parameter gamma"):
        alimark.Key.generate(scheme="side", embedder="small", gamma=1)
    with pytest.raises(KeyMismatch, match="not alimark"):
        alimark.AliMark(key)
