"""What a score means: the paper's null tables, p-values by random keys, false discovery rates."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark import alignment
from alimark.alignment import Floats, Limits, Rule
from alimark.errors import AlimarkError
from alimark.exact import pack_bits
from alimark.models.store import home
from alimark.records import write_whole

ALPHA, BETA = 0.5, 1.5
DEFAULT_DRAWS = 1000
MAX_DRAWS = 10_000_000

# The paper's null


@dataclass(frozen=True)
class NullTable:
    """Mean and standard deviation of the block edit rate of two random sequences, by their common length."""

    lengths: NDArray[np.int64]
    mean: Floats
    std: Floats

    def upto(self, longest: int) -> tuple[Floats, Floats]:
        """Arrays indexed by length; between the tabled lengths straight lines in log length."""
        at = np.log(np.arange(1, longest + 1))
        known = np.log(self.lengths)
        mean = np.interp(at, known, self.mean)
        std = np.exp(np.interp(at, known, np.log(self.std)))
        return np.concatenate([[math.nan], mean]), np.concatenate([[math.nan], std])


def tabled_lengths(longest: int, *, dense: int = 200) -> list[int]:
    """Every length up to `dense`, then steps of an eighth, ending at or beyond `longest`."""
    lengths = list(range(1, min(dense, longest) + 1))
    while lengths[-1] < longest:
        lengths.append(lengths[-1] + max(1, lengths[-1] // 8))
    return lengths


def monte_carlo(m: int, lengths: Sequence[int], pairs: int = 1000) -> NullTable:
    """The paper's appendix: the block edit rate of `pairs` pairs of random sequences at each length.

    The bits come from SHAKE-256, so that the table is the same wherever it is computed.
    """
    mean, std = [], []
    for n in lengths:
        rates = np.concatenate([_rates(m, n, start, min(pairs, start + 500)) for start in range(0, pairs, 500)])
        mean.append(float(rates.mean()))
        std.append(float(rates.std()))
    return NullTable(np.array(lengths), np.array(mean), np.array(std))


def _rates(m: int, n: int, start: int, stop: int) -> Floats:
    label = f"alimark/1/null-table/{m}/{n}/{start}".encode()
    bits = 2 * (stop - start) * n * m
    data = np.frombuffer(hashlib.shake_256(label).digest(-(-bits // 8)), np.uint8)
    packed = pack_bits(np.unpackbits(data)[:bits].reshape(-1, m)).reshape(2, stop - start, n)
    return alignment.edit_distances(packed[0], packed[1], m) / (m * n)


@lru_cache(maxsize=64)
def null_table(m: int, longest: int) -> NullTable:
    """The table for block size `m`, at least to length `longest`: shipped, or computed once and kept in the cache."""
    shipped = json.loads(resources.files("alimark").joinpath("null_tables.json").read_text("utf-8"))["tables"]
    if str(m) in shipped and shipped[str(m)]["lengths"][-1] >= longest:
        return _from_json(shipped[str(m)])
    longest = max(200, 2 ** math.ceil(math.log2(longest)))
    path = home() / "null" / f"v1-{m}-{longest}.json"
    try:
        return _from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError):
        table = monte_carlo(m, tabled_lengths(longest, dense=24), pairs=1000)
    content = {"lengths": table.lengths.tolist(), "mean": table.mean.tolist(), "std": table.std.tolist()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content).encode())
    except OSError:
        pass  # a cache that cannot be written costs time, nothing else
    return table


def _from_json(content: dict[str, list[float]]) -> NullTable:
    return NullTable(np.array(content["lengths"], np.int64), np.array(content["mean"]), np.array(content["std"]))


REFERENCE_LONGEST = 200  # the public code's table ends there


def pooled(table: NullTable) -> tuple[Floats, Floats]:
    """The public code's own kind of table: at each length the rates of all lengths up to it, pooled."""
    mean, std = table.upto(REFERENCE_LONGEST)
    count = np.arange(1, REFERENCE_LONGEST + 1)
    first = np.cumsum(mean[1:]) / count
    second = np.cumsum(std[1:] ** 2 + mean[1:] ** 2) / count
    return np.concatenate([[math.nan], first]), np.concatenate([[math.nan], np.sqrt(second - first**2)])


