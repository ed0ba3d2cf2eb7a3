"""The registry: names that are built in, those of installed packages, and the errors for packages that are broken."""

from collections.abc import Callable

import pytest

import alimark.core.parameters
import alimark.lab.attacks
from alimark import AlimarkError, Key, load_embedder, load_llm
from alimark.core._util.registry import Registry
from alimark.errors import AttackError, KeyFileError
from alimark.lab.attacks import load_attack
from alimark.testing import StandInEmbedder, StandInLLM

Install = Callable[..., None]


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
