"""What is released: the wheel and the sdist are the same in every build and complete, and the version is written once."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import alimark
from lowest_versions import lowest_versions

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(target: str, folder: Path) -> Path:
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_a_build_is_reproducible(wheel: Path, tmp_path: Path) -> None:
    again = build("wheel", tmp_path)
    assert (again.name, _digest(again)) == (wheel.name, _digest(wheel))


def test_the_wheel_is_complete(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    source = REPOSITORY / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files <= names
    assert "alimark/py.typed" in names
    recipes = {path.relative_to(REPOSITORY / "recipes").as_posix() for path in REPOSITORY.glob("recipes/**/*.toml")}
    assert {f"alimark/lab/bench/recipes/{name}" for name in recipes} <= names
    assert not any(name.startswith(("tests/", "examples/")) for name in names)
    code = (
        "from pathlib import Path; from alimark.lab.bench.recipe_files import load; import alimark; "
        "print(alimark.__file__, load(Path('paper/main-opt'), (), ('local',)).llm.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_the_sdist_is_complete(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", tmp_path)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        times = {member.mtime for member in archive.getmembers()}
    assert {"pyproject.toml", "LICENSE", "src/alimark/py.typed", "recipes/smoke.toml", "tests/oracle.py"} <= names
    assert times == {1700000000}


def test_the_version_is_written_once() -> None:
    version = PROJECT["version"]
    assert alimark.__version__ == version
    assert f"\nversion: {version}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    assert not re.search(r"__version__\s*=\s*[\"']", code)


def test_every_dependency_has_a_lowest_version() -> None:
    constraints = lowest_versions(PROJECT["dependencies"])
    assert "numba==0.61" in constraints
    with pytest.raises(ValueError, match="'rich' has no lower bound"):
        lowest_versions(["rich"])


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
