"""Null tables of the block edit rate, and the rules that turn an edit distance into a z-score.

A null table holds the mean and standard deviation of the block edit rate of two random sequences by their length. Tables for
the usual block sizes are shipped; others are computed once by Monte Carlo and kept in the cache folder.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core._util.files import write_whole
from alimark.core._util.paths import cache_folder
from alimark.core.frozen.arithmetic import pack_bits
from alimark.core.frozen.kernels.types import ZRule
from alimark.core.frozen.rules import ALPHA, BETA
from alimark.errors import AlimarkError

REFERENCE_LONGEST = 200  # the greatest length in the table of the paper's public code


@dataclass(frozen=True)
class NullTable:
    """Mean and standard deviation of the block edit rate of two random sequences, by their common length."""

    lengths: NDArray[np.int64]
    mean: Floats
    std: Floats

    def upto(self, longest: int) -> tuple[Floats, Floats]:
        """Mean and standard deviation as arrays indexed by length, interpolated linearly in the logarithm of the length."""
        at = np.log(np.arange(1, longest + 1))
        known = np.log(self.lengths)
        mean = np.interp(at, known, self.mean)
        std = np.exp(np.interp(at, known, np.log(self.std)))
        return np.concatenate([[math.nan], mean]), np.concatenate([[math.nan], std])


def tabled_lengths(longest: int, *, dense: int = 200) -> list[int]:
    """Every length up to `dense`, then lengths that grow by an eighth, up to `longest` or just beyond."""
    lengths = list(range(1, min(dense, longest) + 1))
    while lengths[-1] < longest:
        lengths.append(lengths[-1] + max(1, lengths[-1] // 8))
    return lengths


def monte_carlo(m: int, lengths: Sequence[int], pairs: int = 1000) -> NullTable:
    """A null table from `pairs` pairs of random sequences at each length, as in the paper's appendix.

    The bits come from SHAKE-256, so that the table is the same on every machine.
    """
    mean, std = [], []
    for n in lengths:
        rates = np.concatenate([_rates(m, n, start, min(pairs, start + 500)) for start in range(0, pairs, 500)])
        mean.append(float(rates.mean()))
        std.append(float(rates.std()))
    return NullTable(np.array(lengths), np.array(mean), np.array(std))


def _rates(m: int, n: int, start: int, stop: int) -> Floats:
    # Numba is loaded only where a table has to be computed, so that settings and results do not need it.
    from alimark.core.frozen.kernels.hard import edit_distances

    label = f"alimark/1/null-table/{m}/{n}/{start}".encode()
    bits = 2 * (stop - start) * n * m
    data = np.frombuffer(hashlib.shake_256(label).digest(-(-bits // 8)), np.uint8)
    packed = pack_bits(np.unpackbits(data)[:bits].reshape(-1, m)).reshape(2, stop - start, n)
    return edit_distances(packed[0], packed[1], m) / (m * n)


@lru_cache(maxsize=64)
def null_table(m: int, longest: int) -> NullTable:
    """The table for block size `m` up to length `longest` or beyond: shipped, or computed and kept in the cache folder."""
    file = resources.files("alimark.core.detection.stats").joinpath("null_tables.json")
    shipped = json.loads(file.read_text("utf-8"))["tables"]
    if str(m) in shipped and shipped[str(m)]["lengths"][-1] >= longest:
        return _from_json(shipped[str(m)])
    longest = max(200, 2 ** math.ceil(math.log2(longest)))
    path = cache_folder() / "null" / f"v1-{m}-{longest}.json"
    try:
        return _from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError):
        table = monte_carlo(m, tabled_lengths(longest, dense=24), pairs=1000)
    content = {"lengths": table.lengths.tolist(), "mean": table.mean.tolist(), "std": table.std.tolist()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content).encode())
    except OSError:
        pass  # without a cache the table is computed again next time
    return table


def _from_json(content: dict[str, list[float]]) -> NullTable:
    return NullTable(np.array(content["lengths"], np.int64), np.array(content["mean"]), np.array(content["std"]))


def pooled(table: NullTable) -> tuple[Floats, Floats]:
    """Mean and standard deviation as the public code tables them: at each length the rates of all lengths up to it, pooled."""
    mean, std = table.upto(REFERENCE_LONGEST)
    count = np.arange(1, REFERENCE_LONGEST + 1)
    first = np.cumsum(mean[1:]) / count
    second = np.cumsum(std[1:] ** 2 + mean[1:] ** 2) / count
    return np.concatenate([[math.nan], first]), np.concatenate([[math.nan], np.sqrt(second - first**2)])


def read_reference(path: Path | str) -> tuple[Floats, Floats]:
    """Reads a table in the public code's format: {"1": {"mean": ..., "std": ...}, ...}."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
        longest = max(int(n) for n in content)
        mean, std = np.full(longest + 1, math.nan), np.full(longest + 1, math.nan)
        for n, entry in content.items():
            mean[int(n)], std[int(n)] = float(entry["mean"]), float(entry["std"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AlimarkError(f"{path} is not a table of means and standard deviations by length: {error}") from None
    return mean, std


def prefix_lengths(
    longest: int, alpha: float = ALPHA, beta: float = BETA
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each number of sentences, the fewest and the most blocks that it is aligned with."""
    if not 0 < alpha <= 1 <= beta <= 4:
        raise AlimarkError(f"alpha and beta must satisfy 0 < alpha <= 1 <= beta <= 4, not {alpha} and {beta}")
    return _shares_of_lengths(alpha, longest), _shares_of_lengths(beta, longest)


def _shares_of_lengths(share: float, longest: int) -> NDArray[np.int64]:
    """The ceiling of a share of each length from 0 to `longest`, at least 1.

    The share is taken as the decimal number that it is written as. In floating point 0.28 * 25 is a little more than 7.
    """
    numerator, denominator = Fraction(repr(float(share))).as_integer_ratio()
    return np.array([max(1, -(-numerator * n // denominator)) for n in range(longest + 1)])


def paper_rule(m: int, longest: int, alpha: float = ALPHA, beta: float = BETA) -> ZRule:
    """The paper's z-score for up to `longest` sentences: mean and standard deviation at the number of sentences."""
    mean, std = null_table(m, longest).upto(longest)
    return ZRule(mean, std, False, *prefix_lengths(longest, alpha, beta))


def reference_rule(
    m: int, longest: int, alpha: float = ALPHA, beta: float = BETA, table: Path | str | None = None
) -> ZRule:
    """The public code's z-score: pooled values at the larger of the numbers of sentences and blocks.

    Beyond the end of the table its least mean and least standard deviation are used.
    """
    known_mean, known_std = pooled(null_table(m, REFERENCE_LONGEST)) if table is None else read_reference(table)
    least, most = prefix_lengths(longest, alpha, beta)
    size = max(longest, int(most[-1])) + 1
    mean, std = np.full(size, np.nanmin(known_mean)), np.full(size, np.nanmin(known_std))
    for values, known in ((mean, known_mean), (std, known_std)):
        end = min(size, len(known))
        values[1:end] = np.where(np.isnan(known[1:end]), values[1:end], known[1:end])
    return ZRule(mean, std, True, least, most)
