"""benchmarks/paired.py and quality.py with several answers to one prompt, tables of records, and those of elsewhere.py."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import elsewhere
import method_table
import paired
import quality
import share_found
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.recipe_points import attacks
from alimark.lab.bench.recipe_toml import to_toml
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Stage, Workspace
from rewriters import Rewriter
from small_recipes import STAND_INS, recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two watermarks; the first two of four prompts are answered three times."""
    [watermark] = STAND_INS["watermark"]
    wanted = recipe(
        watermark=[watermark | {"label": label, "key": watermark["key"] | {"block_size": size}}
                   for label, size in (("one", 8), ("two", 16))],
        data=STAND_INS["data"] | {"human_texts": 10, "human_keys": 2},
        attack=[{"name": "delete", "rate": 0.5}], meaning="",
        quality={"texts": 3, "answers": 3, "prompts": 2},
    )  # fmt: skip
    bench = Run(wanted, Workspace(tmp_path_factory.mktemp("work")))
    bench.run()
    return bench


def test_further_answers_are_attacked_and_scored_once(run: Run) -> None:
    texts = paired.texts_of(run, 3)
    assert [(text.prompt, text.answer) for text in texts] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0),
    ]  # fmt: skip
    assert len(paired.texts_of(run, 1)) == 4
    assert [text.again for text in paired.texts_of(run, 1, 2)] == [0, 1] * 4
    paired.complete(run, texts)
    scored = paired.scored(run, "one", texts)
    assert scored.human.shape == (10, 2)
    assert set(scored.texts) == {"none", "delete 0.5"}
    assert all(len(scores) == 8 and np.isfinite(scores).all() for scores in scored.texts.values())
    assert len(np.unique(scored.texts["none"])) > 4  # the answers are not all the same
    size = sum(path.stat().st_size for path in (run.workspace.folder / "records").iterdir())
    paired.complete(run, texts)
    assert sum(path.stat().st_size for path in (run.workspace.folder / "records").iterdir()) == size


