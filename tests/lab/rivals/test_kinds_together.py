"""Keys of all kinds in one folder: each text is found under its own key."""

from __future__ import annotations

from pathlib import Path

from alimark import AliMark, Key, detect
from alimark.core.keys.folder import load_keys
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()


def test_hard_and_soft_keys_of_all_versions_in_one_folder(tmp_path: Path) -> None:
    keys = [
        Key.generate(embedder=EMBEDDER, secret=bytes(range(32)), decision="hard"),
        Key.generate(embedder=EMBEDDER, secret=bytes(range(1, 33)), decision="hard", splitter="pysbd"),
        Key.generate(embedder=EMBEDDER, secret=bytes(range(2, 34)), run=1),
        Key.generate(embedder=EMBEDDER, secret=bytes(range(3, 35))),
    ]
    for number, key in enumerate(keys):
        key.save(tmp_path / f"{number}.json")
    loaded = load_keys([tmp_path])
    for key in keys:
        text = AliMark(key, embedder=EMBEDDER).generate("It was late.", StandInLLM(), sentences=12, seed=1).text
        answers = detect(text, loaded, embedder=EMBEDDER)
        assert answers[0].key_id == key.id
        assert answers[0].verdict() == "found"
        assert answers[0].keys_tried == 4
        assert len(answers) == 3
