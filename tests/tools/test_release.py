"""What is released: builds that are the same every time, workflows that name what exists, and pins with hashes."""

import hashlib
import json
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
import lock
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


# The workflows for GitHub Actions, which are not run here

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_what_exists(workflow: Path) -> None:
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        assert set(job.get("needs", "").split()) <= set(content["jobs"])
        commands = "\n".join(step.get("run", "") for step in job["steps"])
        assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= targets, name
        assert all((REPOSITORY / path).exists() for path in re.findall(r"^(\.ci/\S+)", commands, re.MULTILINE))
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)
    assert content["permissions"] == {"contents": "read"}


def test_only_the_publishing_job_may_ask_for_an_identity() -> None:
    assert ["id-token: write" in workflow.read_text(encoding="utf-8") for workflow in WORKFLOWS] == [False, True]


# Pins with hashes


def test_the_locked_files_agree_with_the_pins() -> None:
    assert lock.problems() == []
    names, hashes = lock.locked(lock.SERVICE)
    assert {"fastapi", "uvicorn", "numpy", "psycopg"} <= set(names)
    assert all(hashes.values())
    assert len(json.loads(lock.BILL.read_text("utf-8"))["components"]) == len(names)


def test_the_container_installs_with_hashes_and_runs_without_rights() -> None:
    deploy = Path(lock.SERVICE).parent
    container = (deploy / "Containerfile").read_text("utf-8")
    assert "--require-hashes -r requirements.txt" in container
    assert "USER alimark" in container
    compose, unit = (deploy / "compose.yaml").read_text("utf-8"), (deploy / "alimark.service").read_text("utf-8")
    for limit in ("read_only: true", "mem_limit", "pids_limit", "nofile", "cap_drop: [ALL]"):
        assert limit in compose
    for limit in ("MemoryMax=", "TasksMax=", "LimitNOFILE=", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert limit in unit
