"""Turns the workspace of a bench run into records that the repository keeps: texts, rewrites and their scores, without prompts.

    python benchmarks/keep_records.py recipe.toml work benchmarks/records/price

For each watermark of the recipe, and for unmarked text, the output has a file `LABEL.jsonl.gz` with a line for each prompt: the
data set and the prompt's line in it, the SHA-256 of the prompt, the secret of the text's key (which the bench derives from the
prompt, so it is published here), the text, its scores, and what each attack made of it. `settings.json` has the recipe.
Prompts and human texts are left out. An unfinished run gives what there is; benchmarks/tables.py reads them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import read_jsonl
from alimark.core.llm import load_llm
from alimark.core.llm.base import Request, count_tokens
from alimark.errors import RecordError
from alimark.lab.bench.data import DataItem
from alimark.lab.bench.data import label as data_label
from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.models import secret
from alimark.lab.bench.recipe import attacks
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import STAGES, Workspace
from quality import neighbours

UNMARKED = "unmarked"


def lines_of_prompts(path: str) -> dict[str, int]:
    """The line of each prompt in a file of prompts, counted from 1; the first one where a prompt is repeated."""
    lines: dict[str, int] = {}
    for number, record in read_jsonl(path) if Path(path).exists() else ():
        if not isinstance(record, RecordError):
            lines.setdefault(str(record.get("prompt", "")).strip(), number)
    return lines


class Export:
    """What a run has made so far, as records without prompts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.models = run.models
        self.llm = load_llm(run.recipe.llm.name)
        self.records: dict[str, dict[str, dict[str, Any]]] = {
            stage: {str(record["id"]): record for _, record in read_jsonl(file) if not isinstance(record, RecordError)}
            for stage in STAGES
            if (file := run.workspace.file(stage)).exists()
        }

    def rows(self, label: str) -> Iterator[dict[str, Any]]:
        """The lines of a watermark, or of unmarked text, in the order of the prompts."""
        written = set()
        for cell in self.run.cells:
            if label not in (UNMARKED, cell.watermark.label):
                continue
            lines = lines_of_prompts(next(name for name in cell.recipe.data.sets if data_label(name) == cell.data.name))
            for item in cell.items:
                job = self.run.generate_job(cell, item, marked=label != UNMARKED)
                record = self.records.get("generate", {}).get(job.id)
                if record is None or record.get("failed") or item.prompt in written:
                    continue
                written.add(item.prompt)
                place = {"set": cell.data.name, "line": lines.get(item.prompt), "prompt": sha256(item.prompt)}
                yield place | self.text(cell, item, record) | self.marked(cell, item, job.id, label)

    def text(self, cell: Cell, item: DataItem, record: dict[str, Any]) -> dict[str, Any]:
        """A written text and how it reads."""
        text = str(record["text"])
        reading = self.records.get("quality", {}).get(self.run.reading_job(cell, item, record["id"]).id, {})
        embedder = self.models.embedder(str(cell.watermark.key["embedder"]))
        return {
            "text": text,
            "sampled": record["cost"]["tokens"],
            "written": count_tokens(self.llm, Request(text, 1, 0)),
            "neighbours": round(neighbours(text, embedder.embed), 4),
            "perplexity": round(float(reading["perplexity"]), 3) if "perplexity" in reading else None,
        }

    def marked(self, cell: Cell, item: DataItem, source: str, label: str) -> dict[str, Any]:
        """The key of a marked text, its scores, and what each attack made of it."""
        if label == UNMARKED:
            return {}
        attacked = {}
        for attack in attacks(cell.recipe):
            job = self.run.attack_job(cell, item, attack)
            if (record := self.records.get("attack", {}).get(job.id)) is not None:
                made = {"error": record["error"]} if record.get("failed") else {"text": record["text"]}
                attacked[attack.label] = made | self.score(cell, item, job.id)
        key = secret(cell.recipe.seed, item.prompt).hex()
        return {"secret": key, **self.score(cell, item, source), "attacks": attacked}

    def score(self, cell: Cell, item: DataItem, source: str) -> dict[str, Any]:
        """The score and the p-value of a text; empty where it has none yet."""
        [detection] = cell.recipe.detection
        record = self.records.get("detect", {}).get(self.run.detect_job(cell, detection, source, item.prompt).id, {})
        return {name: record[name] for name in ("score", "p_value") if name in record}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def settings(run: Run) -> dict[str, Any]:
    """What the texts were written with: the recipe, without folders of the machine, and the releases of the libraries."""
    recipe = run.recipe.model_dump(mode="json")
    recipe["data"]["sets"] = [Path(name).name for name in recipe["data"]["sets"]]
    libraries = ("alimark", "xllamacpp", "torch", "transformers", "onnxruntime")
    return {"recipe": recipe, "versions": {name: version(name) for name in libraries}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    options = parser.parse_args()
    run = Run(load(options.recipe, options.overrides), Workspace(options.workspace))
    export = Export(run)
    options.output.mkdir(parents=True, exist_ok=True)
    for label in [*(watermark.label for watermark in run.recipe.watermark), UNMARKED]:
        rows = list(export.rows(label))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if rows:
            write_whole(options.output / f"{label}.jsonl.gz", gzip.compress(text.encode(), 9, mtime=0))
        print(f"{label}: {len(rows)} texts")
    content = json.dumps(settings(run), indent=2, ensure_ascii=False) + "\n"
    write_whole(options.output / "settings.json", content.encode())


if __name__ == "__main__":
    main()
