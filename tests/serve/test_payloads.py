"""Payloads in the service: set by token or request, recorded, and returned by detection."""

from __future__ import annotations

import json
from pathlib import Path

from services import serving

from alimark import Key
from fixed_texts import EMBEDDER


def test_payloads_are_set_recorded_and_read(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(32)), payload_bits=8)
    with serving(tmp_path, payloads={"stand-in-payload": 3}, max_sentences=16, sentences=16, candidates=32) as running:
        with running.client("generate") as writer:
            refused = writer.post("/v1/completions", json={"prompt": "So.", "payload": 1})
            running.service.ring.add(key)
            answer = writer.post("/v1/completions", json={"prompt": "So.", "seed": 4, "sentences": 16, "payload": 77})
            too_large = writer.post("/v1/completions", json={"prompt": "So.", "payload": 256})
            token = next(token for token in running.service.tokens.all() if "generate" in token.roles)
            running.service.settings.payloads[token.id] = 5
            other = writer.post("/v1/completions", json={"prompt": "So.", "payload": 6})
            fixed = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1})
            rewritten = writer.post("/v1/rewrite", json={"input": "The mayor opened the old bridge near the hill."})
            running.service.settings.payloads[token.id] = 256
            mistake = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1})
        with running.client("detect") as reader:
            text = answer.json()["choices"][0]["text"]
            [result] = reader.post("/v1/detect", json={"input": text, "keys": [key.id]}).json()["results"]
        with running.client("admin") as admin:
            hard = admin.post("/v1/keys", json={"decision": "hard", "payload_bits": 8})
            records = [json.loads(line) for line in admin.get("/v1/records").text.splitlines()]
    assert (refused.status_code, "has no payloads" in refused.text) == (422, True)
    assert (too_large.status_code, "from 0 to 255" in too_large.text) == (422, True)
    assert (other.status_code, other.json()["error"]["code"]) == (403, "payload_is_set")
    assert (hard.status_code, "hard keys have no payloads" in hard.text) == (422, True)
    assert rewritten.json()["payload"] == 5
    assert (mistake.status_code, "Ask the operator" in mistake.text) == (409, True)
    assert (answer.json()["alimark"]["payload"], fixed.json()["alimark"]["payload"]) == (77, 5)
    assert (result["payload"]["value"], result["payload"]["confidence"] > 0.5) == (77, True)
    assert [record["details"].get("payload") for record in records] == [77, 5, 5, 77]
