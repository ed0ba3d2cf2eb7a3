"""The audit of documents into a JSONL file: enough random keys, resumed by id, summed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alimark import Key
from alimark.audit.auditor import Auditor
from alimark.audit.run import MAX_DRAWS, JsonlDocuments, audit_documents, check_rate, enough_draws, finish
from alimark.audit.summary import summarise
from alimark.core._util.jsonl import JsonlWriter
from alimark.core.detection.settings import DetectionSettings
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()


def test_one_marked_document_among_many_can_be_discovered() -> None:
    settings, limited = enough_draws(DetectionSettings(draws=1000), 100, 0.05)
    assert (settings.draws, settings.stop_after, limited) == (2000, 20, "")
    settings, limited = enough_draws(DetectionSettings(draws=5000, stop_after=7), 100, 0.05)
    assert (settings.draws, settings.stop_after) == (5000, 7)
    settings, limited = enough_draws(DetectionSettings(), 10**6, 0.05)
    assert settings.draws == MAX_DRAWS
    assert "enough for 20 or more" in limited


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_lies_between_0_and_1(rate: float) -> None:
    with pytest.raises(AlimarkError, match="false discovery rate"):
        check_rate(rate)


def test_the_summary_counts_what_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    with JsonlWriter(path) as writer:
        for i, p in enumerate((0.001, 0.02, 0.9)):
            writer.write({"id": i, "verdict": "not found", "p_value": p, "key_id": "ak0"})
        writer.write({"id": 3, "verdict": "failed", "found": False, "failed": True, "error": "no text"})
        finish(writer, 0.05)
    summary = dict(summarise(path, 0.01, 0.05))
    assert summary == {
        "documents": 4, "failed": 1, "fpr": 0.01, "found_at_fpr": 1, "fdr": 0.05, "found_at_fdr": 2, "fdr_threshold": 0.02,
        "found_documents": [
            {"id": "0", "p_value": 0.001, "q_value": 0.003, "key_id": "ak0"},
            {"id": "1", "p_value": 0.02, "q_value": 0.03, "key_id": "ak0"},
        ],
    }  # fmt: skip
    verdicts = [(record["verdict"], record["found"]) for record in map(json.loads, path.read_text().splitlines())]
    assert verdicts == [("found", True), ("found", True), ("not found", False), ("failed", False)]


def test_progress_counts_documents_of_earlier_runs_as_skipped(tmp_path: Path) -> None:
    class Steps:
        def __init__(self) -> None:
            self.counts: list[tuple[int, int]] = []

        def step(self, skipped: int, answered: int) -> None:
            self.counts.append((skipped, answered))

    source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
    key = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32)))
    auditor = Auditor([key], DetectionSettings(draws=99), lambda _: EMBEDDER)
    for count, expected in ((2, (0, 2)), (3, (2, 1))):
        source.write_text("".join(json.dumps({"id": i, "body": f"Text {i}."}) + "\n" for i in range(count)))
        steps = Steps()
        documents = JsonlDocuments(source, "body")
        summary = audit_documents(documents, auditor, output, fpr=0.01, fdr=0.05, field="body", progress=steps)
        assert (sum(a for a, _ in steps.counts), sum(b for _, b in steps.counts)) == expected
        assert (summary["documents"], summary["documents_now"]) == (count, expected[1])
