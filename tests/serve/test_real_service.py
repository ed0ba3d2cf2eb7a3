"""End to end: `alimark serve` with the local model, the official client, and `alimark detect` on the text."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import free_port, wait_for

from alimark.core.keys.key import Key

openai = pytest.importorskip("openai")
pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.weights, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "alimark"]


def alimark(*words: str, allowed: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A service that is set up by the operator's commands."""
    data = tmp_path_factory.mktemp("real") / "data"
    printed = alimark("serve", "init", "--data", str(data))
    tokens = dict(line.split() for line in printed.splitlines())
    assert {"generate", "detect", "admin"} <= tokens.keys()
    # The key that marks is fixed, because with a random one a text now and then carries too little.
    Key.generate(secret=b"the same in every run, 32 bytes."[:32]).save(data / "key.json")
    alimark("serve", "import", str(data / "key.json"), "--activate", "--data", str(data))
    port = free_port()
    config = data / "serve.toml"
    config.write_text(f'data = "{data}"\nport = {port}\ncandidates = 8\ntimeout = 900\n')
    with (data / "log").open("wb") as log:
        running = subprocess.Popen([*COMMAND, "serve", "--config", str(config)], stderr=log)
    wait_for(f"http://127.0.0.1:{port}", 120)
    yield (
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=tokens["generate"], max_retries=0, timeout=900),
        data,
    )
    running.terminate()
    running.wait(60)


def test_the_text_of_the_official_client_is_found(served: tuple[Any, Path], tmp_path: Path) -> None:
    """A streamed chat; other requests are tested with the stand-in model, which is faster."""
    client, data = served
    turns = [{"role": "user", "content": "Tell me a story about the sea."}]
    chunks = list(
        client.chat.completions.create(model="", messages=turns, stream=True, seed=3, extra_body={"sentences": 7})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    (tmp_path / "text.txt").write_text(text, "utf-8")
    key = data / "keys" / f"{chunks[-1].alimark['key_id']}.json"
    detection = json.loads(alimark("detect", "-k", str(key), str(tmp_path / "text.txt"), "--json", allowed=(0, 1)))
    assert detection["p_value"] < 0.05, detection["sentence_count"]
