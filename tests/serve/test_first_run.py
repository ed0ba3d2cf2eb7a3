"""The first run: `alimark serve init` and `alimark serve`, and the curl line that they print."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
from services import free_port, wait_for
from stand_ins import stand_in_service
from typer.testing import CliRunner, Result

from alimark.cli.main import app
from alimark.core.keys.key import Key
from alimark.testing import StandInEmbedder


def alimark(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words])


def init(tmp_path: Path, port: int = 8765) -> tuple[list[str], Result]:
    settings = f'port = {port}\nllm = "stand-in"\nembedder = "stand-in"\ncandidates = 4\nmax_sentences = 3\n'
    (tmp_path / "serve.toml").write_text(settings)
    where = ["--data", str(tmp_path / "data"), "--config", str(tmp_path / "serve.toml")]
    result = alimark("init", *where)
    assert result.exit_code == 0, result.exception
    return where, result


def curl_line(text: str) -> tuple[str, dict[str, str], str]:
    """The address, headers and body of the curl line in what a command printed."""
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("curl ")))
    headers = [words[i + 1] for i, word in enumerate(words) if word == "-H"]
    return (
        next(word for word in words if word.startswith("http")),
        dict(header.split(": ", 1) for header in headers),
        words[words.index("-d") + 1],
    )


def test_the_printed_curl_line_works(tmp_path: Path) -> None:
    where, result = init(tmp_path, free_port())
    tokens = dict(line.split() for line in result.stdout.splitlines())
    assert list(tokens) == ["generate", "detect", "verdict", "admin", "generate,detect"]
    address, headers, body = curl_line(result.stderr)
    assert headers["Authorization"] == f"Bearer {tokens['generate']}"
    url = address.removesuffix("/v1/chat/completions")
    assert f"open {url} in a browser" in result.stderr
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([sys.executable, "-m", "alimark", "serve", *where], stderr=log, stdout=log)
    try:
        wait_for(url)
        answer = httpx.post(address, headers=headers, content=body, trust_env=False, verify=False, timeout=60)
        assert answer.status_code == 200, answer.text
        assert '"content"' in answer.text
        assert "[DONE]" in answer.text
    finally:
        running.terminate()
        running.wait(30)
    printed = (tmp_path / "log").read_text()
    assert curl_line(printed)[0] == address
    assert f"serving at {url}" in printed
    assert not any(token in printed for token in tokens.values())
    assert "was set up before" in str(alimark("init", *where).exception)


def test_an_imported_key_marks_only_if_it_is_activated(tmp_path: Path) -> None:
    where, result = init(tmp_path)
    first = re.search(r"ak[0-9a-f]{18}", result.stderr)
    assert first is not None
    keys = [Key.generate(embedder=StandInEmbedder(), secret=bytes([i]) * 32, decision=kind)
            for i, kind in enumerate(("hard", "soft"))]  # fmt: skip
    for number, key in enumerate(keys):
        key.save(tmp_path / f"{number}.json")

    def marking() -> str:
        service = stand_in_service(tmp_path / "data")
        try:
            [label] = [label for label in service.ring.all() if service.ring.is_marking(label, "stand-in")]
            assert service.ring.marking("", "stand-in").id == label.id
            return label.id
        finally:
            service.close()

    imported = alimark("import", str(tmp_path / "0.json"), *where)
    assert "it only detects" in imported.stderr
    assert "--activate" in imported.stderr
    assert marking() == first[0]
    alimark("import", str(tmp_path / "1.json"), "--activate", *where)
    assert marking() == keys[1].id
    again = alimark("import", str(tmp_path / "0.json"), "--activate", *where)
    assert again.stdout.strip() == keys[0].id
    assert marking() == keys[0].id


def test_the_list_of_keys_shows_one_marking_key(tmp_path: Path) -> None:
    from services import serving

    with serving(tmp_path) as running, running.client("admin") as admin:
        old = running.key.id
        new = admin.post("/v1/keys", json={}).json()
        assert new["marks"] is True
        admin.post("/v1/keys", json={"tenant": "acme"})
        labels = admin.get("/v1/keys").json()
        assert [(label["tenant"], label["id"]) for label in labels if label["marks"] and not label["tenant"]] == [
            ("", new["id"])
        ]
        assert admin.post(f"/v1/keys/{old}/activate").json()["marks"] is True
        assert sum(label["marks"] for label in admin.get("/v1/keys").json()) == 2, "one for each tenant"
        with running.client("generate") as writer:
            text = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1}).json()
        assert text["alimark"]["key_id"] == old
        admin.post(f"/v1/keys/{old}/retire", json={})
        refused = admin.post(f"/v1/keys/{old}/activate")
        assert refused.status_code == 409
        assert "has ended" in json.loads(refused.text)["error"]["message"]