def read_reference(path: Path | str) -> tuple[Floats, Floats]:
    """A table in the public code's form: {"1": {"mean": ..., "std": ...}, ...}."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
        longest = max(int(n) for n in content)
        mean, std = np.full(longest + 1, math.nan), np.full(longest + 1, math.nan)
        for n, entry in content.items():
            mean[int(n)], std[int(n)] = float(entry["mean"]), float(entry["std"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AlimarkError(f"{path} is no table of means and standard deviations by length ({error})") from None
    return mean, std


def prefix_lengths(
    longest: int, alpha: float = ALPHA, beta: float = BETA
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each number of sentences the fewest and the most blocks it is aligned with."""
    if not 0 < alpha <= 1 <= beta <= 4:
        raise AlimarkError(f"alpha and beta must satisfy 0 < alpha <= 1 <= beta <= 4, not {alpha} and {beta}")
    lengths = range(longest + 1)
    least = np.array([max(1, math.ceil(alpha * n)) for n in lengths])
    return least, np.array([max(1, math.ceil(beta * n)) for n in lengths])


def paper_rule(m: int, longest: int, alpha: float = ALPHA, beta: float = BETA) -> Rule:
    """The paper's z for candidates of up to `longest` sentences: mean and deviation at N'."""
    mean, std = null_table(m, longest).upto(longest)
    return Rule(mean, std, False, *prefix_lengths(longest, alpha, beta))


def reference_rule(
    m: int, longest: int, alpha: float = ALPHA, beta: float = BETA, table: Path | str | None = None
) -> Rule:
    """The public code's z: pooled values at max(N', L), and where the table ends its least mean and least deviation."""
    known_mean, known_std = pooled(null_table(m, REFERENCE_LONGEST)) if table is None else read_reference(table)
    least, most = prefix_lengths(longest, alpha, beta)
    size = max(longest, int(most[-1])) + 1
    mean, std = np.full(size, np.nanmin(known_mean)), np.full(size, np.nanmin(known_std))
    for ours, known in ((mean, known_mean), (std, known_std)):
        some = min(size, len(known))
        ours[1:some] = np.where(np.isnan(known[1:some]), ours[1:some], known[1:some])
    return Rule(mean, std, True, least, most)


# p-values by random keys


@dataclass(frozen=True, kw_only=True)
class RandomKeys:
    """The random keys behind a p-value: what detection by any scheme can be asked for."""

    draws: int = DEFAULT_DRAWS
    """Random keys behind the p-value."""
    stop_after: int | None = None
    """Stop drawing after so many random keys scored as high (Besag and Clifford)."""
    tail: bool = False
    """Also estimate the p-value below 1 / draws from a fitted tail."""

    def __post_init__(self) -> None:
        if self.draws < 1 or (self.stop_after is not None and self.stop_after < 1):
            raise AlimarkError("draws and stop_after must be at least 1")


NullScores = Callable[[int, int], Floats]
"""The scores of random keys number `first` to `first + count - 1`."""


@dataclass(frozen=True)
class Significance:
    """A score among those that random keys give to the same text."""

    p_value: float
    draws: int
    above: int
    """Random keys that scored higher."""
    ties: int
    """Random keys that scored the same, as happens with hard bits."""
    mean: float
    std: float
    stopped_early: bool
    tail: float | None = None
    """An estimate below 1 / draws from a fitted tail, where it was asked for; not a bound."""
    scores: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def randomised(self, u: float) -> float:
        """The p-value with ties broken by `u`, uniform on (0, 1]: exact where `p_value` is only never too small.

        Where the drawing stopped early there is no such value, and `p_value` itself is returned.
        """
        if self.stopped_early:
            return self.p_value
        return (self.above + u * (self.ties + 1)) / (self.draws + 1)


