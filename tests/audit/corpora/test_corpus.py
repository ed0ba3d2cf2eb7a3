"""Audits of a corpus in one process: equal to the batch audit, resumed by block, many keys, refined p-values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import EMBEDDER, SETTINGS, key, marked, plain_texts, rows, task, write
from scipy import stats

from alimark.audit.auditor import Auditor, FirstPass
from alimark.audit.corpora import corpus
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.audit.corpora.pool import Ended, LocalPool
from alimark.audit.corpora.summary import q_values_of
from alimark.core.detection.stats.p_values import benjamini_hochberg, q_values
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder
from commands import Run

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [marked(key()), *plain_texts(30), marked(key(), 2), ""]


@pytest.mark.usefixtures("stand_in_models")
def test_the_answers_are_those_of_the_batch_audit(tmp_path: Path, texts: list[str], command: Run) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    key().save(tmp_path / "key.json")
    words = ("audit", "-k", tmp_path / "key.json", "--input", source, "--draws", 999)
    assert command(*words, "--output", tmp_path / "found.jsonl").status == 0
    done = command(*words, "--output", tmp_path / "found", "--by", "site", "--block-size", 4, "--json")
    assert done.status == 0, done.err
    lines = {record["id"]: record for record in map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())}
    answers = rows(tmp_path / "found")
    assert len(answers) == len(lines) == len(texts)
    for row in answers:
        line = lines[row["id"]]
        for name in (
            "score",
            "z",
            "p_value",
            "draws",
            "sentence_count",
            "near_flips",
            "key_id",
            "error",
            "verdict",
            "found",
        ):
            assert row[name] == line.get(name) or row["failed"], name
        assert row["failed"] == line.get("failed", False)
    summary = json.loads(done.out)
    assert (summary["found_at_fdr"], summary["failed"], summary["documents_now"]) == (2, 1, len(texts))
    assert summary["found_by_key"] == {key().id: 2}
    assert sum(record["documents"] for record in summary["found_by_source"].values()) == len(texts)
    again = json.loads(command(*words, "--output", tmp_path / "found", "--by", "site", "--block-size", 4, "--json").out)
    assert again["documents_now"] == 0
    assert {name: again[name] for name in ("documents", "found_at_fdr")} == {"documents": len(texts), "found_at_fdr": 2}
    other = command(*words, "--output", tmp_path / "found", "--block-size", 4)
    assert (other.status, "other settings (by)" in other.err) == (2, True)
    refused = command(*words, "--output", tmp_path / "other", "--workers", 2)
    assert (refused.status, "--engine ray" in refused.err) == (2, True)


class Stops:
    """A progress that ends the run, as Ctrl-C does, after some blocks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def planned(self, blocks: int, done: int) -> None:
        self.done = done

    def step(self, documents: int) -> None: ...
    def fault(self, message: str) -> None: ...

    def block(self) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_and_comes_to_the_same(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    whole, _ = corpus.run([str(source)], task(source, tmp_path / "whole"), block_bytes=2000)
    asked = task(source, tmp_path / "parts")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            corpus.run([str(source)], asked, block_bytes=2000, progress=Stops(2))
    (tmp_path / "parts" / "results" / ".part-x.parquet.123.part").write_bytes(b"PAR1 half")
    last = Stops(99)
    parts, outcome = corpus.run([str(source)], asked, block_bytes=2000, progress=last)
    assert last.done == 6
    assert parts == whole
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert outcome.report.documents < len(texts)
    assert not list((tmp_path / "parts" / "results").glob(".*"))


def test_inputs_and_folders_that_do_not_belong(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts[:3])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    with pytest.raises(AlimarkError, match="holds other files"):
        corpus.run([str(source)], task(source, tmp_path / "mine"))
    asked = task(source, tmp_path / "out")
    corpus.run([str(source)], asked)
    with pytest.raises(AlimarkError, match=r"other settings \(keys\)"):
        corpus.run([str(source)], task(source, tmp_path / "out", key(1)))
    more = write(tmp_path / "more.jsonl", texts[3:5])
    both, _ = corpus.run([str(source), str(more)], asked)
    assert both["documents"] == 5
    write(source, texts[:4])
    with pytest.raises(AlimarkError, match="has changed"):
        corpus.run([str(source)], asked)
    with corpus._locked(tmp_path / "out"), pytest.raises(AlimarkError, match="another run"):
        corpus.run([str(more)], asked)


def test_results_on_another_file_system(tmp_path: Path, texts: list[str]) -> None:
    fsspec = pytest.importorskip("fsspec")
    source = write(tmp_path / "docs.jsonl", texts[:6])
    asked = replace(task(source, tmp_path), output="memory://alimark-results")
    first, outcome = corpus.run([str(source)], asked, block_bytes=2000)
    again, none = corpus.run([str(source)], asked, block_bytes=2000)
    assert (first, outcome.report.documents, none.report.documents) == (again, 6, 0)
    there = fsspec.filesystem("memory").find("/alimark-results")
    assert {Path(path).name for path in there} >= {"manifest.json", "summary.json"}
    assert not [path for path in there if path.endswith(".part")]


def test_a_ring_of_keys(tmp_path: Path, texts: list[str]) -> None:
    """Hard, soft and another size in one run: every marked text under its own key, p-values paid for by the number of keys."""
    ring = [key(0), key(1), key(2, block_size=4), key(3, decision="soft", block_size=16)]
    source = write(tmp_path / "docs.jsonl", [*(marked(member) for member in ring), *texts[1:5]])
    summary, _ = corpus.run([str(source)], task(source, tmp_path / "out", *ring))
    best = rows(tmp_path / "out")
    assert [row["key_id"] for row in best[:4]] == [member.id for member in ring]
    assert {row["keys_tried"] for row in best} == {4}
    assert summary["found_by_key"] == {member.id: 1 for member in ring}
    assert best[0]["p_value"] == pytest.approx(4 / (best[0]["draws"] + 1))


def test_payloads_are_reported(tmp_path: Path, texts: list[str]) -> None:
    carrying = key(5, decision="soft", payload_bits=8)
    source = write(tmp_path / "docs.jsonl", [marked(carrying.carrying(77), sentences=16), texts[1]])
    corpus.run([str(source)], task(source, tmp_path / "out", carrying))
    first, second = rows(tmp_path / "out")
    assert (first["payload"]["value"], second["payload"]) == (77, None)
    assert first["payload"]["confidence"] > 0.9


def test_finer_p_values_where_they_decide(tmp_path: Path, texts: list[str]) -> None:
    """One marked among 31: 20 random keys cannot tell at a rate of 5%, and only the documents at the floor are asked again."""
    coarse = type(SETTINGS)(draws=20, stop_after=10)
    source = write(tmp_path / "docs.jsonl", texts[:31])
    summary, outcome = corpus.run([str(source)], task(source, tmp_path / "out", settings=coarse), fdr=0.05)
    best = rows(tmp_path / "out")
    floor = [row for row in best if row["draws"] > 20]
    assert 1 <= outcome.deepened <= 5
    assert best[0]["p_value"] <= 0.05 / 31
    assert summary["found_at_fdr"] == 1
    assert len(floor) <= outcome.deepened
    assert outcome.report.documents == 31


def test_p_values_that_are_asked_again_stay_valid() -> None:
    """Drawn as a run does it, for texts that carry nothing: no value comes up more often than it may."""
    rng = np.random.default_rng(1)
    u = rng.random(200_000)
    few = rng.binomial(19, u)
    more = few + rng.binomial(980, u)
    p = np.where(few == 0, (1 + more) / 1000, (1 + few) / 20)
    for level in (0.001, 0.005, 0.02, 0.05, 0.1, 0.5):
        assert stats.binomtest(int((p <= level).sum()), len(p), level, alternative="greater").pvalue > 1e-4


def test_q_values_are_benjamini_and_hochbergs() -> None:
    from collections import Counter

    rng = np.random.default_rng(2)
    for _ in range(50):
        p = np.round(np.concatenate([rng.random(80), rng.random(rng.integers(0, 20)) * 0.01]), 3)
        found = [q_values_of(Counter(p.tolist()))[value] <= 0.05 for value in p]
        assert found == benjamini_hochberg(p.tolist(), 0.05)[0].tolist() == (q_values(p.tolist()) <= 0.05).tolist()


def test_a_first_pass(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    first = FirstPass(0.1, 99)
    summary, outcome = corpus.run([str(source)], task(source, tmp_path / "out", first_pass=first))
    assert summary["found_at_fdr"] == 2
    assert outcome.report.tested["first"] == len(texts)
    assert 2 <= outcome.report.tested["full"] < len(texts) / 2
    full = [row for row in rows(tmp_path / "out") if row["full"]]
    assert len(full) == outcome.report.tested["full"] == summary["tested_in_full"]
    corpus.run([str(source)], task(source, tmp_path / "whole"))
    exact = {row["id"]: row["p_value"] for row in rows(tmp_path / "whole")}
    assert all(row["p_value"] == exact[row["id"]] for row in full)
    with pytest.raises(AlimarkError, match="between 0 and 1"):
        FirstPass(0.0)


def test_boilerplate_is_embedded_once() -> None:
    class Counting(StandInEmbedder):
        asked = 0

        def embed(self, texts: Any) -> Any:
            self.asked += len(texts)
            return super().embed(texts)

    inner = Counting()
    kept = RememberingEmbedder(inner, 1)
    some = plain_texts(40)
    np.testing.assert_array_equal(kept.embed(some + some[:5]), EMBEDDER.embed(some + some[:5]))
    np.testing.assert_array_equal(kept.embed(some[::-1]), EMBEDDER.embed(some[::-1]))
    assert (inner.asked, kept.counts["asked"], kept.counts["embedded"]) == (40, 85, 40)
    most = (1 << 20) // (4 * inner.dimension)
    many = [f"Text {i}." for i in range(most + 10)]
    kept.embed(many)
    assert len(kept._kept) == most
    nothing = RememberingEmbedder(Counting(), 0)
    np.testing.assert_array_equal(nothing.embed(some[:3]), EMBEDDER.embed(some[:3]))
    assert not nothing._kept


def test_an_unexpected_error_is_one_documents_own() -> None:
    class Trap(StandInEmbedder):
        def embed(self, texts: Any) -> Any:
            if any("TRAP" in text for text in texts):
                raise ZeroDivisionError("nobody thought of this")
            return super().embed(texts)

    auditor = Auditor([key()], SETTINGS, lambda _: Trap())
    answers = auditor.answer([marked(key()), "It is a TRAP.", *plain_texts(2)])
    assert [isinstance(answer, AlimarkError) for answer in answers] == [False, True, False, False]
    assert "nobody thought of this" in str(answers[1])
    with pytest.raises(AlimarkError, match="20 documents in a row"):
        auditor.answer(["It is a TRAP."] * 20)


def test_the_pool_of_one_process() -> None:
    class Worker:
        def work(self, job: int) -> Any:
            yield from range(job)

    pool: LocalPool[int] = LocalPool(lambda **_: Worker())
    for job in (2, 0):
        pool.give(job)
    assert list(pool.run()) == [(2, 0), (2, 1), (2, Ended()), (0, Ended())]


def test_half_a_surrogate_pair_does_not_end_a_run(tmp_path: Path) -> None:
    source, texts = tmp_path / "docs.jsonl", plain_texts(3)
    names = ["\ud800", "\ud801", "sound"]
    pairs = zip(names, texts, strict=True)
    lines = [json.dumps({"id": name, "text": f"{text} \ud800", "site": name}) for name, text in pairs]
    source.write_text("\n".join(lines) + "\n")
    corpus.run([str(source)], task(source, tmp_path / "found", by="site"))
    assert [row["id"] for row in rows(tmp_path / "found")] == ["\\ud800", "\\ud801", "sound"]
    assert not any(row["failed"] for row in rows(tmp_path / "found"))
