"""Audits of a corpus in one process: equal to the batch audit, resumed by block, many keys, refined p-values."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import EMBEDDER, SETTINGS, key, marked, plain_texts, rows, task, write
from scipy import stats

from alimark.audit import files, sinks, worker
from alimark.audit.auditor import Auditor, FirstPass
from alimark.audit.files import find
from alimark.audit.pool import LocalPool, WorkEnded
from alimark.audit.run import AuditProgress, run
from alimark.audit.sinks import ParquetSink
from alimark.audit.summary import q_values_of
from alimark.audit.worker import FIRST_DRAWS, STOP_AFTER, Audit, RememberingEmbedder
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder
from commands import Run
from watched import watched

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [marked(key()), *plain_texts(30), marked(key(), 2), ""]


@pytest.mark.usefixtures("stand_in_models")
def test_the_answers_are_those_of_the_batch_audit(tmp_path: Path, texts: list[str], command: Run) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    key().save(tmp_path / "key.json")
    words = ("audit", "-k", tmp_path / "key.json", source, "--draws", 999, "--allow-failed")
    assert command(*words, "--output", tmp_path / "found.jsonl").status == 0
    done = command(*words, "--output", tmp_path / "found", "--by", "site", "--block-size", 4, "--json")
    assert done.status == 0, done.err
    lines = {record["id"]: record for record in rows(tmp_path / "found.jsonl")}
    answers = rows(tmp_path / "found")
    assert len(answers) == len(lines) == len(texts)
    for row in answers:
        line = lines[row["id"]]
        assert {name: value for name, value in row.items() if value is not None} == {
            name: value for name, value in line.items() if name != "input"
        } | {"source": line["input"]["site"]}
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


class Stops(AuditProgress):
    """A progress that ends the run, as Ctrl-C does, after so much of the work."""

    def __init__(self, after: float) -> None:
        self.left, self.documents = after, 0

    def planned(self, works: int, done: int) -> None:
        self.done = done

    def step(self, documents: int, share: float) -> None:
        self.documents += documents
        self.left -= share
        if self.left <= 0:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_and_comes_to_the_same(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    whole = run(task(source, tmp_path / "whole", block_bytes=2000))
    asked = task(source, tmp_path / "parts", block_bytes=2000)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(asked, progress=Stops(2))
    (tmp_path / "parts" / "results" / ".part-x.parquet.123.part").write_bytes(b"PAR1 half")
    last = Stops(99)
    parts = run(asked, progress=last)
    assert last.done == 6
    assert parts.summary == whole.summary
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert parts.report.documents == last.documents < len(texts)
    assert not list((tmp_path / "parts" / "results").glob(".*"))


def test_a_stopped_run_into_a_jsonl_file_goes_on(tmp_path: Path, texts: list[str]) -> None:
    source, output = write(tmp_path / "docs.jsonl", texts * 6), tmp_path / "found.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(task(source, output), progress=Stops(0.2))
    done = len(rows(output))
    assert 0 < done < 6 * len(texts)
    outcome = run(task(source, output))
    assert (outcome.report.skipped, outcome.report.documents) == (done, 6 * len(texts) - done)
    run(task(source, tmp_path / "whole.jsonl"))
    assert rows(output) == rows(tmp_path / "whole.jsonl")


def test_inputs_and_folders_that_do_not_belong(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts[:3])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    with pytest.raises(AlimarkError, match="holds other files"):
        run(task(source, tmp_path / "mine"))
    asked = task(source, tmp_path / "out")
    run(asked)
    with pytest.raises(AlimarkError, match=r"other settings \(keys\)"):
        run(task(source, tmp_path / "out", key(1)))
    more = write(tmp_path / "more.jsonl", texts[3:5])
    assert run(replace(asked, inputs=(str(source), str(more)))).summary["documents"] == 5
    write(source, texts[:4])
    with pytest.raises(AlimarkError, match="has changed"):
        run(asked)
    other = replace(asked, inputs=(str(more),))
    locked = ParquetSink(other)
    locked.begin(other, find(other.inputs)[1], print)
    with pytest.raises(AlimarkError, match="another run"):
        run(other)
    locked.close()


def test_another_file_system_of_pyarrow(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of S3: documents of all kinds are read, and answers written, as on this machine's own."""
    import pyarrow.fs
    import pyarrow.parquet
    from fsspec.implementations.arrow import ArrowFSWrapper

    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in" / "docs.jsonl", texts[:4])
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
    with pyarrow.CompressedOutputStream(str(tmp_path / "in" / "b.jsonl.zst"), "zstd") as file:
        file.write(source.read_bytes())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[4:8]}), tmp_path / "in" / "c.parquet")
    (tmp_path / "in" / "d.txt").write_text(texts[0])
    here = run(task(tmp_path / "in", tmp_path / "here"))
    for module in (files, sinks, worker):
        there = ArrowFSWrapper(pyarrow.fs.LocalFileSystem())
        monkeypatch.setattr(module, "file_system", lambda location, there=there: (there, location))
    for now in (17, 0):
        outcome = run(task(tmp_path / "in", tmp_path / "there"))
        assert (outcome.summary, outcome.report.documents) == (here.summary, now)
        assert rows(tmp_path / "there") == rows(tmp_path / "here")


