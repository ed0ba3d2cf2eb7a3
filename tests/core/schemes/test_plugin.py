"""A package outside alimark adds a scheme, an attack, an embedder, an engine and a splitter, and all work together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import alimark
from alimark.errors import KeyFileError, KeyMismatch
from alimark.lab.attacks import load_attack
from commands import Run

PACKAGE = '''
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alimark.lab.attacks.base import TextAttack
from alimark.core.detection.building import Statistic
from alimark.errors import KeyFileError
from alimark.core.generation.selection import Weight
from alimark.core.parameters import SchemeParameters
from alimark.lab.rivals.sentence import SentenceRival, count_z
from alimark.testing import StandInEmbedder, StandInLLM


@dataclass(frozen=True)
class SideParameters(SchemeParameters):
    """The parameters of a key, with validation."""

    scheme: ClassVar[str] = "side"
    embeds: ClassVar[bool] = True

    margin: float = 0.01

    def __post_init__(self):
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin must be at least 0 and below 1, not {self.margin:g}")


class SideRule:
    """Accepts a sentence on the side of a secret hyperplane that the bit of its position names."""

    scheme, embeds, stops, strict, size = "side", True, True, True, 1

    def __init__(self, key):
        self.key, self.margin, self.position = key, key.parameters_as(SideParameters).margin, 0

    def wave(self, settings):
        return settings.wave or 4

    def see(self, vectors):
        return vectors @ self.key.normals("side/normal", 1, vectors.shape[1])[0][:, None]

    def signs(self, sentences, label="side/bits", *index):
        return np.where(self.key.uniforms(label, sentences, *index) < 0.5, -1, 1)

    def weigh(self, seen):
        values = seen[:, 0] * self.signs(self.position + 1)[-1]
        return [Weight(int(value > 0), value, value > self.margin) for value in values.tolist()]

    def chose(self, seen):
        self.position += 1


class Side(SentenceRival):
    """The watermark class: the rule of generation and the statistic of detection."""

    scheme = "side"
    Parameters = SideParameters

    @classmethod
    def rule(cls, key):
        return SideRule(key)

    def statistic(self, seen, text, sentences, llm):
        rule, total, sides = self.rule(self.key), len(seen), np.sign(seen[:, 0])

        def z(signs):
            return count_z(float((sides == signs).sum()), total, 0.5)

        def null(first, count):
            return np.array([z(rule.signs(total, "side/null", i)) for i in range(first, first + count)])

        return Statistic.of_z(z(rule.signs(total)), null, 0.5**total, {"counted": total})


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
'''
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
    return alimark.Key.generate(
        scheme="side", embedder="small", splitter="full-stops", secret=bytes(range(32)), margin=0.02
    )


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
    text = alimark.load(alimark.Key.load(file)).generate(
        "It was late.", alimark.load_llm("plug:m"), sentences=16, seed=1
    )
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
