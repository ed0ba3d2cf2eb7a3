"""The whole road: `alimark serve` with the local model, the official client, and `alimark detect` on what it got."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from services import free_port, wait_for

openai = pytest.importorskip("openai")
pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.weights

COMMAND = [sys.executable, "-m", "alimark.cli.main"]
SENTENCES = 6


def alimark(*words: str, allowed: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """As an operator sets it up, from nothing."""
    data = tmp_path_factory.mktemp("real") / "data"
    first = alimark("serve", "init", "--data", str(data))
    assert first.startswith("alm_")
    token = alimark("serve", "token", "--role", "generate", "--data", str(data))
    port = free_port()
    config = data / "serve.toml"
    config.write_text(f'data = "{data}"\nport = {port}\ncandidates = 10\ntimeout = 900\n')
    with (data / "log").open("wb") as log:
        running = subprocess.Popen([*COMMAND, "serve", "--config", str(config)], stderr=log)
    wait_for(f"http://127.0.0.1:{port}", 120)
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=0, timeout=900), data
    running.terminate()
    running.wait(60)


def completion(client: Any, stream: bool) -> tuple[str, str]:
    made = client.completions.create(
        model="", prompt="The harbour was quiet that morning.", stream=stream, extra_body={"sentences": SENTENCES}
    )
    if not stream:
        return made.choices[0].text, made.alimark["key_id"]
    chunks = list(made)
    return "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].alimark["key_id"]


def chat(client: Any, stream: bool) -> tuple[str, str]:
    made = client.chat.completions.create(
        model="", messages=[{"role": "user", "content": "Tell me a story about the sea."}], stream=stream,
        extra_body={"sentences": SENTENCES},
    )  # fmt: skip
    if not stream:
        return made.choices[0].message.content, made.alimark["key_id"]
    chunks = list(made)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks[-1].alimark["key_id"]


def test_what_the_official_client_gets_is_found(served: tuple[Any, Path], tmp_path: Path) -> None:
    client, data = served
    # One plain and one streamed, at the same time: all four ways are asked of the stand-in, which is faster.
    ways: list[tuple[Callable[[Any, bool], tuple[str, str]], bool]] = [(completion, False), (chat, True)]
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda way: way[0](client, way[1]), ways))
    for (text, key_id), (ask, stream) in zip(texts, ways, strict=True):
        (tmp_path / "text.txt").write_text(text, "utf-8")
        key = data / "keys" / f"{key_id}.json"
        found = json.loads(alimark("detect", "-k", str(key), str(tmp_path / "text.txt"), "--json", allowed=(0, 1)))
        # Ten candidates leave a weak mark; with the usual 64 it is plain.
        assert found["p_value"] < 0.05, (ask.__name__, stream, found["p_value"], len(found["sentences"]))
