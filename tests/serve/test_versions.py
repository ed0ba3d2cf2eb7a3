"""The service with soft keys of several runs: writing, streaming and detecting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from services import serving

from alimark import AliMark, Key
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, soft_key, written


def test_texts_under_runs_are_written_streamed_and_found(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(7, 39)), run=[1, 2, 4], offsets=6)
    with serving(tmp_path) as running:
        running.service.ring.add(key)
        body = {"prompt": "So.", "seed": 4}
        with running.client("generate") as writer:
            plain = writer.post("/v1/completions", json=body).json()
            streamed = writer.post("/v1/completions", json={**body, "stream": True}).text
        assert plain["alimark"]["key_id"] == key.id
        text = plain["choices"][0]["text"]
        events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == text
        with running.client("detect") as reader:
            [got] = reader.post("/v1/detect", json={"input": text}).json()["results"]
    assert (got["key_id"], got["verdict"]) == (key.id, "found")
    alone = AliMark(key, embedder=EMBEDDER).detect(text)
    assert alone.verdict() == "found"


def test_keys_of_several_runs_are_scored_as_each_alone(tmp_path: Path) -> None:
    keys = [soft_key(1), Key.generate(embedder=EMBEDDER, secret=bytes(range(2, 34)), run=1), soft_key(3)]
    text = " ".join(written(keys[1]))
    raw = AliMark(keys[1], embedder=StandInEmbedder()).detect(text).raw
    with serving(tmp_path) as running:
        for key in keys:
            running.service.ring.add(key)
        with running.client("detect") as reader:
            body = {"input": text, "keys": [key.id for key in keys], "evidence": True}
            [got] = reader.post("/v1/detect", json=body).json()["results"]
    assert (got["key_id"], got["keys_tried"]) == (keys[1].id, 3)
    assert got["evidence"]["raw"] == pytest.approx(raw, rel=1e-9)
