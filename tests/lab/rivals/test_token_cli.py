"""Keygen, fit, generate and detect over each token-level scheme, as a user types them."""

import json
from pathlib import Path

import pytest

from commands import Run

pytest.importorskip("torch")
pytest.importorskip("transformers")

PLAIN = ("--temperature", 1, "--top-p", 1, "--repetition-penalty", 1)


@pytest.mark.parametrize("scheme", ["kgw", "exp", "synthid", "sir"])
def test_a_text_is_marked_and_found(scheme: str, folder: Path, tmp_path: Path, command: Run) -> None:
    key, text = tmp_path / "key.json", tmp_path / "text.txt"
    options: list[object] = ["--set", f"tokenizer={folder}"]
    if scheme == "exp":
        options += ["--set", "length=64"]
    if scheme == "sir":
        learned = tmp_path / "sir.safetensors"
        done = command("fit", "sir", "-o", learned, "--embedder", "stand-in", "--set=epochs=5", "--set=passages=100")
        assert done.status == 0, done.err
        options += ["--fitted", learned, "--embedder", "stand-in"]
    assert command("keygen", "-o", key, "--scheme", scheme, *options).status == 0
    prompt = ("-k", key, "-p", "It was late.", "--llm", folder, "--seed", 1)
    made = command("generate", *prompt, "--tokens", 80, *PLAIN, "--json")
    assert made.status == 0, made.err
    record = json.loads(made.out)
    assert (record["scheme"], record["cost"]["tokens"]) == (scheme, 80)
    text.write_text(record["text"])
    found = command("detect", "-k", key, "--draws", 100, "--json", text)
    assert found.status == 0, found.err
    answer = json.loads(found.out)
    assert (answer["verdict"], answer["scheme"], answer["draws"]) == ("found", scheme, 100)
    assert answer["evidence"]["tokens"] > 60
    text.write_text("The keeper of the lighthouse had a map that nobody could read, and he was proud of it. " * 3)
    assert command("detect", "-k", key, "--draws", 100, text).status in (0, 1)
    shown = command("detect", "-k", key, "--draws", 100, text)
    assert "scored" in shown.out


def test_many_prompts_go_to_a_file_and_are_audited(folder: Path, tmp_path: Path, command: Run) -> None:
    key, prompts, texts, found = (tmp_path / name for name in ("key.json", "p.jsonl", "t.jsonl", "f.jsonl"))
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": f"It was day {i}."}) + "\n" for i in range(3)))
    assert command("keygen", "-o", key, "--scheme", "kgw", "--set", f"tokenizer={folder}").status == 0
    wanted = ("generate", "-k", key, "--llm", folder, "--input", prompts, "--output", texts, "--tokens", 60, *PLAIN)
    done = command(*wanted)
    assert done.status == 0, done.err
    again = command(*wanted)  # nothing is left to be written
    assert again.status == 0, again.err
    assert len(texts.read_text().splitlines()) == 3
    done = command("audit", "-k", key, texts, "-o", found)
    assert done.status == 0, done.err
    assert [json.loads(line)["p_value"] < 0.01 for line in found.read_text().splitlines()] == [True] * 3


def test_errors_say_what_to_do(folder: Path, tmp_path: Path, command: Run) -> None:
    key, plain = tmp_path / "key.json", tmp_path / "plain.json"
    refused = command("keygen", "-o", key, "--scheme", "kgw", "--set", "gama=0.5")
    assert refused.status == 2
    assert "gamma" in refused.err
    assert command("keygen", "-o", plain, "--embedder", "stand-in").status == 0
    refused = command("generate", "-k", plain, "-p", "It was late.", "--llm", folder, "--tokens", 20)
    assert refused.status == 2
    assert "length in sentences" in refused.err
    refused = command("keygen", "-o", key, "--scheme", "sir", "--embedder", "stand-in")
    assert "alimark fit sir" in refused.err