def test_results_on_another_file_system(tmp_path: Path, texts: list[str]) -> None:
    import fsspec

    source = write(tmp_path / "docs.jsonl", texts[:6])
    asked = task(source, "memory://alimark-results", block_bytes=2000)
    first, again = run(asked), run(asked)
    assert (first.summary, first.report.documents, again.report.documents) == (again.summary, 6, 0)
    there = fsspec.filesystem("memory").find("/alimark-results")
    assert {Path(path).name for path in there} >= {"manifest.json", "summary.json"}
    assert not [path for path in there if path.endswith(".part")]


def test_a_ring_of_keys(tmp_path: Path, texts: list[str]) -> None:
    """Hard, soft and another size in one run: every marked text under its own key, p-values paid for by the number of keys."""
    ring = [key(0), key(1), key(2, block_size=4), key(3, decision="soft", block_size=16)]
    source = write(tmp_path / "docs.jsonl", [*(marked(member) for member in ring), *texts[1:5]])
    summary = run(task(source, tmp_path / "out", *ring)).summary
    best = rows(tmp_path / "out")
    assert [row["key_id"] for row in best[:4]] == [member.id for member in ring]
    assert {row["keys_tried"] for row in best} == {4}
    assert summary["found_by_key"] == {member.id: 1 for member in ring}
    assert best[0]["p_value"] == pytest.approx(4 / (best[0]["draws"] + 1))


def test_payloads_are_reported(tmp_path: Path, texts: list[str]) -> None:
    carrying = key(5, decision="soft", payload_bits=8)
    source = write(tmp_path / "docs.jsonl", [marked(carrying.carrying(77), sentences=16), texts[1]])
    run(task(source, tmp_path / "out", carrying))
    first, second = rows(tmp_path / "out")
    assert (first["payload"]["value"], second["payload"]) == (77, None)
    assert first["payload"]["confidence"] > 0.9


@pytest.mark.parametrize("output", ["out", "out.jsonl"])
def test_finer_p_values_where_they_decide(tmp_path: Path, texts: list[str], output: str) -> None:
    """One marked among 31: 20 random keys cannot tell at a rate of 5%, and only the documents at the floor are asked again."""
    coarse = type(SETTINGS)(draws=20, stop_after=10)
    source = write(tmp_path / "docs.jsonl", texts[:31])
    outcome = run(task(source, tmp_path / output, settings=coarse))
    summary, best = outcome.summary, rows(tmp_path / output)
    floor = [row for row in best if row["draws"] > 20]
    assert 1 <= outcome.deepened <= 5
    assert best[0]["p_value"] <= 0.05 / 31
    assert summary["found_at_fdr"] == 1
    assert len(floor) <= outcome.deepened
    assert outcome.report.documents == 31


def test_q_values_are_benjamini_and_hochbergs() -> None:
    from collections import Counter

    rng = np.random.default_rng(2)
    for _ in range(50):
        p = np.round(np.concatenate([rng.random(80), rng.random(rng.integers(0, 20)) * 0.01]), 3)
        q = q_values_of(Counter(p.tolist()))
        np.testing.assert_allclose([q[value] for value in p], stats.false_discovery_control(p, method="bh"))


