"""Small corpora with marked documents, written with the stand-in model and embedder."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alimark
from alimark.audit.worker import Audit
from alimark.core.detection.settings import DetectionSettings
from alimark.core.keys.key import Sealed
from alimark.testing import StandInEmbedder, StandInLLM, _sentence

EMBEDDER = StandInEmbedder()
SETTINGS = DetectionSettings(draws=499, stop_after=10)


def key(number: int = 0, **options: Any) -> alimark.Key:
    """A key, the same in every run; a hard one where no decision is given."""
    wanted = {"decision": "hard", **options}
    return alimark.Key.generate(embedder=EMBEDDER, secret=bytes([number + 1]) * 32, **wanted)


def marked(under: alimark.Key, seed: int = 1, sentences: int = 12) -> str:
    mark = alimark.AliMark(under, embedder=EMBEDDER)
    return mark.generate("A door opened.", StandInLLM(), sentences=sentences, candidates=24, seed=seed).text


def plain_texts(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(_sentence(chance) for _ in range(8)) for _ in range(count)]


def write(path: Path, texts: Sequence[str]) -> Path:
    lines = [json.dumps({"id": f"d{i}", "text": text, "site": f"s{i % 3}"}) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")
    return path


def task(source: Path | str, output: Path | str, *keys: alimark.Key, **options: Any) -> Audit:
    sealed = tuple(Sealed(single_key) for single_key in keys or (key(),))
    return Audit(sealed, (str(source),), str(output), options.pop("settings", SETTINGS), **options)


def rows(output: Path) -> list[dict[str, Any]]:
    """The answers in a folder of Parquet files or in a JSONL file, in the order of the documents."""
    if output.suffix == ".jsonl":
        return [json.loads(line) for line in output.read_text().splitlines()]
    import pyarrow.parquet

    records: list[dict[str, Any]] = pyarrow.parquet.read_table(output / "results").to_pylist()
    return sorted(records, key=lambda row: (row["file"], row["place"]))
