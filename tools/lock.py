"""Writes the hashes of all pinned requirements, and the software bill of materials of the container.

    python tools/lock.py            # after a change of constraints.txt or of the extras; needs the package index
    python tools/lock.py --check    # whether the files agree with constraints.txt; needs no network

`requirements-dev.txt` has every pin of constraints.txt. `deploy/requirements.txt` has those that the container installs. Both
are for `pip install --require-hashes`. `deploy/sbom.cdx.json` lists the packages of the container in CycloneDX's format.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CONSTRAINTS, ALL, SERVICE = (
    ROOT / "constraints.txt",
    ROOT / "requirements-dev.txt",
    ROOT / "deploy" / "requirements.txt",
)
BILL = ROOT / "deploy" / "sbom.cdx.json"
EXTRAS = "serve,postgres,llama-cpp,openai"
"""What deploy/Containerfile installs."""
INDEX = "https://pypi.org/simple"

Pins = dict[str, str]
Hashes = dict[str, list[str]]


def normal(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> Pins:
    """The versions of constraints.txt."""
    lines = (line.split("#")[0].strip() for line in CONSTRAINTS.read_text("utf-8").splitlines())
    return {normal(name): version for line in lines if line for name, version in [line.split("==")]}


def locked(path: Path) -> tuple[Pins, Hashes]:
    """The versions and hashes of a file that this tool wrote."""
    entries = re.findall(r"^(\S+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", path.read_text("utf-8"), re.M)
    hashes = {name: re.findall(r"[0-9a-f]{64}", rest) for name, _, rest in entries}
    return {name: version for name, version, _ in entries}, hashes


def hashes_of(name: str, version: str) -> list[str]:
    """The hashes of all files of a release, for every platform."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        page = unescape(answer.read().decode())
    release = re.escape(version)
    pattern = rf"/[^/\"#]+?-{release}(?:-[^/\"#]+\.whl|\.tar\.gz|\.zip)#sha256=([0-9a-f]{{64}})"
    return sorted(set(re.findall(pattern, page)))


def of_service(known: Pins) -> list[str]:
    """The packages that the container needs, by pyproject.toml and by what the packages that are installed here require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    left = [Requirement(text) for text in (*project["dependencies"], f"alimark[{EXTRAS}]")]
    seen: set[str] = set()
    names: set[str] = set()
    while left:
        requirement = left.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if requirement.name == "alimark":
            left += [Requirement(text) for extra in requirement.extras for text in extras[extra]]
            continue
        names.add(normal(requirement.name))
        for needed in map(Requirement, metadata.requires(requirement.name) or ()):
            wanted = ({"extra": extra} for extra in (*requirement.extras, ""))
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in wanted):
                left.append(needed)
    if missing := sorted(names - set(known)):
        raise SystemExit(f"constraints.txt has no pin for {', '.join(missing)}; add one")
    return sorted(names)


def text_of(names: list[str], versions: Pins, hashes: Hashes) -> str:
    lines = ["# Written by tools/lock.py. Install with: pip install --require-hashes -r FILE"]
    for name in names:
        lines.append(" \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{h}" for h in hashes[name])]))
    return "\n".join(lines) + "\n"


def bill_of(names: list[str], versions: Pins) -> dict[str, Any]:
    """A bill of materials; the hashes are in deploy/requirements.txt, because a bill has one file for each component."""
    components = [
        {"type": "library", "name": name, "version": versions[name], "purl": f"pkg:pypi/{name}@{versions[name]}"}
        for name in names
    ]
    about = {"component": {"type": "application", "name": "alimark", "purl": "pkg:pypi/alimark"}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": about, "components": components}


def problems() -> list[str]:
    """What in the written files does not agree with constraints.txt."""
    known = pins()
    everything, hashes = locked(ALL)
    service, service_hashes = locked(SERVICE)
    found = [f"{ALL.name} does not have the pins of constraints.txt"] if everything != known else []
    found += [f"{name} has no hash" for name in known if not hashes.get(name)]
    for name, version in service.items():
        if known.get(name) != version or service_hashes[name] != hashes.get(name):
            found.append(f"{name} differs between {SERVICE.name} and {ALL.name}")
    if json.loads(BILL.read_text("utf-8")) != bill_of(list(service), service):
        found.append(f"{BILL.name} does not have the packages of {SERVICE.name}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file is out of date")
    if parser.parse_args().check:
        sys.exit("\n".join(problems()) or 0)
    known = pins()
    service = of_service(known)
    with ThreadPoolExecutor(8) as pool:
        hashes = dict(zip(known, pool.map(lambda name: hashes_of(name, known[name]), known), strict=True))
    if missing := [name for name in known if not hashes[name]]:
        sys.exit(f"the index has no files of {', '.join(missing)} in the pinned version")
    ALL.write_text(text_of(sorted(known), known, hashes), "utf-8")
    SERVICE.write_text(text_of(service, known, hashes), "utf-8")
    BILL.write_text(json.dumps(bill_of(service, known), indent=1) + "\n", "utf-8")
    print(f"{len(known)} pins, {len(service)} of them in the container")


if __name__ == "__main__":
    main()
