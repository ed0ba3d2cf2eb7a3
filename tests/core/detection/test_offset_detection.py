"""Hard keys with offsets, a secret start for each text; test_run_detection.py has the soft ones."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from alimark import AliMark, DetectionSettings, Key
from alimark.audit import calibration
from alimark.core.generation.api import GenerationSettings
from alimark.core.generation.session import Session
from alimark.core.schemes.registry import rule_for
from alimark.errors import KeyFileError
from alimark.testing import StandInLLM
from fixed_texts import EMBEDDER
from single_text import generate


def key_of(number: int, offsets: int = 16) -> Key:
    secret = bytes([number % 256, number // 256, *range(2, 32)])
    return Key.generate(secret=secret, decision="hard", block_size=8, embedder=EMBEDDER, offsets=offsets)


def start_of(key: Key, seed: int) -> int:
    return key.start(f"{seed}/A long story.")


def written(key: Key | None, sentences: int = 12, seed: int = 5) -> str:
    generation = generate("A long story.", key, EMBEDDER, StandInLLM(), GenerationSettings(sentences, 64), seed=seed)
    return " ".join(generation.sentences)


def test_a_text_is_found_where_it_begins() -> None:
    key = key_of(0, 32)
    starts = {start_of(key, seed) for seed in range(400)}
    assert starts == set(range(32))
    seed = next(seed for seed in range(400) if start_of(key, seed) == 30)
    text = written(key, seed=seed)
    detection = AliMark(key, embedder=EMBEDDER).detect(text)
    assert (detection.verdict(), detection.offsets) == ("found", 32)
    matches = [(step.sentences[0], step.block) for step in detection.alignment if step.kind == "match"]
    assert sum(block == sentence + 30 for sentence, block in matches) >= 10
    # The same secret without offsets looks at the first blocks alone.
    assert AliMark(key_of(0, 1), embedder=EMBEDDER).detect(text).p_value > 0.01


def test_the_start_hangs_on_seed_and_prompt() -> None:
    key, chosen = key_of(0, 1024), GenerationSettings(2, 4)

    def session(prompt: str, seed: int) -> Session:
        return Session(prompt, key, chosen, rule=rule_for, seed=seed)

    starts = {
        (prompt, seed): session(prompt, seed).rule._targets.tolist()  # type: ignore[attr-defined]
        for prompt in ("One.", "Two.")
        for seed in range(3)
    }
    assert len({str(targets) for targets in starts.values()}) == 6
    again = session("One.", 0).rule._targets.tolist()  # type: ignore[attr-defined]
    assert again == starts["One.", 0]


def test_p_values_pay_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform over keys with ties broken at random, whatever the text."""
    monkeypatch.setattr("secrets.token_bytes", random.Random(1).randbytes)  # one draw of keys, not chance's
    texts = [written(None, 6, seed=seed) for seed in range(6)]
    chosen = DetectionSettings(draws=99)
    key = key_of(0, 8)
    embedded = calibration.Embedded.of(texts, key, EMBEDDER, chosen)
    values = np.concatenate(
        [calibration.fresh_keys(embedded, key, chosen, lambda n: None).p_randomised for _ in range(20)]
    )
    assert stats.kstest(values, "uniform").pvalue > 0.001


def test_excerpts_are_looked_for_wherever_a_text_may_begin() -> None:
    key = key_of(0)
    seed = next(seed for seed in range(400) if start_of(key, seed) == 15)
    text = " ".join([written(None, 8, seed=31), written(key, seed=seed), written(None, 8, seed=32)])
    detection = AliMark(key, embedder=EMBEDDER).detect(text, search="excerpt", max_blocks=12)
    [passage] = detection.passages
    assert passage.first_block >= 15
    assert passage.last_block <= 27


# Keys

PLAIN = "akf7e02539b3ad23b104", "da06d097f9c62a2a9f0c01866ece5df7d402f4febd4277ec4e560ec3ab4c58e5"


def test_a_key_without_offsets_is_what_it_was(tmp_path: Path) -> None:
    """Id and file of keys made before there were offsets."""
    key = key_of(7, 1)
    key.save(tmp_path / "key.json")
    digest = hashlib.sha256((tmp_path / "key.json").read_bytes()).hexdigest()
    assert (key.id, digest) == PLAIN
    assert Key.load(tmp_path / "key.json").offsets == 1
    assert [key.start(text) for text in ("a", "b")] == [0, 0]


def test_offsets_are_part_of_the_key(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, decision="hard", offsets=64)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again, again.offsets) == (key, 64)
    content = json.loads((tmp_path / "key.json").read_text())
    for wrong in (0, 2**20, "16", True):
        del content["id"]
        (tmp_path / "key.json").write_text(json.dumps(content | {"offsets": wrong}))
        with pytest.raises(KeyFileError, match="offsets"):
            Key.load(tmp_path / "key.json")
        content["id"] = ""
