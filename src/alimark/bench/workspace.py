"""Where a run's records lie, and who wrote them.

    DIR/records/STAGE.jsonl         one line a record, appended as it is finished
    DIR/records/STAGE-2.jsonl       the same, by the second of several processes
    DIR/results/RECIPE.json         what the recipe's records amount to
    DIR/vectors/v1-FINGERPRINT.bin   embeddings, so that scoring again takes little; may be deleted at any time

A record's id is the hash of all that made it. So a killed run goes on where it stopped, two recipes share what they share, a
changed setting makes new records and leaves the old ones alone, and nothing is made twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from alimark._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.bench.vectors import KeptVectors
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, RecordError

Stage = Literal["generate", "attack", "detect", "meaning", "quality"]


def digest(making: Mapping[str, Any]) -> str:
    """The id of what these things make."""
    text = json.dumps(making, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def scored(answer: Any) -> Record:
    """What is kept of a detection."""
    if isinstance(answer, AlimarkError):
        return {"failed": True, "error": str(answer)}
    return {"score": answer.score, "z": answer.z, "raw": answer.raw, "p_value": answer.p_value,
            "sentences": len(answer.sentences)}  # fmt: skip


class Workspace:
    """A folder of records. `part` tells processes that work on it together apart."""

    def __init__(self, folder: Path, part: int = 0) -> None:
        self.folder, self.part = folder, part
        (folder / "records").mkdir(parents=True, exist_ok=True)
        (folder / "results").mkdir(exist_ok=True)

    def records(self, stage: Stage, wanted: Iterable[str]) -> dict[str, Record]:
        """The records with these ids, as far as they are there."""
        wanted = set(wanted)
        found: dict[str, Record] = {}
        for path in self._files(stage):
            for _, record in read_jsonl(path):
                if isinstance(record, RecordError):
                    continue  # a line that was cut off; its writer mends it when it goes on
                if record.get("id") in wanted:
                    found[str(record["id"])] = record
        return found

    @contextmanager
    def writer(self, stage: Stage) -> Iterator[JsonlWriter]:
        with JsonlWriter(self._file(stage)) as writer:
            yield writer

    def kept_vectors(self, embedder: Embedder) -> KeptVectors:
        """The embedder with the vectors that were computed here before."""
        return KeptVectors(embedder, self.folder / "vectors", self.part)

    def _file(self, stage: Stage) -> Path:
        return self.folder / "records" / (f"{stage}.jsonl" if self.part == 0 else f"{stage}-{self.part}.jsonl")

    def _files(self, stage: Stage) -> list[Path]:
        folder = self.folder / "records"
        return sorted([*folder.glob(f"{stage}.jsonl"), *folder.glob(f"{stage}-*.jsonl")])

    def results(self, name: str) -> Path:
        return self.folder / "results" / f"{name}.json"

    def all_results(self) -> list[Path]:
        return sorted((self.folder / "results").glob("*.json"))
