"""A corpus of any size, measured: made from human sentences, audited on Ray, held against one process.

    python benchmarks/scale.py make corpus --human booksum.jsonl.gz c4.jsonl.gz nq.jsonl.gz --documents 100000 --marked 1000
    python benchmarks/scale.py run corpus found                     # all of it: memory, documents a second, discoveries
    python benchmarks/scale.py compare --human c4.jsonl.gz          # one worker, two workers, the plain batch audit
    python benchmarks/scale.py same corpus --documents 2000         # the answers of Ray and of the plain audit
    python benchmarks/scale.py boilerplate --human c4.jsonl.gz      # half of the sentences alike, cache on and off
    python benchmarks/scale.py rates --human c4.jsonl.gz            # what each stage does in a second on one core

`make`: an unmarked document is two passages of four sentences that stood together in a human text, of a pool of passages, so
that sentences come again as on the web; a marked one is twelve sentences, each the best of 64 of the pool for its block of
the key. Files and key lie in the folder, with the ids of the marked documents in marked.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow
import pyarrow.parquet

from alimark.audit.auditor import Auditor
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.audit.corpora.files import find, plan, read
from alimark.core.detection.preparing import units_of
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.loading import load_embedder
from alimark.core.embedding.precision import at_precision, precisions_of
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project, to_bits
from alimark.core.text.human_text import read_texts

PASSAGE = 4
EMBEDDER = "all-MiniLM-L6-v2"
KEY = b"benchmarks/scale.py".ljust(32)
IN_FULL = ("--first-pass", "1", "--precision", "float32")
"""Every document gets the full test, as in earlier releases, so that figures can be compared; benchmarks/audits.py has more."""


def passages_of(paths: Sequence[str], count: int, seed: int = 1) -> list[list[str]]:
    """Runs of sentences that stood together, each text cut into as many as it has."""
    cutter = splitter("nupunkt")
    found = []
    for path in paths:
        for text in dict.fromkeys(read_texts(path)):
            sentences = [one for one in cutter.units(text) if 20 <= len(one) <= 140]
            found += [sentences[at : at + PASSAGE] for at in range(0, len(sentences) - PASSAGE + 1, PASSAGE)]
    random.Random(seed).shuffle(found)
    if len(found) < count:
        raise SystemExit(f"the texts hold {len(found)} passages, not {count}")
    return found[:count]


def marked_documents(key: Key, sentences: list[str], count: int, candidates: int = 64) -> Iterator[str]:
    """Twelve sentences, each the one of `candidates` whose bits agree best with its block."""
    embedder = load_embedder(EMBEDDER)
    bits, secret = to_bits(project(embedder.embed(sentences), key)), key.blocks(12)
    rng = np.random.default_rng(1)
    for _ in range(count):
        chosen: list[int] = []
        for block in secret:
            some = rng.choice(len(sentences), candidates, replace=False)
            wrong = np.bitwise_count(bits[some] ^ block).astype(float)
            wrong[np.isin(some, chosen)] = np.inf
            chosen.append(int(some[int(np.argmin(wrong))]))
        yield " ".join(sentences[i] for i in chosen)


def make(args: argparse.Namespace) -> None:
    args.corpus.mkdir(parents=True)
    key = Key.generate(embedder=load_embedder(EMBEDDER), decision="hard", secret=KEY)
    key.save(args.corpus / "key.json")
    passages = passages_of(args.human, args.passages)
    marked = list(marked_documents(key, [one for some in passages for one in some], args.marked))
    chance = random.Random(2)
    places = set(chance.sample(range(args.documents), args.marked))
    (args.corpus / "docs").mkdir()
    ids, rows = [], []
    for number in range(args.documents):
        own = f"doc-{number:07}"
        if number in places:
            ids.append(own)
            text = marked[len(ids) - 1]
        else:
            text = " ".join(sentence for some in chance.sample(passages, 2) for sentence in some)
        rows.append({"id": own, "text": text})
        if len(rows) == args.rows or number == args.documents - 1:
            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(
                table, args.corpus / "docs" / f"part-{number // args.rows:04}.parquet", row_group_size=500
            )
            rows = []
    (args.corpus / "marked.json").write_text(json.dumps(ids))
    print(f"{args.documents:,} documents, {len(ids):,} of them marked, of {len(passages) * PASSAGE:,} sentences")


class Memory(threading.Thread):
    """The resident memory of all processes of this session, every few seconds, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        started = time.monotonic()
        while not self.over.wait(5):
            total = 0
            for status in Path("/proc").glob("[0-9]*/statm"):
                try:
                    if b"ray::" in (status.parent / "cmdline").read_bytes() or int(status.parent.name) == self.pid:
                        total += int(status.read_text().split()[1]) * resource.getpagesize()
                except OSError:
                    continue
            self.seen.append((time.monotonic() - started, total / 2**20))

    pid = 0