def draws_for(fpr: float, least: int = DEFAULT_DRAWS) -> int:
    """Enough random keys to resolve a false-positive rate: ten expected above the threshold."""
    if not 0 < fpr < 1:
        raise AlimarkError(f"a false-positive rate lies between 0 and 1, not at {fpr}")
    wanted = max(least, math.ceil(10 / fpr))
    if wanted > MAX_DRAWS:
        raise AlimarkError(
            f"a false-positive rate of {fpr:g} needs {wanted:,} random keys, more than {MAX_DRAWS:,}; "
            "use 1e-6 or more, and the tail estimate below that"
        )
    return wanted


def significance(
    raw: float,
    null_scores: NullScores,
    draws: int = DEFAULT_DRAWS,
    *,
    stop_after: int | None = None,
    tail: bool = False,
) -> Significance:
    """The random-key p-value of `raw`.

    With all `draws` made it is (1 + as high) / (draws + 1). With `stop_after` = h the drawing ends at the h-th key that scores
    as high, after n draws, and it is h / n (Besag and Clifford): little work for texts that are nothing special.
    """
    seen: list[Floats] = []
    high = made = 0
    while made < draws:
        count = min(max(2 * (stop_after or 65536), made), 65536, draws - made)
        scores = null_scores(made, count)
        as_high = np.flatnonzero(scores >= raw)
        if stop_after is not None and high + len(as_high) >= stop_after:
            scores = scores[: as_high[stop_after - high - 1] + 1]
            seen.append(scores)
            return _summary(raw, np.concatenate(seen), stop_after / (made + len(scores)), True)
        high, made = high + len(as_high), made + count
        seen.append(scores)
    every = np.concatenate(seen)
    return _summary(raw, every, (1 + high) / (draws + 1), False, tail=tail)


def _summary(raw: float, scores: Floats, p_value: float, stopped: bool, *, tail: bool = False) -> Significance:
    above = int((scores > raw).sum())
    ties = int((scores == raw).sum())
    estimate = tail_estimate(raw, scores) if tail and above + ties < 10 else None
    estimate = None if estimate is None else min(estimate, p_value)
    mean, std = float(scores.mean()), float(scores.std())
    return Significance(p_value, len(scores), above, ties, mean, std, stopped, estimate, scores)


def tail_estimate(raw: float, scores: Floats, share: float = 0.01) -> float | None:
    """P(null >= raw) from a generalised Pareto tail fitted to the highest `share` of the scores, at least 50 of them.

    Fitted by probability-weighted moments (Hosking and Wallis 1987). None where too few scores are distinct.
    """
    count = max(50, int(len(scores) * share))
    ordered = np.sort(scores)
    if len(scores) < 4 * count:
        return None
    threshold = ordered[-count - 1]
    excess = ordered[-count:] - threshold
    first = float(excess.mean())
    second = float((excess * (1 - (np.arange(1, count + 1) - 0.35) / count)).mean())
    if first <= 0 or first <= 2 * second:
        return None
    shape = 2 - first / (first - 2 * second)
    scale = 2 * first * second / (first - 2 * second)
    # A tail with an end would call a higher score impossible; an exponential one errs on the safe side.
    shape = max(shape, 0.0)
    over = (raw - threshold) / scale
    if over <= 0:
        return None
    beyond = math.exp(-over) if shape < 1e-6 else (1 + shape * over) ** (-1 / shape)
    return count / len(scores) * beyond


def benjamini_hochberg(p_values: Sequence[float], rate: float) -> tuple[NDArray[np.bool_], float]:
    """Which of many texts are found with the false discovery rate kept at `rate`, and the p-value that this takes."""
    p = np.asarray(p_values, float)
    if not len(p):
        return np.zeros(0, bool), 0.0
    ordered = np.sort(p)
    passing = np.flatnonzero(ordered <= rate * np.arange(1, len(p) + 1) / len(p))
    threshold = float(ordered[passing[-1]]) if len(passing) else 0.0
    return p <= threshold, threshold


# How long a text must be

