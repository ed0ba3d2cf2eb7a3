"""Prints how much each extra of pyproject.toml adds to a plain `pip install alimark`, as installed in this environment.

python tools/extra_sizes.py
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def packages(requirements: Iterable[str], extras: dict[str, list[str]]) -> dict[str, int]:
    """The installed packages that requirements bring, with their sizes in bytes; -1 for one that is not installed."""
    left, sizes, seen = [Requirement(text) for text in requirements], dict[str, int](), set[str]()
    while left:
        requirement = left.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if requirement.name == "alimark":
            left += [Requirement(text) for extra in requirement.extras for text in extras[extra]]
            continue
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            sizes[requirement.name] = -1
            continue
        files = (Path(str(file.locate())) for file in distribution.files or ())
        sizes[distribution.name] = sum(file.stat().st_size for file in files if file.is_file())
        for needed in map(Requirement, distribution.requires or ()):
            wanted = [{"extra": extra} for extra in (*requirement.extras, "")]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in wanted):
                left.append(needed)
    return sizes


def main() -> None:
    project = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    core = packages(project["dependencies"], extras)
    print(f"{'(none)':13} {sum(core.values()) / 1e6:6.0f} MB in {len(core)} packages")
    for extra, requirements in extras.items():
        sizes = {name: size for name, size in packages(requirements, extras).items() if name not in core}
        if -1 in sizes.values():
            print(f"{extra:13} not installed here")
        else:
            print(f"{extra:13} {sum(sizes.values()) / 1e6:6.0f} MB in {len(sizes)} packages")


if __name__ == "__main__":
    main()
