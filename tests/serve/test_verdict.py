"""The detector for others: a verdict and nothing else, for few texts a day, signed, and found by who has only a text."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from services import Running, serving
from test_access import TABLE

import alimark
from alimark.audit.evidence.signing import SigningKey, check_signature, read_jws
from alimark.audit.remote import RemoteDetector, ServiceError, signers_of
from alimark.core._util.arrays import Packed
from alimark.core.keys.key import Key
from alimark.serve.auth import Allowance, public_client
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run

PLAIN = " ".join(f"Nobody spoke of item {number} on the long list of things." for number in range(12))
OTHERS = [
    PLAIN,
    "x",
    "One came.",
    "...",
    "😀 😀!",
    "\0",
    "```\ncode\n```",
    "a" * 5000,
    f"{PLAIN} " * 20,
    "\u0430n item. " * 30,
]


@pytest.fixture(scope="module")
def service_settings() -> dict[str, Any]:
    return {
        "public_detector": True,
        "operator": "The \x1b[31mAcme Press",
        "keep_text": True,
        "verdict_budget": 1000,
        "marks": "letters",
    }


@pytest.fixture(scope="module")
def marked(running: Running) -> str:
    mark = alimark.AliMark(running.key, embedder=StandInEmbedder())
    return mark.generate("The door opened.", StandInLLM(), candidates=24, seed=3).text


def test_nothing_but_the_verdict_leaves(running: Running, marked: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Bodies, headers and errors of every endpoint, for texts with and without the mark."""
    names = {"connection", "content-length", "content-type", "date", "server", "x-request-id"}
    with running.client("verdict") as client:
        secrets = [running.key.id, "p_value", "score", "0.000", "sentence", "keys"]
        for text in [marked, *OTHERS]:
            answer = client.post("/v1/verdict", json={"input": text})
            if answer.status_code == 422:
                assert (
                    answer.json()["error"]["message"]
                    == "The text cannot be checked. Send plain text in sentences, or a shorter part of it."
                )
                continue
            assert set(answer.json()) == {"statement", "verdict", "false_positive_rate", "text_sha256"}
            assert (answer.json()["verdict"] == "found") == (text == marked)
            assert "at a false-positive rate of 1%" in answer.json()["statement"]
            assert not any(secret in answer.text for secret in secrets)
        heads = [client.post("/v1/verdict", json={"input": text}).headers for text in (marked, PLAIN)]
        assert [{name: head[name] for name in head if name not in names} for head in heads[1:]] == [
            {name: heads[0][name] for name in heads[0] if name not in names}
        ]
        for (method, path), (allowed, body) in TABLE.items():
            answer = client.request(method, path, json=body)
            if not allowed & {"verdict", "nobody"}:
                assert answer.status_code == 403, path
                assert not any(secret in answer.text.replace(path, "") for secret in secrets[:3])
        for body in ({"input": marked, "fpr": 0.05}, {"input": marked, "evidence": True}, {"input": [marked]}):
            assert client.post("/v1/verdict", json=body).status_code == 422
    with running.client("admin") as client:
        assert client.get("/v1/records").text == "", "no text, and no hash of one"
    captured = capfd.readouterr()
    assert marked[:40] not in captured.out + captured.err


