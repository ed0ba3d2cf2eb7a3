"""The endpoint that returns the text of a document, and those that rewrite and attack a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from services import Running

from alimark.serve.places import QueueFull
from small_documents import docx


def test_the_endpoint(running: Running) -> None:
    with running.client("detect") as client:
        assert client.post("/v1/extract?kind=docx", content=docx("One came.")).json() == {
            "text": "One came.", "kind": "docx", "notes": [],
        }  # fmt: skip
        assert client.post("/v1/extract?kind=docx", content=b"none").status_code == 422
        assert client.post("/v1/extract?kind=exe", content=b"none").status_code == 422


def test_rewrite_and_attacks(running: Running, tmp_path: Path) -> None:
    text = " ".join(
        f"The mayor opened the {kind} bridge near the hill." for kind in "old new red long low wide dark grey".split()
    )
    with running.client("generate") as client:
        body = {"input": text, "seed": 1, "closeness": 0.5, "mean_closeness": 0.5}
        rewriting = client.post("/v1/rewrite", json=body).json()
        assert "rewritten" in rewriting["outcomes"], rewriting
        assert rewriting["text"] != text
        assert rewriting["key_id"] == running.key.id
        assert rewriting["verdict"] in ("found", "not found", "too short to tell")
        assert rewriting["p_value"] <= rewriting["p_value_before"]
        assert [sentence["cosine"] for sentence in rewriting["moved_most"]] == sorted(rewriting["cosines"])[:2]
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
