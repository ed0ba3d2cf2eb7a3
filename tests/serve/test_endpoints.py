"""Endpoints by single requests: complete sentences and codes where they refuse, documents, rewritten and attacked texts."""

from typing import Any

import pytest
from services import Running

pytest.importorskip("fastapi")

from alimark.errors import ContextFull, KeyFileError, LLMError, MissingExtra
from alimark.serve.errors import to_api_error
from alimark.serve.places import QueueFull
from rewriters import STORY
from small_documents import docx

CASES: list[tuple[str, str, str, bytes, int, str, str]] = [
    ("detect", "POST", "/v1/detect", b"{", 422, "invalid", "The body is not valid JSON"),
    ("detect", "POST", "/v1/detect", b"\xff", 400, "http", "The body is not valid JSON"),
    ("detect", "POST", "/v1/detect", b'{"input": "One.", "fpr": 0}', 422, "invalid", "The field fpr is not valid"),
    ("detect", "POST", "/v1/detect", b'{"input": " "}', 422, "empty", "The text is empty"),
    ("detect", "POST", "/v1/detect", b'{"input": "One.", "keys": ["ak"]}', 409, "no_key", "This token has no active key"),
    ("detect", "GET", "/v1/nothing", b"", 404, "http", "There is no such path"),
    ("detect", "GET", "/v1/keys", b"", 403, "wrong_role", "This endpoint needs a token with the role admin"),
    ("generate", "PUT", "/v1/completions", b"{}", 405, "http", "The path does not support this method"),
    ("generate", "POST", "/v1/completions", b'{"prompt": "So.", "model": "x"}', 404, "model_not_found", "The only model"),
    ("generate", "POST", "/v1/completions", b'{"prompt": "So.", "echo": true}', 422, "unmarkable", "Marked text cannot have"),
    ("generate", "POST", "/v1/completions", b'{"prompt": 3}', 422, "invalid", "The field prompt is not valid"),
    ("generate", "POST", "/v1/completions", b'{"prompt": "So.", "beams": 2}', 422, "invalid", "The field beams is not valid: "
     "this service does not know it; leave it out"),
    (
        "generate", "POST", "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}', 422, "invalid",
        "The field messages.0.content is not valid: a part of the type 'image_url' cannot be read; this service reads text",
    ),
    (
        "generate", "POST", "/v1/chat/completions", b'{"messages": [{"role": "assistant", "content": "So."}]}', 422,
        "invalid", "The request is not valid: the role of the last message must be user",
    ),
    ("admin", "POST", "/v1/keys/ak000000000000000000/retire", b"{}", 404, "no_such_key", "There is no key"),
    ("admin", "DELETE", "/v1/tokens/tk000000000000", b"", 404, "no_such_token", "There is no token"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]} {case[5]}")
def test_messages(running: Running, case: tuple[Any, ...]) -> None:
    role, method, path, content, status, code, start = case
    with running.client(role) as client:
        answer = client.request(method, path, content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error["message"].startswith(start)
    assert error["message"].endswith(".")
    assert status != 403 or "alimark serve token --role admin" in error["message"]


def test_messages_of_library_errors() -> None:
    assert to_api_error(KeyFileError("the key is on the ring already")).message == "The key is on the ring already."
    assert "host" not in to_api_error(LLMError("http://host/v1 names no model")).message
    assert "context" in to_api_error(ContextFull("http://host/v1 has no room")).message
    missing = to_api_error(MissingExtra("x-y", "serve"))
    assert missing.message == "x-y is not installed; run: pip install 'alimark[serve]'"


# Endpoints for the text of a document, and those that rewrite and attack a text


def test_the_text_of_a_document(running: Running) -> None:
    with running.client("detect") as client:
        answer = client.post("/v1/extract?kind=docx", content=docx("One came.")).json()
        assert answer == {"text": "One came.", "kind": "docx", "notes": []}
        assert client.post("/v1/extract?kind=docx", content=b"none").status_code == 422
        assert client.post("/v1/extract?kind=exe", content=b"none").status_code == 422


def test_rewrite_and_attacks(running: Running) -> None:
    text = STORY
    with running.client("generate") as client:
        body = {"input": text, "seed": 1, "closeness": 0.5, "mean_closeness": 0.5}
        rewriting = client.post("/v1/rewrite", json=body).json()
        assert "rewritten" in rewriting["outcomes"], rewriting
        assert rewriting["text"] != text
        assert rewriting["key_id"] == running.key.id
        assert rewriting["verdict"] in ("found", "not found", "too short to tell")
        assert rewriting["p_value"] <= rewriting["p_value_before"]
        moved = [sentence["cosine"] for sentence in rewriting["moved_most"]]
        assert moved == sorted(rewriting["cosines"])[: len(moved)]
        for name in ("delete", "merge", "split", "reorder"):
            attacked = client.post("/v1/attack", json={"name": name, "input": text, "rate": 0.7, "seed": 1})
            assert attacked.status_code == 200, attacked.text
            assert attacked.json()["text"] != text


def test_a_rewriting_is_sent_also_where_the_detector_is_busy(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise QueueFull("64 are in progress")

    monkeypatch.setattr(running.service.checker, "submit", busy)
    with running.client("generate") as client:
        answer = client.post("/v1/rewrite", json={"input": "The mayor opened the old bridge near the hill."})
    assert (answer.status_code, answer.json()["verdict"]) == (200, None)
