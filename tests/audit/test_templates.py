"""Documents that share text: those that chance can explain are undecided, marked and independent documents stay found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from alimark import AliMark
from alimark.audit.auditor import Auditor, FirstPass
from alimark.audit.kept_signals import KeptSignals
from alimark.audit.run import JsonlDocuments, audit_documents
from alimark.audit.templates import BURSTS, effective_count, find_groups, search_groups
from alimark.core.detection.batching import signals_of
from alimark.core.detection.preparing import PreparedText, prepare
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.signals import Signals
from alimark.core.keys.projection import project
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, fixed_key, soft_key, unmarked, written

KEYS = 4_999


@pytest.fixture(scope="module")
def noise() -> Any:
    return np.random.default_rng(5).normal(size=(40, KEYS))


def test_independent_documents_form_no_groups(noise: Any) -> None:
    assert find_groups([0.002] * 40, [True] * 40, noise) == []
    assert effective_count([], 40) == 40


def test_a_template_counts_as_one_document(noise: Any) -> None:
    scores = noise.copy()
    scores[:30] = scores[0] + 0.3 * noise[:30]
    [group] = find_groups([0.01] * 30 + [0.001] * 10, [True] * 40, scores)
    assert group.members == tuple(range(30))
    assert group.effective < 1.3
    assert group.chance > 2 * BURSTS
    assert group.undecided == group.members
    assert 10 < effective_count([group], 40) < 11.5
    [strong] = find_groups([0.0003] * 30 + [0.001] * 10, [True] * 40, scores)
    assert strong.undecided == ()
    pair = [True] * 2 + [False] * 38  # two marked documents carry the same blocks and are a group
    [marked] = find_groups([0.001] * 2 + [0.5] * 38, pair, np.vstack([scores[:1], scores[:1], noise[2:]]))
    assert (marked.members, marked.undecided) == ((0, 1), ())
    some = [True] * 4 + [False] * 36  # the best of a template are no better evidence than all of them
    [best] = find_groups([0.01] * 4 + [0.02] * 26 + [0.5] * 10, some, scores)
    assert (len(best.members), best.undecided) == (30, (0, 1, 2, 3))


def test_most_random_keys_are_drawn_for_documents_that_belong_together_only(noise: Any) -> None:
    scores = noise.copy()
    scores[10:30] = scores[10] + 0.3 * noise[10:30]
    p_values, found = [0.001] * 10 + [0.01] * 30, [True] * 40
    drawn = np.zeros(40, int)

    def scorer(document: int) -> Any:
        def null_scores(first: int, count: int) -> Any:
            drawn[document] += count
            return scores[document, first : first + count]

        return null_scores

    assert search_groups(p_values, found, [scorer(i) for i in range(40)]) == find_groups(p_values, found, scores)
    assert (drawn[10:30] == KEYS).all()
    assert (np.delete(drawn, range(10, 30)) < KEYS / 4).all()


def test_an_audit_of_receipts_under_an_unlucky_key(tmp_path: Path) -> None:
    """The key is the one of 80 under which most of the receipts look marked."""
    template = unmarked(10, 4)
    receipts = [" ".join([f"Receipt {i} for {i * 7} dollars.", *template]) for i in range(30)]
    first = [AliMark(fixed_key(n), embedder=EMBEDDER).detect(receipts[0], draws=200).p_value for n in range(80)]
    mark = AliMark(fixed_key(int(np.argmin(first))), embedder=EMBEDDER)
    marked = [" ".join(written(mark.key, seed=seed)) for seed in (1, 2)]
    source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
    texts = [*receipts, *marked]
    source.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    auditor = Auditor([mark.key], DetectionSettings(draws=2000, stop_after=20), lambda _: EMBEDDER)
    for _ in range(2):  # the second time, nothing is answered again and all is as it was
        summary = audit_documents(JsonlDocuments(source), auditor, output, fpr=0.01, fdr=0.05)
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert [answer["id"] for answer in answers if answer["found"]] == ["d30", "d31"]
        undecided = [answer for answer in answers if answer["verdict"] == "undecided"]
        assert len(undecided) == summary["shared_text"]["undecided"] > 15
        assert undecided[0]["group"]["effective"] < 3
        assert all(answer["q_value"] <= 0.05 for answer in undecided)


class CountingEmbedder(StandInEmbedder):
    """Counts the units that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded += len(texts)
        return super().embed(texts)


@pytest.mark.parametrize(("version", "again"), [(3, False), (2, True)])
def test_documents_are_not_embedded_again_where_the_first_pass_saw_the_same_units(
    tmp_path: Path, version: int, again: bool
) -> None:
    """Keys of version 2 merge sentences, which the first pass leaves out; a resumed audit has kept nothing."""
    key = soft_key(3, 32, version)
    texts = [" ".join(written(key, seed=seed)) for seed in (1, 2, 3)] + [" ".join(unmarked(12, n)) for n in range(8)]
    source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
    source.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    summaries = []
    for _ in range(2):
        embedder = CountingEmbedder()
        settings = DetectionSettings(draws=400, stop_after=20)
        auditor = Auditor([key], settings, lambda _, embedder=embedder: embedder, first_pass=FirstPass(0.1))  # type: ignore[misc]
        tests: list[int] = []

        class Steps:
            def step(self, skipped: int, answered: int) -> None:
                tests.append(embedder.embedded)  # noqa: B023

        summary = audit_documents(JsonlDocuments(source), auditor, output, fpr=0.01, fdr=0.05, progress=Steps())
        summaries.append((summary["shared_text"], output.read_bytes(), embedder.embedded > tests[-1]))
    assert summaries[0][0]["checked"] == len(texts)
    assert summaries[0][:2] == summaries[1][:2]
    assert [embedded_again for *_, embedded_again in summaries] == [again, True]


def _with_signals(text: str) -> tuple[PreparedText, list[Signals]]:
    key, settings = soft_key(1), DetectionSettings()
    prepared = prepare(text, key, EMBEDDER, settings)
    versions = [version.units for version in prepared.versions]
    return prepared, [signals_of(units, project(EMBEDDER.embed(units.texts), key), key, settings) for units in versions]


def test_the_signals_of_the_smallest_p_values_are_kept() -> None:
    kept = KeptSignals(2)
    texts = [" ".join(unmarked(5, seed)) for seed in range(4)]
    for text, p_value in zip(texts, (0.5, 0.1, 0.9, 0.2), strict=True):
        kept.add(*_with_signals(text), p_value)
    assert [kept.get(text, "normalised") is not None for text in texts] == [False, True, False, True]
    prepared, [signals] = _with_signals(texts[1])
    assert signals.tables is not None  # large, and not kept
    again = KeptSignals(1)
    again.add(prepared, [signals], 0.1)
    copy = again.get(texts[1], "normalised")
    assert copy is not None
    assert "tables" not in vars(copy)
    np.testing.assert_array_equal(copy.tables, signals.tables)


def test_the_signals_of_long_texts_and_of_texts_without_full_stops_are_not_kept() -> None:
    kept = KeptSignals(5)
    run_together = " ".join(sentence.rstrip(".!?") for sentence in unmarked(24, 1))
    for text in (" ".join(unmarked(70, 1)), run_together):
        kept.add(*_with_signals(text), 0.1)
        assert kept.get(text, "normalised") is None