def command(*words: object) -> dict[str, Any]:
    """An `alimark audit` in a process of its own; what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "alimark", "audit", *map(str, words), *IN_FULL, "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(args: argparse.Namespace) -> None:
    words = [
        "-k",
        args.corpus / "key.json",
        "--input",
        args.corpus / "docs",
        "--output",
        args.output,
        "--engine",
        "ray",
    ]
    words += ["--fdr", args.fdr, "--json", *(args.more or IN_FULL)]
    memory = Memory()
    process = subprocess.Popen([sys.executable, "-m", "alimark", "audit", *map(str, words)], stdout=subprocess.PIPE)
    memory.pid = process.pid
    memory.start()
    said, _ = process.communicate()
    memory.over.set()
    if process.returncode:
        raise SystemExit(process.returncode)
    found = json.loads(said)
    print(json.dumps({name: found[name] for name in found if name != "found_by_source"}, indent=1))
    marked = set(json.loads((args.corpus / "marked.json").read_text()))
    table = pyarrow.parquet.read_table(args.output / "results", columns=["id", "p_value"]).to_pydict()
    discovered = {
        own
        for own, p in zip(table["id"], table["p_value"], strict=True)
        if p is not None and p <= found["fdr_threshold"]
    }
    right, false = len(discovered & marked), len(discovered - marked)
    print("\n| documents | marked | found | of them marked | false discoveries | documents/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(
        f"| {found['documents']:,} | {len(marked):,} | {len(discovered):,} "
        f"| {right:,} ({right / max(1, len(marked)):.1%} of all) "
        f"| {false} ({false / max(1, len(discovered)):.1%}) | {found['documents_per_second']} |"
    )
    assert len(table["id"]) == len(set(table["id"])) == found["documents"]
    late = [value for at, value in memory.seen if at > 60] or [value for _, value in memory.seen]
    parts = np.array_split(np.array(late), 5) if len(late) >= 5 else [np.array(late)]
    print("memory of driver and workers by fifths of the run, MiB: " + ", ".join(f"{part.max():.0f}" for part in parts))


def some_of(corpus: Path, count: int, folder: Path) -> Path:
    """The first documents of a corpus as one JSONL file, which the plain audit reads, too."""
    path = folder / "docs.jsonl"
    with path.open("w") as file:
        for part in sorted((corpus / "docs").glob("*.parquet")):
            for row in pyarrow.parquet.read_table(part).to_pylist()[:count]:
                file.write(json.dumps(row) + "\n")
                count -= 1
            if count <= 0:
                break
    return path


def own_documents(paths: Sequence[str], count: int, folder: Path, pages: int = 0) -> Path:
    """Documents of eight sentences that no other has, or of four such and four of one of so many pages; with a key."""
    passages = passages_of(paths, pages + (1 if pages else 2) * count, seed=3)
    shared, own = passages[:pages], passages[pages:]
    firsts = [shared[i % pages] for i in range(count)] if pages else own[count:]
    Key.generate(embedder=load_embedder(EMBEDDER), decision="hard", secret=KEY).save(folder / "key.json")
    path = folder / "docs.jsonl"
    lines = [json.dumps({"id": str(i), "text": " ".join(firsts[i] + own[i])}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(args: argparse.Namespace) -> None:
    """Each way in turn, as often as asked; the time is that of the work, without the start of Python, Ray and models."""
    ways: dict[str, list[object]] = {
        "plain": [],
        "ray, 1 worker": ["--engine", "ray", "--workers", 1],
        "ray, 2 workers": ["--engine", "ray", "--workers", 2],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = own_documents(args.human, args.documents, folder)
        words = ["-k", folder / "key.json", "--draws", 9999, "--input", source]
        block = max(1, source.stat().st_size // 32 // 1024)  # sixteen blocks for each of two workers
        for _ in range(args.repeats):
            for name, own in ways.items():
                output = folder / ("out.jsonl" if name == "plain" else "out")
                more = [] if name == "plain" else ["--block-size", block]
                found = command(*words, "--output", output, *own, *more)
                spent = found["seconds" if name == "plain" else "seconds_at_work"]
                seconds[name].append(spent)
                print(f"{name}: {args.documents / spent:.2f} documents/s", flush=True)
                output.unlink() if output.is_file() else shutil.rmtree(output)
    best = {name: min(each) for name, each in seconds.items()}
    print(f"\ntwo workers / one worker: {best['ray, 1 worker'] / best['ray, 2 workers']:.2f} times the throughput")
    print(f"two workers / plain audit: {best['plain'] / best['ray, 2 workers']:.2f} times the throughput")


def same(args: argparse.Namespace) -> None:
    words = ["-k", args.corpus / "key.json", "--draws", max(9999, args.documents * 20)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = some_of(args.corpus, args.documents, folder)
        command(*words, "--input", source, "--output", folder / "plain.jsonl")
        command(*words, "--input", source, "--output", folder / "ray", "--engine", "ray", "--block-size", 64)
        plain = {one["id"]: one for one in map(json.loads, (folder / "plain.jsonl").read_text().splitlines())}
        found = pyarrow.parquet.read_table(folder / "ray" / "results").to_pylist()
    equal = sum(row["p_value"] == plain[row["id"]]["p_value"] for row in found)
    apart = max(abs(row["score"] - plain[row["id"]]["score"]) for row in found)
    names = ("z", "draws", "sentence_count", "key_id", "near_flips")
    others = sum(all(row[name] == plain[row["id"]][name] for name in names) for row in found)
    print(
        f"{len(found)} documents by Ray, {len(plain)} by the plain audit, "
        f"the same: {set(plain) == {row['id'] for row in found}}; "
        f"p-values identical in {equal}, {', '.join(names)} in {others}; largest difference of scores {apart:.2g}"
    )


def boilerplate(args: argparse.Namespace) -> None:
    """Documents of four sentences of their own and four of a site's page, fifty sites; cache on and off, in turn."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = own_documents(args.human, args.documents, folder, pages=50)
        rates: dict[int, list[float]] = {256: [], 0: []}
        for _ in range(args.repeats):
            for size, seen in rates.items():
                words = ["-k", folder / "key.json", "--input", source, "--output", folder / "out"]
                found = command(*words, "--cache", size)
                seen.append(args.documents / found["seconds_at_work"])
                units = f"{found['units_embedded']:,} of {found['units_asked']:,} units embedded"
                print(f"cache {size} MB: {seen[-1]:.2f} documents/s, {units}", flush=True)
                shutil.rmtree(folder / "out")
    print(f"cache on / off: {max(rates[256]) / max(rates[0]):.2f} times the throughput")


