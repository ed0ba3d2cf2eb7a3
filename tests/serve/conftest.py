"""Fixtures of the service's tests. Libraries of the extra `serve` are imported when a fixture is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from services import Running


@pytest.fixture(scope="module")
def service_settings() -> dict[str, Any]:
    """The settings of `running` that differ from the defaults; test modules override this fixture."""
    return {}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, service_settings: dict[str, Any]) -> Iterator[Running]:
    """A service on stand-in models that answers on loopback, shared by the tests of a module."""
    from services import serving

    with serving(tmp_path_factory.mktemp("serve"), **service_settings) as service:
        yield service


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL server that runs during the test; the test is skipped where none is installed."""
    from databases import postgres

    with postgres() as url:
        yield url
