"""The folder of a run: its records, results and embeddings.

    DIR/records/STAGE.jsonl         one line per record, appended when the record is finished
    DIR/records/STAGE-2.jsonl       the same, by the second of several processes
    DIR/recipes/RECIPE.toml         the recipe with every setting, written when the run begins
    DIR/fitted/SCHEME-HASH.npz      what the run learned from text for the keys of a scheme
    DIR/results/RECIPE.json         the evaluation of a recipe's records, written when the run ends
    DIR/vectors/v1-FINGERPRINT.bin  embeddings, so that texts are scored again quickly; may be deleted at any time

The id of a record is the hash of everything that it was made from. A run that was killed therefore continues where it stopped,
recipes share records, and a changed setting makes new records and leaves the old ones in place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.results import Detection
from alimark.core.embedding.base import Embedder
from alimark.errors import AlimarkError, RecordError
from alimark.lab.bench.vectors import KeptVectors

Stage = Literal["generate", "attack", "detect", "meaning", "quality"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which they run."""


def digest(inputs: Mapping[str, object]) -> str:
    """The id of the record that is made from these inputs."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def scored(answer: Detection | AlimarkError) -> Record:
    """The fields of a detection that are recorded."""
    if isinstance(answer, AlimarkError):
        return {"failed": True, "error": str(answer)}
    record: Record = {"score": answer.score, "z": answer.z, "raw": answer.raw, "p_value": answer.p_value,
                      "sentences": len(answer.sentences)}  # fmt: skip
    if isinstance(answer, AlignedDetection) and answer.payload:
        record["payload"] = answer.payload.record()
    return record


class Workspace:
    """A folder of records. Processes that work on it together each have their own `part`."""

    def __init__(self, folder: Path, part: int = 0) -> None:
        self.folder, self.part = folder, part
        (folder / "records").mkdir(parents=True, exist_ok=True)
        (folder / "results").mkdir(exist_ok=True)

    def records(self, stage: Stage, wanted: Iterable[str]) -> dict[str, Record]:
        """The existing records with these ids, by id."""
        wanted = set(wanted)
        records: dict[str, Record] = {}
        for path in self.files(stage):
            for _, record in read_jsonl(path):
                if isinstance(record, RecordError):
                    continue  # a line that was cut off; the process that wrote it repairs it when it continues
                if record.get("id") in wanted:
                    records[str(record["id"])] = record
        return records

    @contextmanager
    def writer(self, stage: Stage) -> Iterator[JsonlWriter]:
        with JsonlWriter(self._file(stage)) as writer:
            yield writer

    def kept_vectors(self, embedder: Embedder) -> KeptVectors:
        """The embedder with the vectors that were computed in this workspace before."""
        return KeptVectors(embedder, self.folder / "vectors", self.part)

    def _file(self, stage: Stage) -> Path:
        return self.folder / "records" / (f"{stage}.jsonl" if self.part == 0 else f"{stage}-{self.part}.jsonl")

    def files(self, stage: Stage) -> list[Path]:
        """The files with the records of a stage."""
        folder = self.folder / "records"
        return sorted([*folder.glob(f"{stage}.jsonl"), *folder.glob(f"{stage}-*.jsonl")])

    def results(self, name: str) -> Path:
        return self.folder / "results" / f"{name}.json"

    def save_recipe(self, name: str, toml: str) -> None:
        """Write down the recipe of a run that begins."""
        (self.folder / "recipes").mkdir(exist_ok=True)
        write_whole(self.recipe(name), toml.encode("utf-8"))

    def recipe(self, name: str) -> Path:
        return self.folder / "recipes" / f"{name}.toml"

    def names(self) -> list[str]:
        """The names of the recipes that were run here, finished or not."""
        results, recipes = (self.folder / "results").glob("*.json"), (self.folder / "recipes").glob("*.toml")
        return sorted({path.stem for path in (*results, *recipes)})
