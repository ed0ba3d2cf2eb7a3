"""Requests that are made to cost the server time, memory or disk space."""

import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import Running

pytest.importorskip("fastapi")

from alimark.serve.log import LimitRepeats


def test_only_tabled_rates_are_allowed(running: Running) -> None:
    """Any other rate would start a simulation of seconds."""
    with running.client("detect") as client:
        for fpr in (0.05, 0.01, 0.001):
            assert client.post("/v1/detect", json={"input": "One came.", "fpr": fpr}).status_code == 200
        for fpr in (0.0123, 0.5, 0.002):
            answer = client.post("/v1/detect", json={"input": "One came.", "fpr": fpr})
            assert answer.status_code == 422
            assert "0.05" in answer.json()["error"]["message"]


def test_errors_of_a_request_are_bounded(running: Running) -> None:
    """The first wrong item of a list is reported, and no further ones are collected."""
    with running.client("detect") as client:
        answer = client.post("/v1/detect", json={"input": [1] * 5000})
        assert answer.status_code == 422
        assert len(answer.content) < 1000
        texts = ['A text with commas, [brackets], {braces} and "quotes": many of them.\\' * 1000] * 3
        assert client.post("/v1/detect", json={"input": texts}).status_code == 200


def _exchange(running: Running, *parts: bytes) -> bytes:
    """Sends raw bytes and returns the answer up to its end or a pause."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
        return connection.recv(65536)


@pytest.mark.parametrize("path", ["/healthz", "/", "/openapi.json", "/nothing"])
def test_bodies_without_a_token_are_not_read(running: Running, path: str) -> None:
    """The answer comes although only a part of the announced body was sent."""
    answer = _exchange(running, f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\nxx".encode())
    assert answer.startswith(b"HTTP/1.1 40")
    assert b"connection: close" in answer.lower()


def test_bodies_without_a_length_are_small(running: Running) -> None:
    """Each chunk costs time, however small it is."""
    head = f"POST /v1/detect HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.tokens['detect']}\r\n"
    head += "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    body = json.dumps({"input": "One came. Two went."}).encode()
    small = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body)
    assert b" 200 " in _exchange(running, head.encode(), small, b"0\r\n\r\n").partition(b"\r\n")[0]
    large = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert b" 411 " in _exchange(running, head.encode(), large, b"1\r\n \r\n").partition(b"\r\n")[0]


def test_repeated_log_records_are_counted() -> None:
    limit = LimitRepeats(most=3, seconds=60)

    def record(message: str, **more: object) -> logging.LogRecord:
        return logging.makeLogRecord({"name": "uvicorn.error", "msg": message, **more})

    assert [limit.filter(record("bad")) for _ in range(5)] == [True, True, True, False, False]
    assert limit.filter(record("other"))
    assert all(limit.filter(record("request", token="tk1")) for _ in range(9)), "requests with a token are all logged"
    limit.seconds = 0.0
    late = record("bad")
    assert limit.filter(late)
    assert vars(late)["suppressed"] == 2


def test_the_verdict_is_not_computed_on_the_event_loop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from alimark.core.detection.stats import power

    monkeypatch.setattr(power, "_TABLED", {0: {}, 2: {}, 3: {}})

    def simulate(*_: object, **__: object) -> int:
        time.sleep(1.0)
        return 5

    monkeypatch.setattr(power, "simulate_sentences_needed", simulate)
    monkeypatch.setattr(power, "_simulated", {})
    with running.client("detect") as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/detect", json={"input": "One came. Two went."})
        time.sleep(0.4)
        started = time.monotonic()
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - started < 0.5
        assert answer.result().status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [("/v1/rewrite", {}, 101), ("/v1/attack", {"name": "merge"}, 2001)],
    ids=["rewrite", "attack"],
)
def test_texts_of_too_many_sentences_are_refused(running: Running, path: str, body: dict[str, str], count: int) -> None:
    """The work on a text grows with its sentences: a merge of 50,000 would take minutes."""
    with running.client("generate") as client:
        answer = client.post(path, json=body | {"input": "He came home. " * count})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_much")
