"""Bodies of requests: whatever is parsed was counted before, whatever its headers and encoding say."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from services import Running

from alimark.serve.bodies import MAX_VALUES, parse
from alimark.serve.errors import ApiError

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
        ([JSON], "utf-8", '{"prompt": "So.", ' + ",".join(f'"f{i}": 1' for i in range(100_000)) + "}"),
        ([JSON], "utf-8", '{"prompt": [' + ",".join(["{}"] * 100_000) + "]}"),
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


SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(VALUES, st.booleans())
def test_json_is_read_in_utf8_and_in_no_other_encoding(value: object, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert parse(text.encode()) == value
    for encoding in ("utf-16", "utf-32"):
        with pytest.raises(ApiError):
            parse(text.encode(encoding))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"a": [' + b"1," * (MAX_VALUES - 3) + b"1]}", None),
        (b'{"a": [' + b"1," * MAX_VALUES + b"1]}", 413),
        (b"[" * 100 + b"]" * 100, None),
        (b"[" * 101 + b"]" * 101, 413),
        (b'{"a": "' + b",[{" * MAX_VALUES + b'"}', None),
        (b'"a", "b', 422),
        (b"9" * 5000, 400),
        (b'"\xff"', 400),
    ],
)
def test_the_limits(body: bytes, status: int | None) -> None:
    if status is None:
        assert parse(body) == json.loads(body)
    else:
        with pytest.raises(ApiError) as refused:
            parse(body)
        assert refused.value.status == status


# Half a surrogate pair, which JSON can hold and UTF-8 cannot

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
def test_half_a_surrogate_pair_is_no_internal_error(running: Running, role: str, path: str, body: object) -> None:
    with running.client(role) as client:
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 422)


def test_the_evidence_holds_the_text_as_it_was_sent(running: Running) -> None:
    body = json.dumps({"input": "One \ud800 came. Zwölf went.", "evidence": True})
    with running.client("detect") as client:
        answer = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    [result] = json.loads(answer.content)["results"]
    assert "\ud800" in json.dumps(result["evidence"], ensure_ascii=False)
