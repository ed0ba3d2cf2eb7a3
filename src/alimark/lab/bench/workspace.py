"""The folder of a run: its records, results and embeddings.

    DIR/records/STAGE.jsonl         one line per record, appended when the record is finished
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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.embedding.base import Embedder, precision_of
from alimark.errors import RecordError

Stage = Literal["generate", "attack", "detect", "quality"]
STAGES: tuple[Stage, ...] = get_args(Stage)  # in the order in which they run


def digest(inputs: Mapping[str, object]) -> str:
    """The id of the record that is made from these inputs."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


class Workspace:
    """A folder of records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "records").mkdir(parents=True, exist_ok=True)
        (folder / "results").mkdir(exist_ok=True)

    def file(self, stage: Stage) -> Path:
        """The file with the records of a stage."""
        return self.folder / "records" / f"{stage}.jsonl"

    def records(self, stage: Stage, wanted: Iterable[str]) -> dict[str, Record]:
        """The existing records with these ids, by id. A line that was cut off is left out; the next run repairs it."""
        wanted = set(wanted)
        every = (record for _, record in read_jsonl(self.file(stage))) if wanted and self.file(stage).exists() else ()
        sound = (record for record in every if not isinstance(record, RecordError))
        return {str(record["id"]): record for record in sound if record.get("id") in wanted}

    def writer(self, stage: Stage) -> JsonlWriter:
        """Appends records to a stage; a context manager."""
        return JsonlWriter(self.file(stage))

    def kept_vectors(self, embedder: Embedder) -> KeptVectors:
        """The embedder with the vectors that were computed in this workspace before."""
        return KeptVectors(embedder, self.folder / "vectors")

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


_KEY_BYTES = 16
_FORM = 1  # increase this number when a release changes the vectors: older files are then not used


class KeptVectors:
    """An embedder that keeps its vectors in a folder: attacked texts and other detectors need mostly the same ones.

    The file has a row for each unit: 16 bytes of its hash, then the vector. Only complete rows are read, so a run that was
    killed in the middle of a row does no harm.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self._embedder = embedder
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self._row = np.dtype([("key", f"V{_KEY_BYTES}"), ("vector", "<f4", (self.dimension,))])
        self._at: dict[bytes, NDArray[np.float32]] = {}
        folder.mkdir(exist_ok=True)
        self.precision = precision_of(embedder)
        form = "" if self.precision == "float32" else f"{self.precision}-"
        path = folder / f"{form}v{_FORM}-{self.fingerprint.rpartition(':')[2][:16]}.bin"
        self._file = path.open("ab")
        count = self._file.tell() // self._row.itemsize
        self._file.truncate(count * self._row.itemsize)
        if count:
            self._add(np.memmap(path, self._row, mode="r", shape=(count,)))

    def _add(self, rows: NDArray[Any]) -> None:
        self._at |= zip((key.tobytes() for key in rows["key"]), rows["vector"], strict=True)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES] for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._at}
        if new:
            rows = np.empty(len(new), self._row)
            rows["key"] = np.frombuffer(b"".join(new), self._row["key"])
            rows["vector"] = self._embedder.embed(list(new.values()))
            self._file.write(rows.tobytes())
            self._file.flush()
            self._add(rows)
        return np.array([self._at[key] for key in keys], np.float32).reshape(len(keys), self.dimension)

    def __enter__(self) -> KeptVectors:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
