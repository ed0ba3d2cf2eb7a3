"""Detection end to end, embedding included, by number of sentences; the paper's own times beside ours.

    python benchmarks/detection.py --embedder all-mpnet-base-v2 --device cuda --precision bfloat16
    python benchmarks/detection.py --sizes 4,8,16                     # small, on the CPU
    python benchmarks/detection.py --texts 100                        # with parts left out, means over 100 texts

Rivals in the same run, on the same embedder: `per candidate` embeds the distinct units once, as the paper's appendix does, and
then runs one compiled alignment a candidate; `literal` is algorithm 2 as written, every candidate embedded afresh. With
`--texts` the whole detector (one random key, so that it computes little more than the score) is timed with all parts, without
restructuring and without adaptive lengths, as in the paper's table, on that many different texts of each length.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark import Key, load_embedder
from alimark.core._util.arrays import Packed
from alimark.core._util.compiling import kernel
from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.preparing import prepare
from alimark.core.detection.scoring import scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.base import precision_of
from alimark.core.frozen.kernels.hard import _best_z, _edit_row, search
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.projection import project
from alimark.core.llm.base import Request, Sampling
from alimark.testing import StandInLLM

M = 8
PAPER = {4: 0.02, 8: 0.03, 16: 0.05, 32: 0.08, 64: 0.15, 128: 0.34}
MODULES = {
    "all": (DetectionSettings(draws=1), PAPER),
    "no restructuring": (
        DetectionSettings(draws=1, restructure="none"),
        {4: 0.02, 8: 0.02, 16: 0.02, 32: 0.03, 64: 0.05, 128: 0.07},
    ),
    "no adaptive length": (
        DetectionSettings(draws=1, alpha=1.0, beta=1.0),
        {4: 0.02, 8: 0.03, 16: 0.04, 32: 0.07, 64: 0.14, 128: 0.27},
    ),
}


@kernel()
def per_candidate(units: Any, blocks: Any, m: Any, rule: Any) -> Any:
    """Algorithm 2 candidate by candidate, everything compiled."""
    mean, std, by_longer, least, most = rule
    count = len(units)
    row = np.empty(len(blocks) + 1, np.int32)
    candidate = np.empty(count + 1, np.uint64)
    best = -np.inf
    for c in range(2 * count):  # the text, N - 1 merges, N splits
        size = 0
        for i in range(count):
            if 0 < c < count and i == c:
                candidate[size - 1] = units[i, 1, 0]
            elif c >= count and i == c - count:
                candidate[size], candidate[size + 1] = units[i, 0, 2], units[i, 0, 1]
                size += 2
            else:
                candidate[size] = units[i, 0, 0]
                size += 1
        _edit_row(candidate[:size], blocks[: most[size]], np.int32(m), row)
        z, _ = _best_z(row, size, m, mean, std, by_longer, least, most)
        best = max(best, z)
    return best


def timed(call: Callable[[], object], repeats: int) -> float:
    """The median of several runs: the machine may be busy."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def random_text(rng: np.random.Generator, count: int) -> tuple[Packed, NDArray[np.bool_]]:
    units = rng.integers(0, 1 << M, (count, 2, 4)).astype(np.uint64)
    valid = np.zeros(units.shape, bool)
    valid[:, 0, [WHOLE, LEFT, RIGHT]] = True
    valid[1:, 1, WHOLE] = True
    return units, valid


def sentences(count: int) -> list[str]:
    """Distinct sentences of ordinary length."""
    over = splitter().first_sentence_over
    [draws] = StandInLLM(3).draw([Request("Start.", 4 * count, 1)], Sampling(), over)
    first = [splitter().units(draw.text)[0] for draw in draws]
    return list(dict.fromkeys(first))[:count]


def median(call: Callable[[], object], repeats: int) -> float:
    call()
    return timed(call, repeats)


