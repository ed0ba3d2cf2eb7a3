"""Bodies of requests: whatever is parsed was counted before, whatever its headers and encoding say."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import Running

JSON = "application/json"
MANY = '{"prompt": "So.", "stop": [' + ",".join("1" * 2_000_000) + "]}"
QUOTES = '{"prompt": "\\"", "stop": [' + ",".join("1" * 1_000_000) + "]}"


@pytest.mark.parametrize(
    ("types", "encoding", "body"),
    [
        ([JSON], "utf-8", MANY),
        (["application/JSON"], "utf-8", MANY),
        (["Application/Json; charset=UTF-8"], "utf-8", MANY),
        (["application/x+json"], "utf-8", MANY),
        ([JSON, "text/plain"], "utf-8", MANY),
        (["text/plain", JSON], "utf-8", MANY),
        ([], "utf-8", MANY),
        ([JSON], "utf-16", QUOTES),
        (["application/json; charset=utf-16"], "utf-16", QUOTES),
        ([JSON], "utf-32", QUOTES[: 400_000] + "1]}"),
        ([JSON], "utf-8", '{"prompt": ' + "[" * 2_000_000),
        ([JSON], "utf-8", '{"prompt": ' + '""' * 2_000_000),
        ([JSON], "utf-8", "[" * 1000 + "]" * 1000),
    ],
)  # fmt: skip
def test_no_body_freezes_the_service(running: Running, types: list[str], encoding: str, body: str) -> None:
    headers = [("content-type", kind) for kind in types]
    with running.client("generate") as client, ThreadPoolExecutor(1) as pool:
        content = body.encode(encoding)
        started = time.monotonic()
        answer = pool.submit(client.post, "/v1/completions", content=content, headers=headers)
        slowest = 0.0
        while not answer.done():
            asked = time.monotonic()
            assert client.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - asked)
        took = time.monotonic() - started
    assert 400 <= answer.result().status_code < 500
    assert answer.result().json()["error"]["message"].endswith(".")
    assert max(took, slowest) < 1


@pytest.mark.parametrize(
    "kind", [JSON, "APPLICATION/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"']
)
def test_json_in_utf8_is_read(running: Running, kind: str) -> None:
    body = json.dumps({"input": ["Zwölf kamen."]}, ensure_ascii=False).encode()
    with running.client("detect") as client:
        assert client.post("/v1/detect", content=body, headers={"content-type": kind}).status_code == 200
