"""Fixtures that tests of several packages share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import alimark.attacks
import alimark.embedding.loading
import alimark.llm
import alimark.parameters
import alimark.schemes.registry
import alimark.text.splitting


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package with entry points, as pip would, for one test: `install(package, source, group={name: target})`."""
    for registry in (
        alimark.attacks.ATTACKS, alimark.embedding.loading.EMBEDDERS, alimark.llm.ENGINES,
        alimark.parameters._REGISTRY, alimark.schemes.registry._REGISTRY, alimark.text.splitting.SPLITTERS,
    ):  # fmt: skip
        monkeypatch.setattr(registry, "_objects", dict(registry._objects))
        monkeypatch.setattr(registry, "_entry_points", None)  # so that the value read before comes back after the test
        monkeypatch.delattr(registry, "_entry_points")
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(package: str, source: str, **groups: dict[str, str]) -> None:
        (tmp_path / f"{package}.py").write_text(source)
        information = tmp_path / f"{package}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = []
        for group, entries in groups.items():
            lines += [f"[alimark.{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (information / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install
