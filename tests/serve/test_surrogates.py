"""Texts with half a surrogate pair, which JSON can hold and UTF-8 cannot."""

from __future__ import annotations

import json

import pytest
from services import Running

BODIES = [
    ("detect", "/v1/detect", {"input": "One \ud800 came. Two went.", "evidence": True}),
    ("detect", "/v1/detect", {"input": ["One came.", "\udfff \ud800"], "evidence": True}),
    ("generate", "/v1/attack", {"name": "delete", "input": "One \ud800 came. Two went."}),
    ("generate", "/v1/completions", {"prompt": "One \ud800 came.", "sentences": 2}),
    ("generate", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Why \udfff?"}], "sentences": 2}),
    ("generate", "/v1/responses", {"input": "Why \udfff?", "instructions": "Be \ud800 kind."}),
    ("generate", "/v1/rewrite", {"input": "One \ud800 came. Two went."}),
]


@pytest.mark.parametrize(("role", "path", "body"), BODIES, ids=[f"{body[1]} {n}" for n, body in enumerate(BODIES)])
def test_no_internal_error(running: Running, role: str, path: str, body: object) -> None:
    with running.client(role) as client:
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 422)


def test_the_evidence_holds_the_text_as_it_was_sent(running: Running) -> None:
    body = json.dumps({"input": "One \ud800 came. Zwölf went.", "evidence": True})
    with running.client("detect") as client:
        answer = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    [result] = json.loads(answer.content)["results"]
    assert "\ud800" in json.dumps(result["evidence"], ensure_ascii=False)
