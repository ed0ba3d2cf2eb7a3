"""Runs of recipes: all stages, resuming after a kill, failed texts, stable ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alimark.audit.replicas import Share, Writer
from alimark.core.frozen.parameters import DEFAULT_RUN
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key, Sealed
from alimark.core.schemes.alimark import AliMark
from alimark.errors import AlimarkError, LLMError
from alimark.lab.attacks import Attacked
from alimark.lab.bench.data import DataItem, DataSet
from alimark.lab.bench.evaluate import all_results, evaluate
from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.models import Models
from alimark.lab.bench.recipe import attacks, variants
from alimark.lab.bench.recipe_files import parse, to_toml
from alimark.lab.bench.report import write
from alimark.lab.bench.results import save
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from alimark.testing import StandInEmbedder, StandInLLM
from small_recipes import STAND_INS, recipe, records, rewrite_records, run
from watched import watched


def without_time(results: Any) -> Any:
    return {name: value for name, value in results.items() if name not in ("made", "runtime", "cost")}


def test_all_embedders_are_on_the_device_that_the_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str | None] = []

    def load(name: str, *, device: str | None = None, threads: int | None = None) -> StandInEmbedder:
        devices.append(device)
        return StandInEmbedder()

    monkeypatch.setattr("alimark.lab.bench.models.load_embedder", load)
    monkeypatch.setattr("alimark.audit.replicas.load_embedder", load)
    bench = run(tmp_path, recipe(embedder_device="cuda"))
    evaluate(bench, "stand-ins")
    assert set(devices) == {"cuda"}
    key = Key.generate(embedder="stand-in")
    share = Share(((0, "A day.", 1, Sealed(key)),), Sealed(key), GenerationSettings(1, candidates=2), "cuda:1")
    assert [number for number, _ in Writer("stand-in", {}, threads=1, guarded=False).work(share)] == [0]
    assert devices[-1] == "cuda:1"


def test_all_stages_and_what_they_amount_to(tmp_path: Path) -> None:
    bench = run(tmp_path)
    stages = records(tmp_path)
    assert {stage: len(records) for stage, records in stages.items()} == {
        "generate": 4, "attack": 12, "detect": 4 + 12 + 110,
    }  # fmt: skip
    results: Any = evaluate(bench, "stand-ins")
    assert [row["attack"] for row in results["rows"]] == ["none", "delete 0.25", "delete 0.5", "insert 0.5"]
    clean, deleted = results["rows"][0], results["rows"][2]
    assert clean["texts"] == 4
    assert clean["negatives"] == 110
    assert clean["auroc"]["value"] > 0.8
    assert clean["tpr"]["0.01"] is not None
    assert clean["tpr"]["0.005"] is None  # too few human texts
    assert set(deleted["deltas"]) == {0.5}
    assert 0 < deleted["cosine"]["value"] < 1
    assert results["human"][0]["texts"] == 110
    assert len(results["examples"]) == 3
    assert results["data"][0]["set"] == "manual"
    json.dumps(results, allow_nan=False)


def test_detection_is_timed_over_several_texts_of_each_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def detect_batch(self: AliMark, texts: list[str], *args: object, **options: object) -> None:
        timed.extend(texts)

    bench = run(tmp_path, recipe(runtime={"sentences": [4, 8], "texts": 3, "repeats": 2}))
    monkeypatch.setattr(AliMark, "detect_batch", detect_batch)
    rows = evaluate(bench, "stand-ins")["runtime"]
    assert [(row["sentences"], row["texts"]) for row in rows] == [(4, 3), (8, 3)]
    assert all(row["seconds"] > 0 for row in rows)
    cutter = splitter()
    lengths = [len(cutter.units(text)) for text in timed]
    assert lengths == [4] * 7 + [8] * 7  # the first detection of each length also compiles
    assert len(set(timed)) == 6


def test_texts_are_ranked_by_the_statistic_of_the_recipe(tmp_path: Path) -> None:
    """z is the paper's; the score is standardised for each text, which ranks texts in another order."""
    run(tmp_path)
    detections = records(tmp_path)["detect"]
    results = {name: evaluate(run(tmp_path, recipe(statistic=name)), name) for name in ("score", "z", "p")}
    assert len(records(tmp_path)["detect"]) == len(detections)  # nothing is scored again
    for name, result in results.items():
        assert {row["statistic"] for row in [*result["rows"], *result["human"]]} == {name}
        scores = [score for row in [*result["rows"], *result["human"]] for score in row["scores"]]
        field = {"p": "p_value"}.get(name, name)
        values = [float(record[field]) for record in detections]
        assert sorted(scores) == pytest.approx(sorted(-np.log10(values) if name == "p" else values))
    assert results["z"]["rows"][0]["scores"] != results["score"]["rows"][0]["scores"]
    assert results["z"]["examples"] != results["score"]["examples"]
    assert results["z"]["rows"][0]["p_values"] == results["score"]["rows"][0]["p_values"]