@pytest.mark.parametrize("sentences", [12, 70])
def test_no_text_costs_fewer_random_keys(
    running: Running, marked: str, sentences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an early stop, nor a second search of long texts, tells how near a text is to the mark."""
    drawn: list[int] = []
    original = Key.null_blocks

    def null_blocks(key: Key, first: int, count: int, length: int) -> Packed:
        drawn.append(count)
        return original(key, first, count, length)

    monkeypatch.setattr(Key, "null_blocks", null_blocks)
    with running.client("verdict") as client:
        counts = []
        for start in (marked, PLAIN):
            drawn.clear()
            text = start + " " + " ".join(["Nobody went there."] * (sentences - 12))
            assert client.post("/v1/verdict", json={"input": text}).status_code == 200
            counts.append(sum(drawn))
    assert counts[0] == counts[1] >= 1000


def test_without_a_token_few_texts_a_day(tmp_path: Path) -> None:
    with (
        serving(tmp_path, public_detector=True, public_rate=100.0, verdict_budget=2, public_budget=5) as running,
        running.client(None) as client,
    ):

        def ask(address: str) -> int:
            sent = client.post("/v1/verdict", json={"input": PLAIN}, headers={"x-forwarded-for": address})
            return sent.status_code

        assert [ask("192.0.2.1") for _ in range(3)] == [200, 200, 429]
        assert [ask("2001:db8::1"), ask("2001:db8::2"), ask("2001:db8::3")] == [200, 200, 429], "a /64 is a client"
        assert [ask("192.0.2.2"), ask("192.0.2.3")] == [200, 429], "all together"
        assert client.post("/v1/detect", json={"input": PLAIN}).status_code == 401
        with running.client("detect") as detecting, running.client("verdict") as asking:
            assert detecting.post("/v1/detect", json={"input": PLAIN}).status_code == 200
            assert [asking.post("/v1/verdict", json={"input": PLAIN}).status_code for _ in range(3)] == [200, 200, 429]
    assert "192.0.2.1" not in public_client("192.0.2.1").id


def test_the_budget_is_new_every_day(monkeypatch: pytest.MonkeyPatch) -> None:
    allowance = Allowance(1, 1, 1)
    monkeypatch.setattr("time.time", lambda: 86400.0 * 5)
    assert [allowance.spend("a", 2) for _ in range(3)] == [True, True, False]
    assert allowance.spend("b", 2)
    monkeypatch.setattr("time.time", lambda: 86400.0 * 6)
    assert allowance.spend("a", 2)


def test_a_private_detector_needs_a_token(tmp_path: Path) -> None:
    with serving(tmp_path) as running, running.client(None) as client:
        assert client.post("/v1/verdict", json={"input": PLAIN}).status_code == 401
        assert client.get("/.well-known/alimark").status_code == 404
        [answer] = RemoteDetector([running.url]).detect(PLAIN)
        assert "operator" in answer.error


def test_answers_of_the_detector_are_signed(running: Running, marked: str) -> None:
    with running.client("detect") as client:
        answer = client.post("/v1/detect", json={"input": [marked, PLAIN]}, headers={"accept": "application/jose"})
    assert answer.headers["content-type"] == "application/jose"
    content = read_jws(answer.text)
    assert content
    assert [result["verdict"] for result in content["results"]] == ["found", "not found"]
    assert [check_signature(content)] == signers_of(running.url)


@pytest.fixture(scope="module")
def answering(running: Running) -> Iterator[dict[str, bytes]]:
    """What a second service answers, by path; a request for a verdict gets what `verdict` holds."""
    answers: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b"{}"))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers["url"] = f"http://127.0.0.1:{server.server_port}".encode()
        yield answers
        server.shutdown()


def test_the_service_describes_itself(running: Running) -> None:
    with running.client(None) as client:
        about = client.get("/.well-known/alimark").json()
    assert (about["marks"], about["languages"], about["limits"]["texts_a_day"]) == ("letters", ["en"], 1000)
    [key] = about["marked"]
    assert key["key_id"] == running.key.id
    assert abs((datetime.now(UTC) - datetime.fromisoformat(key["since"])).total_seconds()) < 3600


def test_several_services_are_asked_and_one_is_down(running: Running, marked: str) -> None:
    answers = RemoteDetector([running.url, "http://127.0.0.1:9/"]).detect(marked)
    assert [answer.verdict for answer in answers] == ["found", ""]
    assert answers[0].operator == "The  [31mAcme Press", "nothing that commands a terminal"
    assert "does not answer" in answers[1].error
    content = read_jws(answers[0].signed)
    assert content
    assert content["verdict"] == "found"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b[31mnonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 300_000,
        b"HTTP/1.1 500 No\r\nContent-Length: 300000\r\n\r\n" + b"[" * 300_000,
    ],
    ids=["no HTTP", "cut off", "deep", "deep error"],
)
def test_a_service_that_answers_nonsense_is_named_at_once(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                connection = listening.accept()[0]
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        [result] = RemoteDetector([address]).detect(PLAIN)
        assert result.error.startswith(address)
        assert "within" not in result.error
        assert "\x1b" not in result.error
        with pytest.raises(ServiceError):
            signers_of(address)


def test_keys_for_something_else_are_passed_over(running: Running, answering: dict[str, bytes], tmp_path: Path) -> None:
    """A key set of another operator may also hold keys of other kinds and further fields (RFC 7517, section 5)."""
    key = SigningKey.of_installation(tmp_path / "key.pem")
    others: list[Any] = [
        {"kty": "RSA", "n": "AQ", "e": "AQAB"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        "x",
        {"x": 1},
    ]
    listed = {"keys": [*others, key.jwk | {"key_ops": ["verify"]}]}
    answering["/.well-known/alimark/jwks.json"] = json.dumps(listed).encode()
    assert signers_of(answering["url"].decode()) == [key.fingerprint]
    del answering["/.well-known/alimark/jwks.json"]


def test_answers_that_prove_nothing_are_refused(
    running: Running, marked: str, answering: dict[str, bytes], tmp_path: Path
) -> None:
    """Of another text, of a signer that the service does not list, and of a service that says nothing about itself."""
    service = answering["url"].decode()

    def error() -> str:
        [answer] = RemoteDetector([service], seconds=10).detect(marked)
        assert not answer.verdict
        return answer.error

    assert "does not say" in error()
    with running.client("verdict") as client:
        jose = {"accept": "application/jose"}
        answering["/.well-known/alimark"] = client.get("/.well-known/alimark").content
        answering["/v1/verdict"] = client.post("/v1/verdict", json={"input": marked}, headers=jose).content
        assert "lists no keys" in error()
        answering["/.well-known/alimark/jwks.json"] = client.get("/.well-known/alimark/jwks.json").content
        assert RemoteDetector([service]).detect(marked)[0].verdict == "found"
        answering["/v1/verdict"] = client.post("/v1/verdict", json={"input": PLAIN}, headers=jose).content
        assert "another text" in error()
        stranger = SigningKey.of_installation(tmp_path / "stranger.pem")
        answering["/v1/verdict"] = stranger.sign(read_jws(answering["/v1/verdict"].decode()) or {})["jws"].encode()
        assert "not signed by a key that it lists" in error()
        answering["/.well-known/alimark"] = json.dumps(
            {"operator": "x", "detector": {"verdict": "http://127.0.0.1:9/"}}
        ).encode()
        assert "another address" in error()


def test_a_token_is_not_sent_unencrypted_or_after_a_redirect() -> None:
    with pytest.raises(alimark.AlimarkError, match="unencrypted"):
        RemoteDetector({"http://detector.example": "alm_secret"})
    for address in ("detector.example", "ftp://detector.example", "https://me:secret@detector.example"):
        with pytest.raises(alimark.AlimarkError, match="is not the address"):
            RemoteDetector([address])


def test_from_a_text_to_a_signed_answer_on_the_command_line(
    running: Running, marked: str, command: Run, stand_in_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIMARK_SIGNING_KEY", str(tmp_path / "signing-key.pem"))
    text, answer = tmp_path / "text.txt", tmp_path / "answer.jws"
    text.write_text(f"{marked}\n")
    done = command("detect", "--service", running.url, "--service", "http://127.0.0.1:9", text, "--report", answer)
    assert (done.status, "found by The" in done.out, "does not answer" in done.out) == (0, True, True)
    done = command("verify", answer, text, "--signer", running.url)
    assert (done.status, "found" in done.out) == (0, True)
    assert command("verify", answer, text).status == 1, "nobody said whom to trust"
    text.write_text(PLAIN)
    assert command("verify", answer, text, "--signer", running.url).status == 1
    assert command("detect", "--service", running.url, text).status == 1
    assert command("detect", "--service", "http://127.0.0.1:9", text).status == 2
    assert command("detect", text).status == 2
