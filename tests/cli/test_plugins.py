"""`alimark plugins list`, and errors about plugins: every one names the package."""

import json
from collections.abc import Callable

import pytest

from alimark import load_embedder, load_llm
from alimark.core.frozen.text.splitting import Splitter, splitter
from alimark.errors import AlimarkError, AttackError, LLMError, ModelError
from alimark.lab.attacks import load_attack
from commands import Run

Install = Callable[..., None]

GOOD = """
from dataclasses import dataclass

from alimark.lab.attacks.base import TextAttack


@dataclass(frozen=True)
class Upper(TextAttack):
    name = "upper"

    def rewrite(self, text, random):
        return text.upper()
"""
BAD = """
def fails(*words, **options):
    raise ZeroDivisionError("no such luck")


def nothing(*words, **options):
    return None


number = 3
"""


def test_plugins_are_listed_with_their_package(install: Install, command: Run) -> None:
    install("good", GOOD, attacks={"upper": "good:Upper"})
    done = command("plugins", "list")
    assert done.status == 0, done.err
    assert done.out.split()[-6:] == ["attack", "upper", "good", "1.0", "good:Upper", "ready"]
    [plugin] = json.loads(command("plugins", "list", "--json").out)
    assert plugin == {
        "kind": "attack", "name": "upper", "package": "good", "version": "1.0", "target": "good:Upper", "problem": "",
    }  # fmt: skip
    everything = json.loads(command("plugins", "list", "--all", "--json").out)
    assert {plugin["kind"] for plugin in everything} == {"scheme", "attack", "embedder", "engine", "splitter"}
    assert {"alimark", "delete", "stand-in", "llama.cpp", "nupunkt"} <= {plugin["name"] for plugin in everything}


def test_without_plugins_the_list_says_so(install: Install, command: Run) -> None:
    done = command("plugins", "list")
    assert (done.status, done.out) == (0, "")
    assert "no installed package adds anything" in done.err


def test_plugins_that_cannot_be_used_are_listed_with_the_reason(install: Install, command: Run) -> None:
    install("good", GOOD, attacks={"upper": "good:Upper"})
    install("torn", "import nothing_of_that_name", attacks={"tear": "torn:Tear"}, engines={"tear": "torn:tear"})
    install("bad", BAD, attacks={"upper": "bad:fails", "number": "bad:number"})
    done = command("plugins", "list", "--json")
    assert done.status == 2
    problems = {(row["package"], row["kind"], row["name"]): row["problem"] for row in json.loads(done.out)}
    assert problems["bad", "attack", "number"].startswith("the attack 'number' of the package bad 1.0 cannot be used")
    assert "torn:tear: ModuleNotFoundError" in problems["torn", "engine", "tear"]
    # Which of the two packages comes first on the import path is not fixed.
    both = problems["bad", "attack", "upper"] + problems["good", "attack", "upper"]
    assert "two objects are registered as attack 'upper'" in both
    assert "error: the engine 'tear' of the package torn 1.0 cannot be loaded" in done.err


@pytest.mark.parametrize(
    ("load", "name", "error"),
    [
        (load_embedder, "fails", ModelError),
        (load_llm, "fails:model", LLMError),
        (splitter, "fails", AlimarkError),
        (load_attack, "fails", AttackError),
    ],
)
def test_failing_plugins(install: Install, load: Callable[[str], object], name: str, error: type[AlimarkError]) -> None:
    groups = ("embedders", "engines", "splitters", "attacks")
    install("bad", BAD, **{group: {"fails": "bad:fails", "nothing": "bad:nothing"} for group in groups})
    kind = "cannot be used: bad:fails is not a subclass" if load is load_attack else r"failed \(ZeroDivisionError"
    with pytest.raises(error, match=rf"'fails' of the package bad 1.0 {kind}"):
        load(name)
    with pytest.raises(error, match=r"'nothing' of the package bad 1.0 cannot be used"):
        load(name.replace("fails", "nothing"))
    assert isinstance(splitter("nupunkt"), Splitter), "built-in objects are not touched"
