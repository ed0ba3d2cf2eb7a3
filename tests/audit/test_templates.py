"""Documents that share text: those that chance can explain are undecided, marked and independent documents stay found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import rows, task

from alimark import AliMark
from alimark.audit.run import run
from alimark.audit.templates import BURSTS, effective_count, find_groups, search_groups
from alimark.core.detection.settings import DetectionSettings
from fixed_texts import EMBEDDER, fixed_key, unmarked, written

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


@pytest.mark.parametrize("output", ["found.jsonl", "found"])
def test_an_audit_of_receipts_under_an_unlucky_key(tmp_path: Path, output: str) -> None:
    """The key is the one of 80 under which most of the receipts look marked."""
    template = unmarked(10, 4)
    receipts = [" ".join([f"Receipt {i} for {i * 7} dollars.", *template]) for i in range(30)]
    first = [AliMark(fixed_key(n), embedder=EMBEDDER).detect(receipts[0], draws=200).p_value for n in range(80)]
    mark = AliMark(fixed_key(int(np.argmin(first))), embedder=EMBEDDER)
    marked = [" ".join(written(mark.key, seed=seed)) for seed in (1, 2)]
    source = tmp_path / "docs.jsonl"
    texts = [*receipts, *marked]
    source.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    asked = task(source, tmp_path / output, mark.key, settings=DetectionSettings(draws=2000, stop_after=20))
    for _ in range(2):  # the second time, nothing is answered again and all is as it was
        summary = run(asked).summary
        answers = rows(tmp_path / output)
        assert [answer["id"] for answer in answers if answer["found"]] == ["d30", "d31"]
        undecided = [answer for answer in answers if answer["verdict"] == "undecided"]
        assert len(undecided) == summary["shared_text"]["undecided"] > 15
        group = undecided[0]["group"]
        assert (json.loads(group) if isinstance(group, str) else group)["effective"] < 3
        assert all(answer["q_value"] <= 0.05 for answer in undecided)