def test_a_first_pass(tmp_path: Path, texts: list[str]) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    first = FirstPass(0.1, 99)
    settings = replace(SETTINGS, draws=4999)  # the texts share words, so that p-values of 1 in 500 are no proof
    outcome = run(task(source, tmp_path / "out", first_pass=first, settings=settings))
    summary = outcome.summary
    assert summary["found_at_fdr"] == 2
    assert outcome.report.tested["first"] == len(texts)
    assert 2 <= outcome.report.tested["full"] < len(texts) / 2
    full = [row for row in rows(tmp_path / "out") if row["full"]]
    assert len(full) == outcome.report.tested["full"] == summary["tested_in_full"]
    run(task(source, tmp_path / "whole", settings=settings))
    exact = {row["id"]: row["p_value"] for row in rows(tmp_path / "whole")}
    assert all(row["p_value"] == exact[row["id"]] for row in full)
    with pytest.raises(AlimarkError, match="between 0 and 1"):
        FirstPass(0.0)


def test_boilerplate_is_embedded_once() -> None:
    asked: list[str] = []
    inner = watched(StandInEmbedder(), asked.extend, "embed")
    kept = RememberingEmbedder(inner, 1)
    some = plain_texts(40)
    np.testing.assert_array_equal(kept.embed(some + some[:5]), EMBEDDER.embed(some + some[:5]))
    np.testing.assert_array_equal(kept.embed(some[::-1]), EMBEDDER.embed(some[::-1]))
    assert (len(asked), kept.counts["asked"], kept.counts["embedded"]) == (40, 85, 40)
    most = (1 << 20) // (4 * inner.dimension)
    many = [f"Text {i}." for i in range(most + 10)]
    kept.embed(many)
    assert len(kept._kept) == most
    nothing = RememberingEmbedder(StandInEmbedder(), 0)
    np.testing.assert_array_equal(nothing.embed(some[:3]), EMBEDDER.embed(some[:3]))
    assert not nothing._kept


def test_an_unexpected_error_is_one_documents_own() -> None:
    def trap(texts: Any) -> None:
        if any("TRAP" in text for text in texts):
            raise ZeroDivisionError("nobody thought of this")

    auditor = Auditor([key()], SETTINGS, lambda _: watched(StandInEmbedder(), trap, "embed"))
    answers = auditor.answer([marked(key()), "It is a TRAP.", *plain_texts(2)])
    assert [isinstance(answer, AlimarkError) for answer in answers] == [False, True, False, False]
    assert "nobody thought of this" in str(answers[1])
    with pytest.raises(AlimarkError, match="20 documents in a row"):
        auditor.answer(["It is a TRAP."] * 20)


def test_the_pool_of_one_process() -> None:
    pool: LocalPool[int] = LocalPool(lambda job: iter(range(job)))
    for job in (2, 0):
        pool.give(job)
    assert list(pool.run()) == [(2, 0), (2, 1), (2, WorkEnded()), (0, WorkEnded())]


def test_half_a_surrogate_pair_does_not_end_a_run(tmp_path: Path) -> None:
    source, texts = tmp_path / "docs.jsonl", plain_texts(3)
    names = ["\ud800", "\ud801", "sound"]
    pairs = zip(names, texts, strict=True)
    lines = [json.dumps({"id": name, "text": f"{text} \ud800", "site": name}) for name, text in pairs]
    source.write_text("\n".join(lines) + "\n")
    run(task(source, tmp_path / "found", by="site"))
    assert [row["id"] for row in rows(tmp_path / "found")] == ["\\ud800", "\\ud801", "sound"]
    assert not any(row["failed"] for row in rows(tmp_path / "found"))


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_lies_between_0_and_1(rate: float) -> None:
    with pytest.raises(AlimarkError, match="false discovery rate"):
        task("docs.jsonl", "out", fdr=rate)


def test_an_audit_draws_many_random_keys_and_stops_early() -> None:
    asked = Audit.of([key()], ["docs.jsonl"], "out", replace(SETTINGS, draws=1000, stop_after=None))
    assert (asked.settings.draws, asked.settings.stop_after) == (FIRST_DRAWS, STOP_AFTER)
    asked = Audit.of([key()], ["docs.jsonl"], "out", SETTINGS, draws=600)
    assert (asked.settings.draws, asked.settings.stop_after) == (600, 10)
