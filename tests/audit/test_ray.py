"""Audits on a cluster of two nodes whose workers, driver and nodes die: every document has exactly one result."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from corpora import EMBEDDER, key, marked, plain_texts, rows, task, write

import alimark
import alimark.audit.run
from alimark.audit.pool import Cluster
from alimark.audit.replicas import Replicas
from alimark.audit.run import run
from alimark.audit.worker import Worker
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.errors import ModelError
from alimark.lab.bench.recipe_files import parse
from alimark.lab.bench.run import Run as BenchRun
from alimark.lab.bench.workspace import Workspace
from alimark.testing import StandInLLM
from small_recipes import records

ray: Any = pytest.importorskip("ray")
pytest.importorskip("pyarrow")
utilities: Any = pytest.importorskip("ray.cluster_utils")
# Ray leaves sockets and files to the garbage collector.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]
BLOCK = 1200
PACE = 0.4  # seconds a batch takes at least, so that there is a middle of the run to kill it in
HERE = Path(__file__).parent


class Trapped(Worker):
    """A worker that hangs or dies with documents that contain HANG or DIE, and is slow with all others."""

    def _rows(self, batch: Sequence[Any], work: Any, *, poison: bool) -> Any:
        content = "" if poison else str([document.record for document in batch])
        self._heartbeat()
        if "HANG" in content:
            time.sleep(600)
        if "DIE" in content:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0 if work.careful else PACE)
        return super()._rows(batch, work, poison=poison)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes on this machine, each with resources for one worker."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Workers import the modules of this folder, and those of all tests beside it.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [before])])
    small = {"object_store_memory": 80 << 20, "num_cpus": 1, "include_dashboard": False}
    try:
        nodes = utilities.Cluster(initialize_head=True, head_node_args=small)
        nodes.add_node(object_store_memory=80 << 20, num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        pytest.skip(f"Ray starts no cluster on this machine: {error}")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [marked(key()), *plain_texts(78), marked(key(), 2)]


@pytest.fixture(scope="module")
def expected(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of one process."""
    folder = tmp_path_factory.mktemp("expected")
    source = write(folder / "docs.jsonl", texts)
    run(task(source, folder / "out", block_bytes=BLOCK))
    return without_file(rows(folder / "out"))


def without_file(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name not in ("file", "source")} for row in records]


def test_poison_is_recorded_and_everything_else_is_found(
    cluster: Any, tmp_path: Path, texts: list[str], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alimark.audit.run, "Worker", Trapped)
    documents = [*texts[:20], "They HANG here. It ends.", *texts[20:40], "They DIE here. It ends.", *texts[40:]]
    source = write(tmp_path / "docs.jsonl", documents)
    asked = task(source, tmp_path / "out", time_limit=6.0, block_bytes=40_000)
    outcome = run(asked, cluster=Cluster(cluster.address))
    best = rows(tmp_path / "out")
    assert len(best) == len(documents) == len({row["place"] for row in best})
    assert [i for i, row in enumerate(best) if row["failed"]] == [20, 41]
    assert "two workers ended" in best[20]["error"]
    assert max(best[0]["q_value"], best[-1]["q_value"]) <= 0.05
    assert outcome.summary["shared_text"]["undecided"] >= 2, "all texts share words, which a key of 1 in 500 may like"
    assert 4 <= outcome.deaths <= 12
    sound = [row["p_value"] for i, row in enumerate(best) if i not in (20, 41)]
    assert sound == [row["p_value"] for row in expected]


