"""Prints the lowest version of each dependency that pyproject.toml allows, as constraints for pip.

    python tools/lowest_versions.py [EXTRA ...] > lowest.txt
    pip install -c lowest.txt -e .

`make lowest` installs them and runs the tests of the core.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=|==)\s*(?P<version>[0-9][0-9A-Za-z.]*)")


def lowest_versions(requirements: list[str]) -> list[str]:
    """Returns `name==version` for each requirement, with the lowest version that it allows.

    Args:
        requirements: Requirements as in pyproject.toml.

    Raises:
        ValueError: A requirement has no lower bound.

    Example:
        >>> lowest_versions(["numpy>=2.0", "nupunkt>=0.8,<0.9"])
        ['numpy==2.0', 'nupunkt==0.8']
    """
    constraints = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound; add one to pyproject.toml")
        constraints.append(f"{match['name']}=={match['version']}")
    return constraints


def main() -> None:
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in sys.argv[1:]:
        requirements += [line for line in project["optional-dependencies"][extra] if not line.startswith("alimark[")]
    print("\n".join(lowest_versions(requirements)))


if __name__ == "__main__":
    main()