def per_second(count: int, work: Callable[..., object], *words: Any) -> float:
    """Of the better of two goes."""
    best = math.inf
    for _ in range(2):
        started = time.perf_counter()
        work(*words)
        best = min(best, time.perf_counter() - started)
    return count / best


def rates(args: argparse.Namespace) -> None:
    """One core: documents of twelve human sentences, through each stage apart."""
    numba.set_num_threads(1)
    passages = passages_of(args.human, 3 * args.documents, seed=4)
    texts = [" ".join(one for some in passages[3 * i : 3 * i + 3] for one in some) for i in range(args.documents)]
    sentences = [one for some in passages for one in some]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        many = [{"id": str(i), "text": text} for i, text in enumerate(texts * (20_000 // len(texts)))]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(many), folder / "docs.parquet")
        (folder / "docs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in many))
        for name in ("docs.parquet", "docs.jsonl"):
            print(f"reading {name}: {per_second(len(many), read_all, folder / name):,.0f} documents/s")
    for text_version in (0, 1):
        cutter = splitter("nupunkt", text_version)
        rate = per_second(len(texts), lambda: [cutter.units(text) for text in texts])  # noqa: B023
        print(f"splitting, text version {text_version}: {rate:,.0f} documents/s")
    for name in args.embedders:
        exact = load_embedder(name, threads=1)
        count = args.documents if name == args.embedders[0] else args.documents // 4
        some, key = sentences[: 12 * count], Key.generate(embedder=exact, decision="hard", secret=KEY)
        units = list(dict.fromkeys(units_of(texts[:count], key, exact, DetectionSettings())))
        print(f"{name}: {len(units) / count:.1f} units a document as restructured for a hard key")
        for precision in precisions_of(exact):
            embedder = at_precision(exact, precision)
            rates_of = [f"{per_second(len(each), embedder.embed, each):,.1f}" for each in (some, units)]
            print(f"{name}, {precision}: {rates_of[0]} sentences/s, {rates_of[1]} units/s", flush=True)
    kept = RememberingEmbedder(load_embedder(args.embedders[0], threads=1), 512)
    for decision in ("hard", "soft"):
        ring = [Key.generate(embedder=kept, decision=decision, secret=i.to_bytes(32, "big")) for i in range(1000)]
        for keys in (1, 10, 100, 1000):
            some = texts[: args.documents if keys <= 100 else 20]
            print(
                f"alignment, {decision}, {keys} keys: {aligning(some, ring[:keys], kept):.2f} ms a document", flush=True
            )


def read_all(path: Path) -> None:
    fs, sources, _ = find([str(path)])
    for block in plan(fs, sources, 1 << 40):
        for _ in read(fs, block, ["text", "id"]):
            pass


def aligning(texts: Sequence[str], ring: Sequence[Key], kept: RememberingEmbedder) -> float:
    """Milliseconds a document, its vectors at hand."""
    auditor = Auditor(ring, DetectionSettings(draws=9999, stop_after=20), lambda _: kept)
    auditor.answer(texts[:20])
    auditor.times.clear()
    auditor.answer(texts)
    return 1000 * auditor.times["alignment"] / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for verb in (make, run, compare, same, boilerplate, rates):
        one = verbs.add_parser(verb.__name__)
        one.set_defaults(verb=verb)
        if verb in (make, run, same):
            one.add_argument("corpus", type=Path)
        if verb not in (run, same):
            one.add_argument("--human", nargs="+", required=True, help="JSONL of human texts")
        if verb is not run:
            one.add_argument("--documents", type=int, default=400)
        if verb in (compare, boilerplate):
            one.add_argument("--repeats", type=int, default=2)
        if verb is rates:
            one.add_argument("--embedders", nargs="+", default=[EMBEDDER, "all-mpnet-base-v2"])
        if verb is make:
            one.add_argument("--marked", type=int, default=1000)
            one.add_argument("--passages", type=int, default=2000)
            one.add_argument("--rows", type=int, default=10_000, help="documents of a file")
        if verb is run:
            one.add_argument("output", type=Path)
            one.add_argument("--fdr", type=float, default=0.05)
            one.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further words for alimark audit")
    args = parser.parse_args()
    args.verb(args)


if __name__ == "__main__":
    main()
