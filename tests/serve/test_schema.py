"""schemathesis over the service's own description: whatever is sent, nothing breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from services import Running, serving

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve"), candidates=2, max_sentences=3, sentences=2, rate=0) as service:
        yield service


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.mark.parametrize("mode", MODES, ids=["as described", "otherwise"])
def test_no_request_breaks_the_service(running: Running, mode: Any) -> None:
    # One token of all roles: what each may do is another test's.
    token = running.service.tokens.create(["generate", "detect", "admin"])[1]
    headers = {"authorization": f"Bearer {token}"}
    with running.client(None) as client:
        description = client.get("/openapi.json").json()
    seen: set[str] = set()
    for found in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = found.ok()

        @given(operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        def send(case: Any) -> None:
            if isinstance(case.body, dict) and case.body.get("name") in ("synonyms", "translate"):
                case.body["name"] = "delete"  # those load models
            answer = case.call(base_url=running.url, headers=headers, timeout=60)
            seen.add(f"{case.operation.label} {answer.status_code}")
            assert answer.status_code < 500, (case.operation.label, answer.text)
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"]

        try:
            send()
        except Unsatisfiable:
            assert mode is MODES[1], "there is a request to every endpoint"  # though not everywhere a wrong one
    assert len({line.rpartition(" ")[0] for line in seen}) > 10, seen