TYPICAL_AGREEMENT = 0.82
"""Share of bits that agree in unattacked text marked with 64 candidates; benchmarks/marked_texts.py measures it."""
TYPICAL_WORTH = 1.9
"""The same for soft keys: how far a sentence lies along its block's direction, in deviations of one that carries nothing."""

_needed_lock = threading.Lock()


@lru_cache(maxsize=32)
def sentences_needed(m: int, fpr: float, *, soft: bool = False, limit: int = 40) -> int | None:
    """The fewest sentences of unattacked marked text that are found nine times in ten at this rate; None beyond `limit`.

    By simulation with random bits under the default search. Rates below 1e-4 (soft: 1e-3) are read off a line in log rate.
    """
    least = 1e-3 if soft else 1e-4  # a soft score takes longer
    if fpr < least:
        base = sentences_needed(m, least, soft=soft, limit=limit)
        return None if base is None else math.ceil(base * math.log(fpr) / math.log(least))
    power = _soft_power if soft else _power
    with _needed_lock:
        for count in range(1, limit + 1):
            if power(m, count, fpr) >= 0.9:
                return count
    return None


_TRIALS = 200


def _random_blocks(rng: np.random.Generator, m: int, *shape: int) -> NDArray[np.uint64]:
    if m < 64:
        return rng.integers(0, 1 << m, shape, np.uint64, endpoint=False)
    return rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)


def _power(m: int, count: int, fpr: float) -> float:
    rng = np.random.default_rng(count)
    limits, rule = Limits.of("single"), paper_rule(m, count + 1)
    length, draws = int(rule.most[-1]), math.ceil(20 / fpr)

    def scores(units: NDArray[np.uint64], blocks: NDArray[np.uint64]) -> Floats:
        flat = units.reshape(-1, 2, 4)
        valid = np.ones(flat.shape, bool)
        valid[::count, 1] = False
        starts = np.arange(0, len(flat) + 1, count)
        jobs = np.arange(len(blocks))
        return alignment.search(
            flat, valid, blocks, m, limits, rule, starts=starts, texts=jobs % len(units), keys=jobs
        ).z

    unmarked, others = _random_blocks(rng, m, 50, count, 2, 4), _random_blocks(rng, m, draws, length)
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = _random_blocks(rng, m, _TRIALS, count, 2, 4), _random_blocks(rng, m, _TRIALS, length)
    flips = (rng.random((_TRIALS, count, m)) > TYPICAL_AGREEMENT).astype(np.uint8)
    marked[:, :, 0, 0] = blocks[:, :count] ^ pack_bits(flips.reshape(-1, m)).reshape(_TRIALS, count)
    return float((scores(marked, blocks) > threshold).mean())


def _soft_power(m: int, count: int, fpr: float) -> float:
    from alimark.key import SOFT_VERSION
    from alimark.scoring import SOFT_VERSIONS
    from alimark.soft import search_soft, worth_tables

    rng = np.random.default_rng(count)
    version = SOFT_VERSIONS[SOFT_VERSION]
    length, draws = math.ceil(version.blocks * count), math.ceil(20 / fpr)

    def scores(units: Floats, blocks: NDArray[np.uint64]) -> Floats:
        flat, jobs = units.reshape(-1, 2, m), np.arange(len(blocks))
        joinable = np.arange(len(flat)) % count > 0
        return search_soft(
            worth_tables(flat), joinable, blocks, np.full(len(units), length), version.rules,
            starts=np.arange(0, len(flat) + 1, count), texts=jobs % len(units), keys=jobs,
        )  # fmt: skip

    unmarked, others = rng.normal(size=(50, count, 2, m)), _random_blocks(rng, m, draws, length)
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = rng.normal(size=(_TRIALS, count, 2, m)), _random_blocks(rng, m, _TRIALS, length)
    bits = (blocks[:, :count, None] >> np.arange(m, dtype=np.uint64)[::-1]) & np.uint64(1)
    marked[:, :, 0] += TYPICAL_WORTH * (2.0 * bits - 1) / math.sqrt(m)
    return float((scores(marked, blocks) > threshold).mean())