def test_tables_of_a_run_with_an_attacked_text_that_has_no_z(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts of its method are ranked by the score, and rejected answers have a column."""
    (tmp_path / "recipe.toml").write_text(to_toml(run.recipe), "utf-8")
    shutil.copytree(run.workspace.folder, tmp_path / "work")
    cell, [attack], [detection] = run.cells[0], attacks(run.recipe), run.recipe.detection
    source = run.attack_job(cell, cell.items[0], attack).id
    changes = {source: {"rejected": 2}, run.detect_job(cell, detection, source, cell.items[0].prompt).id: {"z": None}}
    for stage in ("attack", "detect"):
        path = tmp_path / "work" / "records" / f"{stage}.jsonl"
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        path.write_text("".join(json.dumps(line | changes.get(line["id"], {})) + "\n" for line in lines), "utf-8")
    for table in (method_table, share_found):
        words = [f"{table.__name__}.py", str(tmp_path / "recipe.toml"), str(tmp_path / "work"), "--set", "statistic=z"]
        monkeypatch.setattr("sys.argv", words)
        table.main()
        out = capsys.readouterr().out
        assert "score standardised by random keys" in next(line for line in out.splitlines() if "one: " in line)
        assert "the method's own z" in next(line for line in out.splitlines() if "two: " in line)
        if table is method_table:
            assert "| | sound | rejected answers | AUROC |" in out
            assert [line.split("|")[3].strip() for line in out.splitlines() if " of 4 |" in line] == [
                "-",
                "-",
                "25%",
                "0%",
            ]


def test_another_attack_is_one_with_other_chances(run: Run) -> None:
    texts = paired.texts_of(run, 1, 3)
    paired.complete(run, texts)
    [attack] = attacks(run.recipe)
    ids = [paired.source(run, run.cells[0], text, attack).id for text in texts]
    records = run.workspace.records("attack", ids)
    left = [records[identifier]["text"] for identifier in ids]
    assert len(set(ids)) == len(ids)
    assert all(len(set(left[start : start + 3])) > 1 for start in range(0, len(left), 3))


def made_up(label: str, share: float, prompts: list[int], rng: np.random.Generator) -> paired.Scored:
    """Texts of one prompt are all found or all missed."""
    by_prompt = np.full(max(prompts) + 1, -9.0)
    by_prompt[rng.random(len(by_prompt)) < share] = 9.0
    scores = {"none": np.take(by_prompt, prompts)}
    human = rng.normal(size=(100, 2))
    return paired.Scored(
        label, human, np.full(200, 0.5), scores, {"none": (scores["none"] < 0).astype(np.float64)}, np.array(prompts)
    )


@pytest.mark.parametrize("row", [paired.row, paired.nominal_row])
def test_answers_that_say_the_same_narrow_no_interval(row: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "REPEATS", 100)

    def cells(answers: int) -> list[str]:
        prompts = [number for number in range(40) for _ in range(answers)]
        first, second = (made_up(str(share), share, prompts, np.random.default_rng(3)) for share in (0.4, 0.7))
        line: str = row(first, second, "none", np.random.default_rng(1))  # type: ignore[operator]
        return [cell.strip() for cell in line.split("|")]

    once, often = cells(1), cells(5)
    assert (once[2], often[2]) == ("40", "200")
    assert [cell for cell in once if "[" in cell] == [cell for cell in often if "[" in cell]


def test_the_interval_is_that_of_a_plain_bootstrap_over_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "REPEATS", 800)
    rng = np.random.default_rng(5)
    prompts = np.repeat(np.arange(30), rng.integers(1, 6, 30)).tolist()
    first, second = (made_up(str(share), share, prompts, rng) for share in (0.4, 0.7))
    low, high = paired.difference(first, second, "none", 0.01, rng)
    groups = [np.flatnonzero(first.prompts == number) for number in range(30)]
    differences = []
    for _ in range(800):
        places = np.concatenate([groups[number] for number in rng.integers(0, 30, 30)])
        differences.append((second.texts["none"][places] > 0).mean() - (first.texts["none"][places] > 0).mean())
    assert (low, high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))), abs=0.04)


def test_what_is_read_first_is_paired(tmp_path: Path) -> None:
    wanted = recipe(quality={"oracle": "some", "texts": 3, "answers": 2, "prompts": 2})
    run = Run(wanted, Workspace(tmp_path))
    [cell] = run.cells
    places = {answer.reading.id: (answer.place, answer.kind) for answer in quality.answers(run, cell)}
    order = [places.get(job.id) for job in quality.readings(run)]
    label = cell.watermark.label
    assert order[:10] == [
        ((answer, number), kind)
        for answer, number in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
        for kind in (label, "unmarked")
    ]
    assert order[10:] == [None] * 3  # human texts


@pytest.mark.parametrize("decision", ["hard", "soft"])
def test_what_is_scored_elsewhere_is_what_the_bench_scores(
    decision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "recipe.toml"
    wanted.write_text(
        f"""
        title = "scored elsewhere"
        [data]
        sets = ["manual"]
        texts = 3
        sentences = 4
        human_texts = 6
        human_keys = 2
        [llm]
        name = "stand-in"
        [[watermark]]
        key = {{ embedder = "stand-in", block_size = 8, decision = "{decision}" }}
        generate = {{ candidates = 8 }}
        [[attack]]
        name = "delete"
        rate = 0.5
        [[detection]]
        options = {{ draws = 99, restructure = [1, 1] }}
        """
    )
    there = Run(load(wanted, []), Workspace(tmp_path / "there"))
    there.run()
    here = tmp_path / "here"
    Workspace(here)
    for stage in ("generate", "attack"):
        shutil.copy(tmp_path / "there" / "records" / f"{stage}.jsonl", here / "records")

    def say(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["elsewhere.py", *map(str, words)])
        elsewhere.main()

    say("jobs", wanted, here, "--stages", "detect", "--output", tmp_path / "jobs.jsonl")
    say("do", tmp_path / "jobs.jsonl", tmp_path / "made", "--processes", 1)
    say("take", tmp_path / "made", here)
    ids = [job.id for job in there.detect_jobs()]
    assert len(ids) == 3 * 2 + 6 * 2
    local = Workspace(here).records("detect", ids)
    assert local == there.workspace.records("detect", ids)
    assert len(local) == len(ids)
    say("jobs", wanted, here, "--stages", "detect", "--output", tmp_path / "jobs.jsonl")
    assert "{'detect': 0}" in capsys.readouterr().out


def test_texts_written_elsewhere_are_those_of_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of schemes that learn from text, and attacks on human texts."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        """
        title = "written elsewhere"
        embedder = "stand-in"
        data = { sets = ["manual"], texts = 3, sentences = 4, human_texts = 6 }
        fit = { texts = 40 }
        llm = { name = "stand-in" }
        watermark = [
            { label = "soft", generate = { candidates = 4 } },
            { label = "SimMark", scheme = "simmark", generate = { candidates = 4 } },
            { label = "human text", human = true },
        ]
        attack = [{ name = "reorder", rate = 0.5 }]
        """
    )
    whole = Run(load(path, []), Workspace(tmp_path / "whole"))
    whole.fit()
    whole.run_stage("generate")
    whole.run_stage("attack")

    def call(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["elsewhere.py", *map(str, words)])
        elsewhere.main()

    call("jobs", path, tmp_path / "here", "--stages", "generate", "attack", "--output", tmp_path / "jobs.jsonl")
    call("do", tmp_path / "jobs.jsonl", tmp_path / "made")
    call("take", tmp_path / "made", tmp_path / "here")
    jobs: dict[Stage, set[str]] = {
        "generate": {job.id for job in whole.generate_jobs()}, "attack": {job.id for job in whole.attack_jobs()},
    }  # fmt: skip
    for stage, ids in jobs.items():
        here, there = (Workspace(tmp_path / name).records(stage, ids) for name in ("here", "whole"))
        assert len(here) == len(ids) == {"generate": 6, "attack": 9}[stage]
        assert {own: (r["text"], r.get("parent_id")) for own, r in here.items()} == {
            own: (r["text"], r.get("parent_id")) for own, r in there.items()
        }


def test_attacks_made_elsewhere_are_those_of_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewrites by chat models and chains come back as records that the bench would have made itself."""
    monkeypatch.setattr("alimark.core.llm.load_llm", lambda *_, **__: Rewriter())
    path = tmp_path / "recipe.toml"
    path.write_text(
        """
        title = "attacked elsewhere"
        [data]
        sets = ["manual"]
        texts = 3
        sentences = 4
        human_texts = 6
        [llm]
        name = "stand-in"
        [[watermark]]
        key = { embedder = "stand-in", decision = "hard" }
        generate = { candidates = 4 }
        [[attack]]
        name = "chat"
        rounds = [1, 2]
        [[attack]]
        name = "chat"
        then = { name = "delete", rate = 0.25, then = { name = "insert", rate = 0.25 } }
        [[attack]]
        name = "chat-sentences"
        [[attack]]
        name = "reorder"
        rate = 0.5
        """
    )
    whole = Run(load(path, []), Workspace(tmp_path / "whole"))
    whole.run_stage("generate")
    here = tmp_path / "here"
    Workspace(here)
    shutil.copy(tmp_path / "whole" / "records" / "generate.jsonl", here / "records")
    whole.run_stage("attack")

    def call(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["elsewhere.py", *map(str, words)])
        elsewhere.main()

    call("jobs", path, here, "--stages", "attack", "--output", tmp_path / "jobs.jsonl")
    call("do", tmp_path / "jobs.jsonl", tmp_path / "made")
    call("take", tmp_path / "made", here)
    ids = {step.id: step.content.attack.name for job in whole.attack_jobs() for step in job.chain}
    assert Counter(ids.values()) == {"chat": 6, "delete": 3, "insert": 3, "chat-sentences": 3, "reorder": 3}
    expected = whole.workspace.records("attack", ids)
    assert not any(record.get("failed") for record in expected.values())
    assert Workspace(here).records("attack", ids) == {
        identifier: record for identifier, record in expected.items() if ids[identifier] != "insert"
    }
    call("jobs", path, here, "--stages", "attack", "--output", tmp_path / "jobs.jsonl")
    assert "{'attack': 0}" in capsys.readouterr().out
