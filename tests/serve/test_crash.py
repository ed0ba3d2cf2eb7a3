"""kill -9 under load, several times: every acknowledged record is kept, and no secret or text is stored or logged."""

import base64
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
from services import Process, set_up, start_process, wait_for

from alimark.serve.database import Store
from alimark.serve.records import RecordLog

KILLS = 5
PROMPT = "The quince harvest of Trumpington astonished everybody."
TEXTS = [
    f"The {animal} watched the violet lighthouse. It hummed {tune} until dawn. Nobody answered the {animal}."
    for animal in ("axolotl", "wombat", "pangolin") for tune in ("a madrigal", "a fugue")
]  # fmt: skip


class Load:
    """Clients that send requests until `stop` and collect the acknowledged records. They retry while the server is down."""

    def __init__(self, url: str, tokens: dict[str, str]) -> None:
        self.url, self.tokens = url, tokens
        self.acknowledged: list[str] = []
        self.responses: list[str] = []
        self.failures: list[int] = []
        self._over = threading.Event()
        work = (self._detect, self._detect, self._write, self._stream)
        self._threads = [threading.Thread(target=self._run, args=(task, i)) for i, task in enumerate(work)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work, seed: int) -> None:  # type: ignore[no-untyped-def]
        chance = random.Random(seed)
        with httpx.Client(base_url=self.url, timeout=20, trust_env=False, verify=False) as client:
            while not self._over.is_set():
                try:
                    work(client, chance)
                except httpx.TransportError:
                    time.sleep(0.1)

    def _post(self, client: httpx.Client, path: str, role: str, body: object) -> str:
        answer = client.post(path, json=body, headers={"authorization": f"Bearer {self.tokens[role]}"})
        if answer.status_code != 200:
            self.failures.append(answer.status_code)
        self.responses.append(answer.text)
        return answer.text

    def _detect(self, client: httpx.Client, chance: random.Random) -> None:
        texts = chance.choices(TEXTS, k=chance.randint(1, 3))
        answer = self._post(client, "/v1/detect", "detect", {"input": texts, "evidence": chance.random() < 0.2})
        self.acknowledged += [result["record_id"] for result in json.loads(answer)["results"]]

    def _write(self, client: httpx.Client, chance: random.Random) -> None:
        answer = self._post(client, "/v1/completions", "generate", {"prompt": PROMPT, "sentences": 2})
        self.acknowledged += json.loads(answer)["alimark"]["record_ids"]

    def _stream(self, client: httpx.Client, chance: random.Random) -> None:
        answer = self._post(client, "/v1/completions", "generate", {"prompt": PROMPT, "sentences": 2, "stream": True})
        for line in answer.splitlines():
            if line.startswith("data: {"):
                self.acknowledged += json.loads(line.removeprefix("data: "))["alimark"].get("record_ids", [])


@pytest.mark.slow
def test_killed_with_sqlite(tmp_path: Path) -> None:
    _kill_again_and_again(f"sqlite:///{tmp_path / 'alimark.db'}", tmp_path)


@pytest.mark.slow
@pytest.mark.postgres
def test_killed_with_postgresql(postgres_url: str, tmp_path: Path) -> None:
    _kill_again_and_again(postgres_url, tmp_path)


def _kill_again_and_again(database: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    tokens = set_up(data, database=database)
    process = start_process(
        data, tmp_path / "log", database=database, lives=KILLS + 1, candidates=4, rate=0, concurrency=100
    )
    load = Load(process.url, tokens)
    chance = random.Random(7)
    for _ in range(KILLS):
        before = len(load.acknowledged)
        until = time.monotonic() + 60
        while len(load.acknowledged) < before + 10 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(load.acknowledged) >= before + 10, "under load"
        time.sleep(0.1 * chance.random())
        _kill(data, process)
    load.stop()
    wait_for(process.url)
    with httpx.Client(
        headers={"authorization": f"Bearer {tokens['admin']}"}, timeout=60, trust_env=False, verify=False
    ) as admin:
        exported = admin.get(f"{process.url}/v1/records").text
    process.running.terminate()
    assert process.running.wait(30) in (0, -signal.SIGTERM)
    kept = {json.loads(line)["id"] for line in exported.splitlines()}
    assert len(load.acknowledged) >= 10 * KILLS
    assert set(load.acknowledged) <= kept
    assert not load.failures
    _grep(data, database, process.log, load, tokens)


def _kill(data: Path, process: Process) -> None:
    pid = int((data / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while (data / "pid").read_text() in (str(pid), "") and time.monotonic() < until:
        time.sleep(0.005)


def _grep(data: Path, database: str, log: Path, load: Load, tokens: dict[str, str]) -> None:
    """Checks that no secret is anywhere, and neither a prompt nor a text in the log or the database."""
    files = list((data / "keys").iterdir())
    secrets = [base64.b64decode(json.loads(file.read_text())["secret"]) for file in files]
    forms = [form for secret in secrets for form in (secret, base64.b64encode(secret), secret.hex().encode())]
    forms += [token.encode() for token in tokens.values()]
    store = Store(database)
    rows = store.do(lambda db: [db.execute(f"SELECT * FROM {table}") for table in ("records", "keys", "tokens")])
    exported = "".join(RecordLog(store).export())
    store.close()
    held = json.dumps(rows).encode() + exported.encode() + log.read_bytes()
    held += b"".join(file.read_bytes() for file in data.parent.glob("alimark.db*"))
    responses = "".join(load.responses).encode()
    assert len(held) > 10_000
    assert b'"event": "request"' in held
    for form in forms:
        assert form not in held
        assert form not in responses
    for text in (PROMPT, *TEXTS, "axolotl", "quince", "pangolin"):
        assert text.encode() not in held
    written = [json.loads(body)["choices"][0]["text"] for body in load.responses if body.startswith('{"id":"cmpl')]
    assert written
    assert not any(text.encode() in held for text in written)
