"""`alimark calibrate`: rates on human text and the centre of an embedder."""

from __future__ import annotations

import json
from pathlib import Path

from alimark import Key
from alimark.generation.api import GenerationSettings
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run
from single_text import generate

EMBEDDER = StandInEmbedder()


def test_rates_and_centre(run: Run, key_file: Path, tmp_path: Path) -> None:
    human = tmp_path / "human.jsonl"
    texts = [generate("S.", Key.load(key_file), EMBEDDER, StandInLLM(), GenerationSettings(4, 1), seed=i).text
             for i in range(40)]  # fmt: skip
    human.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]))
    centre = tmp_path / "centre.json"
    done = run("calibrate", "-k", key_file, "--human", human, "--sentences", "4,3", "--draws", 99, "--fresh",
               "--keys", 4, "--centring", "--centre-out", centre, "--json")  # fmt: skip
    assert done.status == 0, done.err
    four, three = json.loads(done.out)
    assert four["texts"] + four["repeats"] + four["too_short"] == 41
    assert three["sentences"] == 3
    assert set(four["spread"]) == {"keys", "texts", "as is", "centred"}
    assert all(0 <= share <= 1 for share in four["fresh_keys"]["p"])
    assert run("calibrate", "-k", key_file, "--human", human, "--sentences", 4, "--draws", 99).status == 0
    keygen = run("keygen", "-o", tmp_path / "centred.json", "--centre", centre, "--embedder", "stand-in")
    assert keygen.status == 0, keygen.err
    assert Key.load(tmp_path / "centred.json").centre is not None


def test_too_few_texts(run: Run, key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text('{"text": "One. Two."}\n')
    assert "at least 20" in run("calibrate", "-k", key_file, "--human", tmp_path / "h.jsonl", "--sentences", 2).err