def test_killed_six_times(cluster: Any, tmp_path: Path, texts: list[str], expected: list[dict[str, Any]]) -> None:
    source = write(tmp_path / "docs.jsonl", texts)
    chance = random.Random(1)
    killed = 0
    for _ in range(30):
        driver = subprocess.Popen(
            [sys.executable, HERE / "driver.py", cluster.address, source, tmp_path / "out", str(BLOCK)]
        )
        until = time.monotonic() + 90
        before = len(list((tmp_path / "out" / "results").glob("part-*")))
        while driver.poll() is None and time.monotonic() < until:
            # Only where it has done some work, so that every life brings the run forward.
            if killed < 6 and len(list((tmp_path / "out" / "results").glob("part-*"))) > before:
                time.sleep(chance.random() * PACE)
                killed += 1
                if killed % 2:
                    driver.kill()
                elif pids := workers():
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    before = len(list((tmp_path / "out" / "results").glob("part-*"))) + 1
            time.sleep(0.02)
        if driver.wait() == 0:
            break
    assert killed == 6
    assert without_file(rows(tmp_path / "out")) == expected


def workers() -> list[int]:
    """The process ids of the actors."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::_Host" in path.read_bytes():
                processes.append(int(path.parent.name))
        except OSError:
            continue
    return processes


def test_replicas_write_what_one_process_writes(cluster: Any) -> None:
    prompts = [
        Prompt(f"The {word} opened.", seed, key(seed % 2)) for seed, word in enumerate("door gate box letter".split())
    ]
    settings = GenerationSettings(4, 8)
    with closing(Replicas(Cluster(cluster.address), ["stand-in", "stand-in"])) as replicas:
        written = dict(replicas.write(prompts, key(), settings))
        plain = dict(replicas.write([Prompt("Rain fell.", 1)], None, settings))
    for i, prompt in enumerate(prompts):
        mark = alimark.AliMark(prompt.key, embedder=EMBEDDER)  # type: ignore[arg-type]
        alone = mark.generate(prompt.text, StandInLLM(), sentences=4, candidates=8, seed=prompt.seed)
        answer: Any = written[i]
        assert (answer.text, answer.key_id, answer.matches) == (alone.text, alone.key_id, alone.matches)
    answer = plain[0]
    assert not answer.marked


def test_the_bench_on_replicas(cluster: Any, tmp_path: Path) -> None:
    wanted = parse({
        "title": "stand-ins", "llm": {"name": "stand-in"},
        "data": {"sets": ["manual"], "texts": 3, "sentences": 3, "human_texts": 1},
        "watermark": [{"key": {"embedder": "stand-in", "block_size": 8}, "generate": {"candidates": 4}}],
    })  # fmt: skip
    with closing(Replicas(Cluster(cluster.address))) as replicas:
        BenchRun(wanted, Workspace(tmp_path / "ray"), replicas=replicas).run_stage("generate")
        assert BenchRun(wanted, Workspace(tmp_path / "ray")).is_finished("generate")
    BenchRun(wanted, Workspace(tmp_path / "plain")).run_stage("generate")
    ours, theirs = (
        [[record[name] for name in ("id", "text", "key_id", "matches", "seed")] for record in written]
        for written in (records(tmp_path / name)["generate"] for name in ("ray", "plain"))
    )
    assert len(ours) == 3
    assert ours == theirs


def test_a_worker_that_cannot_be_built_says_why(cluster: Any, tmp_path: Path) -> None:
    other = alimark.Key.generate(embedder=type(EMBEDDER)(name="no-such-model"), secret=bytes(32))
    source = write(tmp_path / "docs.jsonl", plain_texts(2))
    with pytest.raises(ModelError, match="no-such-model"):
        run(task(source, tmp_path / "out", other), cluster=Cluster(cluster.address))


def test_a_node_lost_in_mid_run(
    cluster: Any, tmp_path: Path, texts: list[str], expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last, since the cluster is smaller afterwards."""
    monkeypatch.setattr(alimark.audit.run, "Worker", Trapped)
    source = write(tmp_path / "docs.jsonl", texts)
    done: list[Any] = []

    def lose() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and len(list((tmp_path / "out" / "results").glob("part-*"))) < 4:
            time.sleep(0.02)
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        done.append(True)

    loser = threading.Thread(target=lose)
    loser.start()
    outcome = run(task(source, tmp_path / "out", block_bytes=BLOCK), cluster=Cluster(cluster.address))
    loser.join()
    assert done
    assert outcome.deaths >= 1
    assert without_file(rows(tmp_path / "out")) == expected
