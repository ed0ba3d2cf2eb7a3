"""How strong the attacks are, beside real paraphrasers: what each does to marked texts, in one table and one figure.

    python benchmarks/attacks.py --marked marked/texts.jsonl --output attacked --pairs paraphrase/ --figure delta.png
    python benchmarks/attacks.py --marked marked/texts.jsonl --attacks delete,translate --keys marked/keys

Attacked texts are kept under --output, and a run goes on where another stopped. --pairs is a folder of JSONL files of real
pairs (`original`, `paraphrase`). Columns: cosine of the whole texts under all-mpnet-base-v2; words kept, of the longer text,
each as often as both have it; delta, the paper's ratio of sentence counts after and before, and the share of texts in which
it is not 1; failures; seconds a text. With --keys (a folder of KEY_ID.json) the marks that are found at p < 0.01.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.detection.chat_restructuring import words_in_common
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.text.human_text import read_texts
from alimark.lab.attacks import Target, load_attack, seed_for

Record = dict[str, Any]

ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "delete 0.3": ("delete", {"rate": 0.3}),
    "insert 0.3": ("insert", {"rate": 0.3}),
    "reorder 0.3": ("reorder", {"rate": 0.3}),
    "merge 0.3": ("merge", {"rate": 0.3}),
    "split 0.3": ("split", {"rate": 0.3}),
    "truncate 0.3": ("truncate", {"rate": 0.3}),
    "copy-paste 0.5": ("copy-paste", {"rate": 0.5}),
    "typos 0.1": ("typos", {"rate": 0.1}),
    "synonyms 0.3": ("synonyms", {"rate": 0.3}),
    "synonyms 1.0": ("synonyms", {"rate": 1.0}),
    "translate pt": ("translate", {"via": "pt"}),
    "translate fr": ("translate", {"via": "fr"}),
    "chat qwen 1.5b": ("chat", {"llm": "qwen2.5-coder-1.5b"}),
}


@dataclass(frozen=True)
class Pair:
    """A text before and after; nothing after where the attack failed."""

    before: str
    after: str | None
    seconds: float = 0.0
    key: Path | None = None


def records_of(path: Path) -> Iterator[Record]:
    for _, record in read_jsonl(path):
        if not isinstance(record, dict):
            raise record
        yield record


def attacked(label: str, marked: Sequence[Record], human: Sequence[str], options: argparse.Namespace) -> list[Pair]:
    """Runs one attack over what is not on disk yet, and reads it all."""
    name, settings = ATTACKS[label]
    if name == "chat":
        settings = settings | {"llm": options.llm, "max_tokens": options.max_tokens}
    if name == "insert":
        settings = settings | {"pool": tuple(record["text"] for record in marked)}
    if name == "copy-paste":
        settings = settings | {"pool": tuple(human)}
    attack = load_attack(name, **settings)
    path = options.output / f"{label.replace(' ', '-')}.jsonl"
    with JsonlWriter(path) as writer:
        todo = [record for record in marked if str(record["id"]) not in writer.done]
        targets = (Target(record["text"], seed_for(name, options.seed, str(record["id"]))) for record in todo)
        at = time.perf_counter()
        for place, made in attack.run(targets):
            now = time.perf_counter()
            writer.write(
                {"id": str(todo[place]["id"]), "original": todo[place]["text"], "text": made.text, "seconds": now - at,
                 "attack": {"name": name, "settings": attack.settings}, "failed": made.failed, "error": made.error,
                 "rejected": list(made.rejected), "tries": made.tries, "left": made.left}
            )  # fmt: skip
            at = now
    by_id = {record["id"]: record for record in records_of(path)}
    keys = options.keys
    return [
        Pair(row["original"], None if row["failed"] else row["text"], row["seconds"],
             keys / f"{record['key_id']}.json" if keys else None)
        for record in marked if (row := by_id[str(record["id"])])
    ]  # fmt: skip


def real_pairs(path: Path, count: int) -> list[Pair]:
    return [Pair(record["original"], record["paraphrase"]) for record in islice(records_of(path), count)]


class Measure:
    """Statistics of pairs. What was measured is kept beside the texts, and is not measured again."""

    def __init__(self, folder: Path, embedder: Embedder, small: Embedder | None) -> None:
        self._embedder, self._small = embedder, small
        self._vectors: dict[str, np.ndarray] = {}
        self._cut = splitter(DEFAULT_SPLITTER)
        self._path = folder / "measured.jsonl"
        self._known = (
            {record["id"]: record["value"] for record in records_of(self._path)} if self._path.exists() else {}
        )

    def _kept(self, *what: str, value: Callable[[], float]) -> float:
        own = hashlib.sha256("\0".join(what).encode("utf-8", "surrogatepass")).hexdigest()
        if own not in self._known:
            self._known[own] = value()
            with JsonlWriter(self._path) as writer:
                writer.write({"id": own, "value": self._known[own]})
        return float(self._known[own])

    def vector(self, text: str) -> np.ndarray:
        if text not in self._vectors:
            self._vectors[text] = self._embedder.embed([text])[0]
        return self._vectors[text]

    def cosine(self, before: str, after: str) -> float:
        return self._kept("cosine", before, after, value=lambda: float(self.vector(before) @ self.vector(after)))

    def deltas(self, pairs: Sequence[Pair]) -> list[float]:
        done = [(pair.before, pair.after) for pair in pairs if pair.after]
        return [len(self._cut.units(after)) / max(1, len(self._cut.units(before))) for before, after in done]

    def p_value(self, text: str, key: Path) -> float:
        mark = AliMark(Key.load(key), embedder=self._small)
        return self._kept("p", text, mark.key.id, value=lambda: mark.detect(text).p_value)

    def found(self, pairs: Sequence[Pair]) -> str:
        rows = [(pair.after, pair.key) for pair in pairs if pair.after and pair.key]
        if self._small is None or not rows:
            return "-"
        return f"{sum(self.p_value(after, key) < 0.01 for after, key in rows)}/{len(rows)}"

    def line(self, label: str, pairs: Sequence[Pair]) -> str:
        done = [(pair.before, pair.after) for pair in pairs if pair.after]
        if not done:
            return f"{label:<32} all {len(pairs)} failed"
        cosines = [self.cosine(before, after) for before, after in done]
        kept = [words_in_common(before, after) for before, after in done]
        deltas = np.array(self.deltas(pairs))
        seconds = np.mean([pair.seconds for pair in pairs])
        return (
            f"{label:<32} {len(pairs):>5} {np.mean(cosines):>7.3f} {min(cosines):>7.3f} {np.mean(kept):>7.3f} "
            f"{deltas.mean():>6.2f} {deltas.std():>6.2f} {np.mean(deltas != 1):>8.0%} {len(pairs) - len(done):>7} "
            f"{f'{seconds:.2f}' if seconds else '-':>8} {self.found(pairs):>7}"
        )


HEAD = (
    f"{'attack':<32} {'texts':>5} {'cosine':>7} {'least':>7} {'kept':>7} {'delta':>6} {'std':>6} {'changed':>8} {'failed':>7} "
    f"{'s/text':>8} {'found':>7}"
)


def figure(path: Path, rows: dict[str, list[float]]) -> None:
    """The paper's figure: of each attack how the ratios of sentence counts are spread."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns = 4
    lines = -(-len(rows) // columns)
    drawn, axes = plt.subplots(lines, columns, figsize=(3 * columns, 1.9 * lines), squeeze=False)
    edges = np.arange(0.25, 2.06, 0.1)  # 1 in the middle of a bar
    for axis, (label, deltas) in zip(axes.flat, rows.items(), strict=False):
        axis.hist(np.clip(deltas, 0.26, 2.04), bins=edges, weights=np.full(len(deltas), 1 / max(1, len(deltas))))
        axis.set_title(label, fontsize=9)
        axis.set_ylim(0, 1)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    drawn.supxlabel("sentences after / before", fontsize=9)
    drawn.supylabel("share of texts", fontsize=9)
    drawn.tight_layout()
    drawn.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marked", type=Path, required=True, help="JSONL of marked texts")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="labels, with commas between them; default: all")
    parser.add_argument("--llm", default="qwen2.5-coder-1.5b", help="the chat model")
    parser.add_argument("--max-tokens", type=int, default=512, help="of an answer of the chat model")
    parser.add_argument("--human", type=Path, help="JSONL of human texts, for copy-paste; without it that is left out")
    parser.add_argument("--pairs", type=Path, help="folder of JSONL files of real pairs")
    parser.add_argument("--pairs-count", type=int, default=100)
    parser.add_argument("--keys", type=Path, help="folder of keys, KEY_ID.json for each marked text")
    parser.add_argument("--output", type=Path, default=Path("attacked"))
    parser.add_argument("--figure", type=Path, help="PNG to write")
    parser.add_argument("--no-table", action="store_true", help="draw the figure only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    marked = list(islice(records_of(options.marked), options.count))
    human = list(islice(read_texts(options.human), 200)) if options.human else []
    small = load_embedder("all-MiniLM-L6-v2") if options.keys else None
    measure = Measure(options.output, load_embedder("all-mpnet-base-v2"), small)
    deltas: dict[str, list[float]] = {}
    print(HEAD, flush=True)
    for label in filter(None, options.attacks.split(",")):
        if label == "copy-paste 0.5" and not human:
            continue
        pairs = attacked(label, marked, human, options)
        if not options.no_table:
            print(measure.line(label, pairs), flush=True)
        deltas[label] = measure.deltas(pairs)
    for path in sorted(options.pairs.glob("*.jsonl*")) if options.pairs else ():
        label = "real: " + path.name.partition(".")[0]
        pairs = real_pairs(path, options.pairs_count)
        if not options.no_table:
            print(measure.line(label, pairs), flush=True)
        deltas[label] = measure.deltas(pairs)
    if options.figure:
        figure(options.figure, deltas)


if __name__ == "__main__":
    main()
