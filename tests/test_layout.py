"""The layout of the source: every room is part of the import contract, and the goals of tools/count_code.py hold."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import count_code
from count_code import Count, Module

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "alimark"


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return count_code.read_modules(SOURCE)


def layers(number: int) -> tuple[str, list[str]]:
    """The package of one of the contracts on imports, and the rooms that it names, each as often as it is named."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][number]
    [package] = contract["containers"]
    assert contract["type"] == "layers"
    return package, [room.strip() for layer in contract["layers"] for room in layer.replace("|", ":").split(":")]


@pytest.mark.parametrize("number", [0, 1])
def test_the_import_contract_names_every_room_once(number: int) -> None:
    package, rooms = layers(number)
    folder = SOURCE.parent / package.replace(".", "/")
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(rooms) == sorted(packages | modules)


def test_clients_do_not_import_each_other_without_a_reason() -> None:
    """Each exception of the contract has a comment above it."""
    contract = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8").split("ignore_imports = [")[1].split("]")[0]
    lines = [line.strip() for line in contract.splitlines() if line.strip()]
    reasons = [above for above, line in zip(["", *lines], lines) if line.startswith('"')]
    assert reasons
    assert all(above.startswith("#") for above in reasons)


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without `__init__.py` is a namespace package, which import-linter does not check."""
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_the_root_holds_only_what_users_import_by_name() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "__main__", "errors", "testing"}


@pytest.mark.parametrize(
    ("counter", "name", "allowed"),
    [
        (count_code.count_long_functions, "functions over 60 lines", 0),
        (count_code.count_any, "Any in public signatures", 0),
        (count_code.count_scheme_tests, "tests for a scheme's name elsewhere", 0),
        (count_code.count_vague_names, "lines that bind found / made / one / own / said, by expression", 49),
    ],
)
def test_counts_keep_to_their_goals(
    modules: list[Module], counter: Callable[[Sequence[Module]], list[Count]], name: str, allowed: int
) -> None:
    [count] = [count for count in counter(modules) if count.name == name]
    places = "\n".join(f"{place.path}:{place.line}: {place.what}" for place in count.places)
    assert count.number <= allowed, f"{count.number} {name}, at most {allowed} are allowed:\n{places}"