def test_equal_p_values_rank_equal(tmp_path: Path) -> None:
    """With 99 random keys many texts share the least p-value: a threshold takes all of them or none."""
    results: Any = evaluate(run(tmp_path, recipe(statistic="p")), "p")
    row, human = results["rows"][0], results["human"][0]
    assert max(row["scores"]) == 2.0  # p = 1 / 100
    tied = np.mean(np.array(human["scores"]) == 2.0)
    expected = 0.0 if tied > 0.01 else np.mean(np.array(row["scores"]) > sorted(human["scores"])[-2])
    assert row["tpr"]["0.01"]["value"] == expected
    pairs = np.sign(np.subtract.outer(row["scores"], human["scores"]))
    assert row["auroc"]["value"] == pytest.approx(float((pairs + 1).mean() / 2))


def test_one_text_without_a_z_has_all_texts_of_its_method_ranked_by_the_score(tmp_path: Path) -> None:
    """A column never ranks some texts by z and others by the score, whichever of them has no z."""
    bench = run(tmp_path)
    marked = evaluate(bench, "marked")["rows"][0]["scores"]
    rewrite_records(tmp_path, "detect", lambda record: record | ({"z": None} if record["score"] == marked[0] else {}))
    results = evaluate(run(tmp_path, recipe(statistic="z")), "mixed")
    assert {row["statistic"] for row in [*results["rows"], *results["human"]]} == {"score"}
    assert sorted(results["rows"][0]["scores"]) == sorted(marked)


def test_failed_attacks_are_counted_and_as_misses_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alimark.lab.attacks.structure import Delete

    def rewritten(self: Delete, targets: Any) -> Any:
        for place, target in enumerate(targets):
            text, error = ("", "no") if place == 3 else (target.text, "")
            yield place, Attacked(text, error, 1 + place, ("short",) * place, left=place)

    monkeypatch.setattr(Delete, "run", rewritten)
    bench = run(tmp_path, recipe(attack=[{"name": "delete", "rate": 0.5}]))
    results: Any = evaluate(bench, "failures")
    clean, row = results["rows"]
    assert (row["texts"], row["failed"], row["retried"], row["kept"]) == (3, 1, 3, 6)
    assert (clean["failed"], clean["retried"], clean["with_failures"]) == (0, 0, None)
    every = row["with_failures"]
    assert every["auroc"]["value"] == pytest.approx(0.75 * row["auroc"]["value"])
    assert every["tpr"]["0.05"]["value"] == pytest.approx(0.75 * row["tpr"]["0.05"]["value"])
    assert every["tpr"]["0.05"]["count"] == 4
    assert every["tpr_nominal"]["0.05"]["value"] == pytest.approx(0.75 * row["tpr_nominal"]["0.05"]["value"])


