"""The rules and statistics of the sentence-level rivals written plainly: sentence by sentence, number by number.

A sentence is its embedding, a list of numbers. Of a key only its stream of secret bytes is used, and the arrays that were
learned from text.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from scipy.stats.mstats import hdmedian

from alimark import Key

Vector = Sequence[float]


def dot(one: Vector, other: Vector) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def cosine(one: Vector, other: Vector) -> float:
    return dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))


def z_score(count: float, total: int, share: float) -> float:
    return (count - share * total) / math.sqrt(share * (1 - share) * total)


def uniform(data: bytes) -> list[float]:
    return [(int.from_bytes(data[i : i + 8], "big") >> 11) / 2**53 for i in range(0, len(data), 8)]


def normal_rows(key: Key, label: str, rows: int, columns: int) -> list[list[float]]:
    """Sums of twelve numbers of two bytes about their mean."""
    data = key.stream(label, rows * columns * 24, columns)
    numbers = [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
    sums = [sum(numbers[i : i + 12]) - 6 * 65535 for i in range(0, len(numbers), 12)]
    return [[float(x) for x in sums[r * columns : (r + 1) * columns]] for r in range(rows)]


# Regions


def valid_regions(key: Key, before: int, regions: int, count: int) -> set[int]:
    """The regions with the smallest of the random numbers that belong to the region before."""
    numbers = uniform(key.stream(f"{key.scheme}/valid", 8 * regions, before))
    return set(sorted(range(regions), key=lambda region: numbers[region])[:count])


def hyperplane_region(key: Key, vector: Vector, planes: int) -> tuple[int, float]:
    """SemStamp: the signs of the cosines as a binary number, and the smallest of them without its sign."""
    cosines = [cosine(normal, vector) for normal in normal_rows(key, "semstamp/hyperplanes", planes, len(vector))]
    region = 0
    for one in cosines:
        region = 2 * region + (one > 0)
    return region, min(abs(one) for one in cosines)


def centre_region(key: Any, vector: Vector) -> tuple[int, float]:
    """k-SemStamp: the nearest centre, and by how much it is nearer than the next."""
    cosines = [cosine(centre, vector) for centre in key.fitted.arrays["centres"].tolist()]
    first, second = sorted(cosines, reverse=True)[:2]
    return cosines.index(first), first - second


def located(key: Any, vector: Vector) -> tuple[int, float, int]:
    """The region, the margin, and how many regions there are."""
    if key.scheme == "semstamp":
        planes = key.parameters["hyperplanes"]
        return *hyperplane_region(key, vector, planes), 2**planes
    return *centre_region(key, vector), len(key.fitted.arrays["centres"])


def region_accepts(key: Key, before: Vector, vector: Vector) -> tuple[bool, bool]:
    """Whether a sentence lies in a valid region, and whether also further than the margin from its border."""
    region, margin, regions = located(key, vector)
    count = round(key.parameters["ratio"] * regions)
    valid = region in valid_regions(key, located(key, before)[0], regions, count)
    return valid, valid and margin > key.parameters["margin"]


def region_z(key: Key, vectors: Sequence[Vector]) -> float:
    valid = sum(region_accepts(key, before, vector)[0] for before, vector in zip(vectors, vectors[1:], strict=False))
    regions = located(key, vectors[0])[2]
    return z_score(valid, len(vectors) - 1, round(key.parameters["ratio"] * regions) / regions)


# SimMark


def similarity(key: Any, one: Vector, other: Vector) -> float:
    arrays, distance = key.fitted.arrays, key.fitted.origin["distance"]
    pair = []
    for vector in (one, other):
        length = math.sqrt(dot(vector, vector))
        unit = [x / length for x in vector]
        if "components" in arrays:
            less = [x - m for x, m in zip(unit, arrays["mean"].tolist(), strict=True)]
            unit = [dot(less, component) for component in arrays["components"].tolist()]
        pair.append(unit)
    return cosine(*pair) if distance == "cosine" else math.dist(*pair)


def interval(key: Any) -> tuple[float, float]:
    lower, upper = key.parameters["lower"], key.parameters["upper"]
    learned = key.fitted.arrays["interval"].tolist()
    return (learned[0], learned[1]) if lower is None else (lower, upper)


def interval_accepts(key: Key, before: Vector, vector: Vector) -> bool:
    lower, upper = interval(key)
    return lower <= similarity(key, before, vector) <= upper


def interval_z(key: Any, vectors: Sequence[Vector]) -> float:
    lower, upper = interval(key)
    human = key.fitted.arrays["similarities"].tolist()
    share = sum(lower <= one <= upper for one in human) / len(human)
    count = 0.0
    for before, vector in zip(vectors, vectors[1:], strict=False):
        value = similarity(key, before, vector)
        away = lower - value if value < lower else value - upper if value > upper else 0.0
        count += math.exp(-key.parameters["decay"] * away)
    return z_score(count, len(vectors) - 1, share)


# PMark


def channels(key: Key, dimension: int, label: str = "pmark/channels") -> list[list[float]]:
    """Gram and Schmidt."""
    done: list[list[float]] = []
    for row in normal_rows(key, label, key.parameters["channels"], dimension):
        for _ in range(2):
            for earlier in done:
                part = dot(row, earlier)
                row = [x - part * y for x, y in zip(row, earlier, strict=True)]  # noqa: PLW2901
        length = math.sqrt(dot(row, row))
        done.append([x / length for x in row])
    return done


def secret_bit(key: Key, sentence: int, channel: int) -> int:
    data = key.stream("pmark/bits", 2 if key.parameters["channels"] > 8 else 1, sentence)
    return data[channel // 8] >> (7 - channel % 8) & 1


def kept_candidates(key: Key, sentence: int, vectors: Sequence[Vector]) -> list[int]:
    """The candidates that are on the right side of every channel's median, one channel after the other."""
    left = list(range(len(vectors)))
    for i, channel in enumerate(channels(key, len(vectors[0]))):
        values = {n: cosine(channel, vectors[n]) for n in left}
        middle = estimated(key, list(values.values())) if key.parameters["median"] == "sampled" and values else 0.0
        wanted = secret_bit(key, sentence, i)
        left = [n for n in left if (values[n] >= middle) == bool(wanted)]
    return left


def estimated(key: Key, values: Sequence[float]) -> float:
    weighted = key.parameters["estimator"] == "harrell-davis"
    return float(hdmedian(values)) if weighted and len(values) > 1 else median(values)  # scipy has none for one value


def channel_count(key: Key, beyond: float) -> float:
    """The count of a sentence that is `beyond` the median on the wrong side, or as much on the right side if below 0."""
    if beyond <= key.parameters["threshold"]:
        return 1.0
    distance = beyond if key.parameters["decay_from"] == "median" else beyond - key.parameters["threshold"]
    return math.exp(-key.parameters["decay"] * distance)


def channel_z(key: Key, vectors: Sequence[Vector]) -> float:
    """With the prior median, 0."""
    count = 0.0
    for t, vector in enumerate(vectors):
        for i, channel in enumerate(channels(key, len(vector))):
            value = cosine(channel, vector)
            beyond = -value if secret_bit(key, t, i) else value
            count += channel_count(key, beyond)
    return z_score(count, len(vectors) * key.parameters["channels"], 0.5)
