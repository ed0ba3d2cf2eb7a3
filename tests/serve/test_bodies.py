"""Bodies of requests: whatever is parsed was counted before, whatever its headers and encoding say."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Annotated, Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services import Running

pytest.importorskip("fastapi")

from fastapi import APIRouter, Body, FastAPI

from alimark.serve import bodies
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


SCALARS = st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{},é\0\n')
STRINGS = st.lists(
    st.sampled_from(['"', "\\", '\\"', "[", "é", 1]), min_size=2, max_size=6
)  # just above and below the limit
VALUES = STRINGS | st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner), max_leaves=20
)
TYPES = st.sampled_from(
    [JSON, "application/JSON", "application/x+json", "text/json", f"{JSON}; charset=utf-16", JSON + ";"]
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-7"])
SENT = st.just(([JSON], "utf-8")) | st.tuples(st.lists(TYPES, max_size=2), ENCODINGS)
DAMAGE = st.none() | st.tuples(
    st.integers(0, 200), st.sampled_from([b"", b'"', b"\\", b"[", b"\0", b"\xff", b'\\"', b"{}"])
)


@pytest.fixture
def reached() -> Iterator[Callable[..., list[object]]]:
    """An app whose limits are low: a function that sends it a body and returns the values that got to its endpoint."""
    app, values = FastAPI(), []
    router = APIRouter(route_class=bodies.BoundedRoute)

    @router.post("/")
    async def take(body: Annotated[Any, Body()]) -> None:
        values.append(body)

    app.include_router(router)
    app.add_exception_handler(ApiError, lambda _, error: cast(ApiError, error).response)
    limits = SimpleNamespace(max_body=2000, body_timeout=9.0)
    app.state.service = SimpleNamespace(settings=limits, metrics=MagicMock())

    def send(body: bytes, types: list[str]) -> list[object]:
        headers = [(b"content-length", b"%d" % len(body)), *((b"content-type", kind.encode()) for kind in types)]
        state = {"info": SimpleNamespace(body_unread=True)}
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b"", "state": state}
        values.clear()
        runner.run(app(scope, AsyncMock(return_value={"type": "http.request", "body": body}), AsyncMock()))
        return values

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(bodies, "MAX_VALUES", 3)
        patch.setattr(bodies, "MAX_DEPTH", 2)
        patch.setattr(bodies, "_LARGE", 100)
        yield send


def _size(value: Any) -> tuple[int, int]:
    """The number of items and fields in a value, and its depth."""
    if not isinstance(value, (list, dict)):
        return 0, 0
    inner = [_size(item) for item in (value.values() if isinstance(value, dict) else value)]
    return len(inner) + sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0)


def _counted(value: Any) -> int:
    """What the service counts: each list or object as one value, empty or not, and each further item."""
    if not isinstance(value, (list, dict)):
        return 0
    return max(1, len(value)) + sum(map(_counted, value.values() if isinstance(value, dict) else value))


@given(VALUES, SENT, st.booleans(), DAMAGE)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_an_endpoint_gets_was_counted(
    reached: Callable[..., list[object]], value: object, sent: tuple[list[str], str], escaped: bool,
    damage: tuple[int, bytes] | None,
) -> None:  # fmt: skip
    types, encoding = sent
    body = json.dumps(value, ensure_ascii=escaped).encode(encoding)
    if damage is not None:
        body = body[: damage[0]] + damage[1] + body[damage[0] :]
    values = reached(body, types)
    for got in values:
        assert _size(got)[0] <= 3
        assert _size(got)[1] <= 2
        assert got == json.loads(body.decode())
    fits = _counted(value) <= 3 and _size(value)[1] <= 2
    if (
        damage is None
        and len(types) == 1
        and types[0].lower() == JSON
        and encoding == "utf-8"
        and fits
        and len(body) <= 2000
    ):
        assert values == [value]
    if encoding in ("utf-16", "utf-32", "utf-8-sig") or len(types) != 1:
        assert not values


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