def test_nothing_runs_twice_and_recipes_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    before = records(tmp_path)
    monkeypatch.setattr(Models, "llm", lambda *_: pytest.fail("nothing is to be written"))
    run(tmp_path)
    assert records(tmp_path) == before
    run(tmp_path, recipe(detection=[{"options": {"draws": 99, "restructure": "none"}}]))
    after = records(tmp_path)
    assert after["generate"] == before["generate"]
    assert after["attack"] == before["attack"]
    assert len(after["detect"]) == 2 * len(before["detect"])


def test_a_resumed_run_gives_what_one_that_never_stopped_gives(tmp_path: Path) -> None:
    whole = evaluate(run(tmp_path / "whole"), "x")
    for stage, kept in (("generate", 1), ("attack", 3), ("detect", 10)):
        run(tmp_path / "cut")
        path = tmp_path / "cut" / "records" / f"{stage}.jsonl"
        content = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(content[:kept]) + content[kept][:20])  # killed while it wrote
        bench = run(tmp_path / "cut")
        assert records(tmp_path / "cut") == records(tmp_path / "whole")
        assert without_time(evaluate(bench, "x")) == without_time(whole)


def test_one_bad_text_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Models, "llm", lambda *_: StandInLLM(context_characters=150))  # some prompts leave no room
    bench = run(tmp_path, recipe(data=STAND_INS["data"] | {"texts": 12}))
    empty = [record for record in records(tmp_path)["generate"] if not record.get("text")]
    assert 0 < len(empty) < 12
    [clean, *_] = evaluate(bench, "x")["rows"]
    assert clean["texts"] + clean["failed"] == 12
    assert clean["failed"] == len(empty)


def test_a_lost_model_ends_the_run_and_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = StandInLLM()

    def vanish(_: object) -> None:
        if llm.calls >= 3:
            raise LLMError("the server is gone")

    monkeypatch.setattr(Models, "llm", lambda *_: watched(llm, vanish))
    with pytest.raises(LLMError, match="gone"):
        run(tmp_path, recipe(data=STAND_INS["data"] | {"texts": 12}))
    monkeypatch.undo()
    run(tmp_path)
    texts = records(tmp_path)["generate"]
    assert len(texts) >= 4
    assert not any(record.get("failed") for record in texts)


def test_a_grid_and_several_detections(tmp_path: Path) -> None:
    wanted = recipe(
        grid={"watermark.key.block_size": [4, 8]},
        detection=[{"label": "full", "options": {"draws": 19}},
                   {"label": "plain", "options": {"draws": 19, "restructure": "none"}}],
        attack=[{"name": "delete", "rate": 0.25}],
    )  # fmt: skip
    results = evaluate(run(tmp_path, wanted), "x")
    assert [(row["grid"]["block_size"], row["detection"], row["attack"]) for row in results["rows"]] == [
        (size, detection, attack)
        for size in (4, 8)
        for detection in ("full", "plain")
        for attack in ("none", "delete 0.25")
    ]


def test_human_texts_under_several_keys(tmp_path: Path) -> None:
    wanted = recipe(data=STAND_INS["data"] | {"human_texts": 60, "human_keys": 2}, attack=[])
    [human] = evaluate(run(tmp_path, wanted), "x")["human"]
    assert (human["texts"], human["keys"], len(human["scores"])) == (60, 2, 120)


def test_records_of_earlier_releases_are_still_known(tmp_path: Path) -> None:
    """A field that settings gain must not change the ids of texts that do without it."""
    watermark = {"key": {"decision": "hard", "block_size": 8}}
    wanted = parse({"title": "t", "data": {"sets": ["manual"]}, "watermark": [watermark]})
    [variant] = variants(wanted)
    cell = Cell(variant, wanted.watermark[0], DataSet("manual", [DataItem("A prompt.", "Human text.")]))
    bench = Run(wanted, Workspace(tmp_path))
    ids = [bench.generate_job(cell, cell.items[0], marked=marked).id for marked in (True, False)]
    assert ids == ["931bedf68ef7ae657e0de1c7", "863a1a53bbaeec619b2bc6b0"]


