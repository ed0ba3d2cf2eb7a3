"""The registry: names that are built in, those of installed packages, and the errors for packages that are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import alimark.core.parameters
import alimark.lab.attacks
from alimark import AlimarkError, Key, load, load_embedder, load_llm
from alimark.core._util.registry import Registry
from alimark.core.frozen.text.splitting import splitter
from alimark.errors import AttackError, KeyFileError
from alimark.lab.attacks import load_attack
from alimark.testing import StandInEmbedder, StandInLLM

Install = Callable[..., None]

PLUGIN = """
from dataclasses import dataclass

from alimark.lab.attacks.base import TextAttack
from alimark.core.parameters import SchemeParameters
from alimark.lab.rivals.semstamp import SemStamp
from alimark.testing import StandInEmbedder, StandInLLM


@dataclass(frozen=True)
class ShoutParameters(SchemeParameters):
    scheme = "shout"
    embeds = True
    volume: int = 3


class Shout(SemStamp):
    scheme = "shout"
    Parameters = ShoutParameters

    def __init__(self, key, *, embedder=None):
        self.key = key


@dataclass(frozen=True)
class Upper(TextAttack):
    name = "upper"

    def rewrite(self, text, random):
        return text.upper()


def tiny():
    return StandInEmbedder(8, name="tiny")


def engine(model, **options):
    return StandInLLM(name=f"{model} on plug", **options)


def lines():
    return lambda text: [(0, len(text))]
"""


def test_a_package_adds_a_scheme_an_attack_an_embedder_an_engine_and_a_splitter(
    install: Install, tmp_path: Path
) -> None:
    install(
        "plug", PLUGIN, schemes={"shout": "plug:Shout"}, attacks={"upper": "plug:Upper"},
        embedders={"tiny": "plug:tiny"}, engines={"plug": "plug:engine"}, splitters={"lines": "plug:lines"},
    )  # fmt: skip
    key = Key.generate(scheme="shout", embedder="tiny", splitter="lines", volume=5)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert again == key
    assert again.parameters["volume"] == 5
    assert type(load(again)).__name__ == "Shout"
    assert load_embedder("tiny").dimension == 8
    assert load_attack("upper")("So it was.") == "SO IT WAS."
    assert load_llm("plug:m").name == "m on plug"
    assert splitter("lines").sentences("One. Two.") == ["One. Two."]
    assert "shout" in alimark.core.parameters.SCHEMES.names()
    assert "upper" in alimark.lab.attacks.names()
    with pytest.raises(KeyFileError, match="shout has no parameter gamma"):
        Key.generate(scheme="shout", embedder="tiny", gamma=1)


def test_stand_ins_are_ordinary_entries() -> None:
    assert isinstance(load_embedder("stand-in"), StandInEmbedder)
    assert isinstance(load_llm("stand-in"), StandInLLM)


def test_a_broken_package_is_named(install: Install) -> None:
    install("broken", "import nothing_of_that_name", schemes={"torn": "broken:Torn"}, attacks={"tear": "broken:Tear"})
    with pytest.raises(KeyFileError, match=r"'torn' of the package broken 1.0 cannot be loaded .*nothing_of_that_name"):
        Key.generate(scheme="torn")
    with pytest.raises(AttackError, match="of the package broken"):
        load_attack("tear")
    assert load_attack("delete").name == "delete", "the others are not touched"


def test_a_scheme_without_parameters_is_refused(install: Install) -> None:
    install("bare", "class Bare: pass", schemes={"bare": "bare:Bare"})
    with pytest.raises(
        KeyFileError, match=r"of the package bare 1.0 cannot be used: bare:Bare needs an attribute `Parameters`"
    ):
        Key.generate(scheme="bare")


def test_a_name_is_given_once(install: Install) -> None:
    install("first", "x = 1", attacks={"same": "first:x"})
    install("second", "x = 2", attacks={"same": "second:x"})
    with pytest.raises(AttackError, match=r"attack 'same'.*(first.*second|second.*first) 1.0; uninstall one of them"):
        load_attack("same")
    with pytest.raises(AttackError, match="uninstall"):
        alimark.lab.attacks.names()
    assert load_attack("delete").name == "delete"


def test_a_built_in_name_is_not_taken_over(install: Install) -> None:
    install("thief", "x = 1", attacks={"delete": "thief:x"})
    assert load_attack("delete").name == "delete"
    with pytest.raises(AttackError, match=r"thief 1.0 and one by alimark itself"):
        alimark.lab.attacks.names()


def test_what_a_program_registers_is_known_until_it_ends() -> None:
    registry: Registry[int] = Registry("number", "alimark.nothing", {"pi": "math:pi"})
    registry.register("two", 2)
    assert (registry.get("two"), "two" in registry, "three" in registry) == (2, True, False)
    for taken in ("two", "pi"):
        with pytest.raises(AlimarkError, match="exists already"):
            registry.register(taken, 3)
    with pytest.raises(AlimarkError, match="no number is named 'three'; known: pi, two"):
        registry.get("three")
