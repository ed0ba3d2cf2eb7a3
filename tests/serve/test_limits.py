"""Limits on size, length, number, rate, concurrency, queues and time, with their error responses; and the shutdown."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from services import Running, serving, set_up, start_process


def test_sizes(tmp_path: Path) -> None:
    with serving(tmp_path, max_body=20_000, max_text=5_000, max_texts=3, body_timeout=0.3) as running:
        with running.client("detect") as client:

            def status(body: object) -> tuple[int, str]:
                answer = client.post("/v1/detect", json=body)
                return answer.status_code, answer.json()["error"]["code"]

            assert status({"input": "a" * 30_000}) == (413, "body_too_large")
            assert status({"input": "a. " * 2_000}) == (413, "text_too_long")
            assert status({"input": ["One."] * 4}) == (413, "too_many_texts")
            assert status({"input": ""}) == (422, "invalid")
            assert status({"input": "One.", "fpr": 0}) == (422, "invalid")
            assert status({"input": "One.", "more": 1}) == (422, "invalid")
            chunked = client.post("/v1/detect", content=(b"x" * 1000 for _ in range(50)))
            assert chunked.status_code == 413
        with running.client("generate") as client:
            assert client.post("/v1/completions", json={"prompt": ["So."] * 4}).status_code == 413
        _too_slow(running)


def _too_slow(running: Running) -> None:
    """Sends only a part of the body and waits."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/detect HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.tokens['detect']}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in connection.recv(4096)


def test_rate_and_concurrency(tmp_path: Path) -> None:
    with serving(tmp_path, rate=0.01, burst=3, concurrency=1, pause=0.3) as running:
        with running.client("detect") as client:
            answers = [client.post("/v1/detect", json={"input": "One came."}) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert 50 < int(answers[-1].headers["retry-after"]) <= 100
        with running.client("generate") as client, ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(client.post, "/v1/completions", json={"prompt": "So.", "sentences": 1}) for _ in "12"]
            assert sorted(future.result().status_code for future in sent) == [200, 429]
            assert client.post("/v1/completions", json={"prompt": "So.", "sentences": 1}).status_code == 200


def test_ten_times_the_queue(tmp_path: Path) -> None:
    """Some requests are served, the others get status 429, and afterwards the service works as before."""
    with serving(tmp_path, write_queue=2, detect_queue=4, pause=0.05, rate=0) as running:
        with running.client("generate") as client, ThreadPoolExecutor(20) as pool:
            body = {"prompt": "So.", "sentences": 2}
            responses = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(20)))
            assert {response.status_code for response in responses} == {200, 429}
            assert all(int(reply.headers["retry-after"]) >= 1 for reply in responses if reply.status_code == 429)
            assert client.post("/v1/completions", json=body).status_code == 200
        with running.client("detect") as client, ThreadPoolExecutor(40) as pool:
            look = {"input": ["One came. Two went."] * 2}
            responses = list(pool.map(lambda _: client.post("/v1/detect", json=look), range(20)))
            assert {response.status_code for response in responses} <= {200, 429}
            assert client.post("/v1/detect", json={"input": ["One."] * 5}).status_code == 429
            assert client.post("/v1/detect", json=look).status_code == 200


def test_a_text_that_takes_too_long(tmp_path: Path) -> None:
    with serving(tmp_path / "slow", timeout=1.0, pause=0.3) as running, running.client("generate") as client:
        cut = client.post("/v1/completions", json={"prompt": "So.", "sentences": 50}).json()["choices"][0]
        assert (cut["finish_reason"], len(cut["text"]) > 10) == ("length", True)
    with serving(tmp_path / "slower", timeout=1.0, pause=2.5) as running, running.client("generate") as client:
        late = client.post("/v1/completions", json={"prompt": "So.", "sentences": 50})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        time.sleep(2.5)  # until the call of the model that nobody waits for is over
        streamed = client.post("/v1/completions", json={"prompt": "So.", "sentences": 50, "stream": True})
        assert '"timeout"' in streamed.text
        assert "[DONE]" not in streamed.text
        assert running.service.writers.under_way == 0, "no text is written for a client that got an error"


def test_a_disconnected_client_ends_the_work_and_its_part_is_recorded(tmp_path: Path) -> None:
    with serving(tmp_path, pause=0.05) as running:
        with (
            running.client("generate") as client,
            client.stream("POST", "/v1/completions", json={"prompt": "So.", "sentences": 60, "stream": True}) as got,
        ):
            lines = got.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"]
        until = time.monotonic() + 10
        while (running.service.writers.under_way or not _records(running)) and time.monotonic() < until:
            time.sleep(0.05)
        [record] = _records(running)
        assert running.service.writers.under_way == 0
        assert first.strip()
        assert record["details"]["ended"] == "broken off"
        assert 1 <= record["details"]["sentences"] < 60


def _records(running: Running) -> list[dict[str, Any]]:
    with running.client("admin") as admin:
        return [json.loads(line) for line in admin.get("/v1/records").iter_lines()]


def test_without_a_record_there_is_no_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as running, running.client("detect") as client, running.client("generate") as writer:
        running.service.store.close()
        assert client.get("/healthz").status_code == 503
        answers = [client.post("/v1/detect", json={"input": "One came."}),
                   writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1})]  # fmt: skip
        assert [answer.status_code for answer in answers] == [503, 503]
        assert all("error" in answer.json() and "choices" not in answer.json() for answer in answers)
        streamed = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1, "stream": True})
        assert "[DONE]" not in streamed.text


def test_nobody_waits_for_a_database_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alimark.serve.service._SAVE_SECONDS", 0.5)
    with serving(tmp_path) as running, running.client("detect") as client:
        assert client.post("/v1/detect", json={"input": "One came."}).status_code == 200
        goes_on = threading.Event()
        hanging = running.service.store.submit(lambda _: goes_on.wait(60))
        answer = client.post("/v1/detect", json={"input": "One came."}, timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database")
        goes_on.set()
        hanging.result(20)
        assert client.post("/v1/detect", json={"input": "One came."}).status_code == 200
        assert len("".join(running.service.records.export()).splitlines()) == 2, "not that of the refused one"


def test_sigterm_finishes_the_accepted_requests(tmp_path: Path) -> None:
    tokens = set_up(tmp_path / "data")
    process = start_process(tmp_path / "data", tmp_path / "log", pause=0.1, drain=1.0)
    answers: list[httpx.Response] = []

    def ask(stream: bool) -> None:
        body = {"prompt": "So.", "sentences": 12, "stream": stream}
        headers = {"authorization": f"Bearer {tokens['generate']}"}
        url = f"{process.url}/v1/completions"
        answers.append(httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False))

    asking = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in asking:
        thread.start()
    time.sleep(0.5)
    with httpx.Client(base_url=process.url, trust_env=False, verify=False) as client:
        process.running.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        ready, health = client.get("readyz"), client.get("healthz")
    assert (ready.status_code, ready.json(), health.status_code) == (503, {"status": "draining"}, 200)
    for thread in asking:
        thread.join()
    assert process.running.wait(30) in (0, -signal.SIGTERM)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert any("[DONE]" in answer.text for answer in answers)
    assert not any("server" in answer.headers for answer in answers)  # attackers learn no name of the server
    log = process.log.read_text()
    assert "Traceback" not in log
    assert '"error"' not in log