def test_a_chain_of_attacks_shares_its_first_step(tmp_path: Path) -> None:
    reorder = {"name": "reorder", "rate": 0.5}
    bench = run(tmp_path, recipe(attack=[reorder | {"then": {"name": "delete", "rate": 0.25}}, reorder]))
    stages = records(tmp_path)
    assert {stage: len(records) for stage, records in stages.items()} == {
        "generate": 4, "attack": 8, "detect": 4 + 8 + 110,
    }  # fmt: skip
    [cell] = bench.cells
    chain, first = attacks(cell.recipe)
    by_id = {record["id"]: record for record in stages["attack"]}
    for item in cell.items:
        last = by_id[bench.attack_job(cell, item, chain).id]
        before = by_id[bench.attack_job(cell, item, first).id]
        assert last["parent_id"] == before["id"]
        assert last["attack"]["name"] == "delete"
        assert len(last["text"]) < len(before["text"])
        assert set(last["text"].split()) <= set(before["text"].split())
    rows = evaluate(bench, "x")["rows"]
    assert [(row["attack"], row["attack_name"], row["rate"]) for row in rows[1:]] == [
        ("reorder 0.5, delete 0.25", "reorder, delete", None), ("reorder 0.5", "reorder", 0.5),
    ]  # fmt: skip
    assert set(rows[1]["deltas"]) == {0.75}


def test_a_chain_whose_first_step_fails_has_failed(tmp_path: Path) -> None:
    chain = [{"name": "delete", "rate": 1.0, "then": {"name": "reorder"}}]
    run(tmp_path, recipe(attack=chain))
    attacked = records(tmp_path)["attack"]
    assert len(attacked) == 8
    assert all(record["failed"] for record in attacked)
    assert sum(record["error"] == "there is no text to attack" for record in attacked) == 4


def test_schemes_learn_from_texts_that_are_not_used(tmp_path: Path) -> None:
    rows = [
        {"label": "k-SemStamp", "scheme": "k-semstamp", "fit": {"regions": 4}, "generate": {"candidates": 8}},
        {"label": "SimMark", "scheme": "simmark", "generate": {"candidates": 8}},
        {"label": "AliMark", "generate": {"candidates": 8}},
    ]
    data = STAND_INS["data"] | {"human_texts": 30}
    wanted = recipe(embedder="stand-in", watermark=rows, data=data, fit={"texts": 40}, attack=[], meaning="")
    bench = run(tmp_path, wanted)
    files = sorted((tmp_path / "fitted").iterdir())
    assert [path.name.rpartition("-")[0] for path in files] == ["k-semstamp", "simmark"]
    assert len(Fitted.load(files[0]).arrays["centres"]) == 4
    used = {text for cell in bench.cells for text in cell.data.human}
    for lesson in bench.lessons.values():
        assert len(lesson.texts) == 40
        assert not used & set(lesson.texts)
    assert [row["method"] for row in evaluate(bench, "x")["rows"]] == ["k-SemStamp", "SimMark", "AliMark"]
    before = records(tmp_path)
    (tmp_path / "fitted").rename(tmp_path / "elsewhere")
    again = run(tmp_path / "other", wanted)
    assert records(tmp_path / "other") == before  # the ids do not depend on the folder
    assert [path.read_bytes() for path in sorted((tmp_path / "other" / "fitted").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "elsewhere").iterdir())
    ]
    assert again.lessons.keys() == bench.lessons.keys()


def test_too_few_texts_to_learn_from_are_said(tmp_path: Path) -> None:
    row = {"scheme": "simmark", "key": {"embedder": "stand-in"}}
    with pytest.raises(AlimarkError, match=r"only \d+ are left"):
        run(tmp_path, recipe(watermark=[row], data=STAND_INS["data"] | {"human_texts": 220}))


