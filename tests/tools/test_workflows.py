"""The workflows for GitHub Actions name files and targets that exist. They are not run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
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