class Bench:
    def __init__(self, key: Key, embedder: Any, count: int) -> None:
        self.key, self.embedder = key, embedder
        self.text = " ".join(sentences(count))
        self.settings = DetectionSettings()

    def _signals(self) -> Any:
        prepared = prepare(self.text, self.key, self.embedder, self.settings)
        projections = project(self.embedder.embed(prepared.units.texts), self.key)
        return prepared, scoring(self.key, self.settings).signals(prepared.units, projections)

    def score(self) -> float:
        _, signals = self._signals()
        rule = self.settings.rule(self.key.block_size, len(signals.packed) + 1)
        blocks = self.key.blocks(int(rule.most[-1]))[None]
        return float(
            search(signals.packed, signals.valid, blocks, self.key.block_size, self.settings.limits, rule).z[0]
        )

    def whole(self) -> object:
        return detect_batch([self.text], [self.key], self.embedder, self.settings)

    def per_candidate(self) -> float:
        _, signals = self._signals()
        rule = self.settings.rule(self.key.block_size, len(signals.packed) + 1)
        return float(
            per_candidate(signals.packed, self.key.blocks(int(rule.most[-1])), self.key.block_size, tuple(rule))
        )

    def literal(self) -> float:
        """Every candidate's sentences embedded again, as algorithm 2 is written."""
        prepared = prepare(self.text, self.key, self.embedder, self.settings)
        texts, index, count = prepared.units.texts, prepared.units.index, prepared.units.count
        whole = [texts[i] for i in index[:, 0, WHOLE]]
        candidates = [whole]
        candidates += [[*whole[: i - 1], texts[index[i, 1, WHOLE]], *whole[i + 1 :]] for i in range(1, count)]
        halves = [i for i in range(count) if index[i, 0, LEFT] >= 0]
        candidates += [
            [*whole[:i], texts[index[i, 0, LEFT]], texts[index[i, 0, RIGHT]], *whole[i + 1 :]] for i in halves
        ]
        for candidate in candidates:
            project(self.embedder.embed(candidate), self.key)
        return self.per_candidate()


def modules(key: Key, embedder: Any, sizes: list[int], texts: int) -> None:
    """Mean seconds of a detection over several texts of each length, with and without parts of the detector."""
    pool = sentences(max(sizes) + 10 * texts)
    print(
        "   N "
        + " ".join(f"{name:>20} {'paper':>6}" for name in MODULES)
        + f"   seconds a text, means of {texts} texts"
    )
    for count in sizes:
        chosen = [" ".join(random.Random(f"{count}/{i}").sample(pool, count)) for i in range(texts)]
        cells = []
        for settings, paper in MODULES.values():
            detect_batch(chosen[:1], [key], embedder, settings)  # compiles, and records graphs
            started = time.perf_counter()
            for text in chosen:
                detect_batch([text], [key], embedder, settings)
            cells.append(f"{(time.perf_counter() - started) / texts:>20.4f} {paper.get(count, float('nan')):>6.2f}")
        print(f"{count:>4} " + " ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda, for a GPU")
    parser.add_argument("--precision", default="auto", help="float32, int8 (CPU), tf32 or bfloat16 (GPU)")
    parser.add_argument("--sizes", default="4,8,16,32,64,128")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--texts", type=int, help="time the detector with parts left out on so many texts of each length"
    )
    options = parser.parse_args()
    backend: Any = "auto" if options.device is None else "torch"
    embedder = load_embedder(options.embedder, backend=backend, device=options.device, precision=options.precision)
    key = Key.generate(embedder=embedder, decision="hard")
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.texts:
        modules(key, embedder, sizes, options.texts)
        return
    names = ("score alone", "score, K=1000", "per candidate", "literal", "paper's table")
    print(
        f"{options.embedder} on {options.device or 'the CPU'} ({embedder.backend}, {precision_of(embedder)}), seconds a text, "
        f"median of {options.repeats}"
    )
    print("   N " + " ".join(f"{name:>14}" for name in names) + "   faster than per candidate, than literal")
    for count in sizes:
        bench = Bench(key, embedder, count)
        assert bench.score() == bench.per_candidate()
        score, whole = median(bench.score, options.repeats), median(bench.whole, options.repeats)
        rival = median(bench.per_candidate, options.repeats)
        literal = median(bench.literal, 1 if count > 16 else 3)
        cells = " ".join(f"{seconds:>14.4f}" for seconds in (score, whole, rival, literal))
        print(
            f"{count:>4} {cells} {PAPER.get(count, float('nan')):>14.2f}   {rival / score:.2f}x, {literal / score:.1f}x"
        )


if __name__ == "__main__":
    main()