def test_attacks_on_human_texts(tmp_path: Path) -> None:
    row = {"label": "human text", "human": True, "key": {"embedder": "stand-in"}}
    bench = run(tmp_path, recipe(watermark=[row], attack=[{"name": "delete", "rate": 0.5}]))
    stages = records(tmp_path)
    assert "generate" not in stages
    assert not any("parent_id" in record for record in stages["attack"])
    results = evaluate(bench, "x")
    assert [(row["attack"], row["texts"], row["deltas"]) for row in results["rows"]] == [
        ("none", 4, []), ("delete 0.5", 4, [0.5] * 4),
    ]  # fmt: skip
    assert results["rows"][1]["cosine"] is not None
    assert results["cost"] == []
    assert bench.is_finished("attack")


def test_an_unfinished_run_has_results(tmp_path: Path) -> None:
    bench = Run(recipe(), Workspace(tmp_path))
    bench.workspace.save_recipe("small", to_toml(bench.recipe))
    assert all_results(bench.workspace) == []
    bench.run_stage("generate")
    [results] = all_results(bench.workspace)
    assert results["title"] == "stand-ins (unfinished)"
    assert results["rows"] == []
    assert results["cost"]
    write(tmp_path / "report", [results])
    bench.run_stage("attack")
    bench.run_stage("detect")
    [results] = all_results(bench.workspace)
    assert len(results["rows"]) == 4
    save(bench.workspace.results("small"), evaluate(bench, "small"))
    [results] = all_results(bench.workspace)
    assert results["title"] == "stand-ins"
    # Another run under the same name begins: the results on disk are those of the run before.
    other = recipe(detection=[{"options": {"draws": 49}}])
    bench.workspace.save_recipe("small", to_toml(other))
    [results] = all_results(bench.workspace)
    assert results["title"] == "stand-ins (unfinished)"
    assert results["rows"] == []


def test_detections_record_the_payloads_of_texts_that_are_found(tmp_path: Path) -> None:
    watermark = {"key": {"embedder": "stand-in", "payload_bits": 4}, "generate": {"candidates": 32}}
    bench = run(tmp_path, recipe(watermark=[watermark], attack=[]))
    [cell], [detection] = bench.cells, bench.recipe.detection
    of_texts = {
        bench.detect_job(cell, detection, bench.generate_job(cell, item).id, item.prompt).id for item in cell.items
    }
    found = {record["id"]: record.get("payload") for record in records(tmp_path)["detect"] if record["p_value"] <= 0.01}
    assert of_texts & set(found)
    assert all(payload and 0 < payload["confidence"] <= 1 for payload in found.values())


def test_texts_of_soft_keys_depend_on_every_parameter(tmp_path: Path) -> None:
    """On the defaults, too, so that a text is written again where another default would choose other sentences."""
    keys: list[dict[str, object]] = [
        {}, {"run": 1}, {"run": [1, 4]}, {"offsets": 4}, {"block_size": 16}, {"decision": "hard"},
    ]  # fmt: skip
    ids = [_ids(tmp_path, **key) for key in keys]
    assert len({text for text, _ in ids}) == len({detection for _, detection in ids}) == len(keys)
    same: list[dict[str, object]] = [
        {"decision": "soft"}, {"run": DEFAULT_RUN}, {"block_size": 32}, {"payload_bits": 0},
    ]  # fmt: skip
    assert {_ids(tmp_path, **key) for key in same} == {ids[0]}


def _ids(folder: Path, **parameters: object) -> tuple[str, str]:
    """The ids of a text and of its detection under keys with these parameters."""
    watermark = {"key": {"embedder": "stand-in", **parameters}, "generate": {"candidates": 8}}
    bench = Run(recipe(watermark=[watermark]), Workspace(folder))
    cell, [detection] = bench.cells[0], bench.recipe.detection
    text_id = bench.generate_job(cell, cell.items[0]).id
    return text_id, bench.detect_job(cell, detection, text_id, cell.items[0].prompt).id
