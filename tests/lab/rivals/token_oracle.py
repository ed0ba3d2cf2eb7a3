"""The token-level watermarks written plainly from their papers: slow, obvious, on Python's own integers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

_MASK = 2**64 - 1


def splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def hashed(secret: Any, *coordinates: int) -> int:
    found = int(secret[0])
    for place in coordinates:
        found = splitmix((found + (int(place) + 1) * 0x9E3779B97F4A7C15) & _MASK)
    return splitmix(found ^ int(secret[1]))


def uniform(secret: Any, *coordinates: int) -> float:
    return ((hashed(secret, *coordinates) >> 11) + 0.5) / 2**53


def green_count(ids: Sequence[int], context: int, is_green: Callable[[tuple[int, ...], int], bool]) -> tuple[int, int]:
    """KGW: green tokens and tokens, each n-gram once."""
    seen = set()
    green = 0
    for i in range(context, len(ids)):
        gram = (*ids[i - context : i], ids[i])
        if gram not in seen:
            seen.add(gram)
            green += is_green(gram[:-1], gram[-1])
    return green, len(seen)


def edit_cost(ids: Sequence[int], xi: Callable[[int, int], float], length: int, gap: float) -> float:
    """EXP: the least cost of aligning a text with the key sequence from each of its places."""
    return min(_cost_from(shift, ids, xi, length, gap) for shift in range(length))


def _cost_from(shift: int, ids: Sequence[int], xi: Callable[[int, int], float], length: int, gap: float) -> float:
    places = [(shift + b) % length for b in range(len(ids))]
    above = [gap * b for b in range(len(places) + 1)]
    for a, token in enumerate(ids):
        row = [gap * (a + 1)]
        for b, place in enumerate(places):
            row.append(min(above[b] + math.log(1 - xi(place, token)), above[b + 1] + gap, row[b] + gap))
        above = row
    return above[-1]


def g_values(ids: Sequence[int], keys: Sequence[int], table: Sequence[int], n: int, history: int) -> list[list[int]]:
    """SynthID: the bits of each n-gram whose context is new."""

    def accumulated(value: int, data: Sequence[int]) -> int:
        for one in data:
            value = ((value + int(one)) * 6364136223846793005 + 1) & _MASK
        return value

    contexts: list[tuple[int, ...]] = []
    found = []
    for i in range(n - 1, len(ids)):
        context = tuple(int(one) for one in ids[i - n + 1 : i])
        if context not in contexts[-history:]:
            own = accumulated(1, [*context, ids[i]])
            found.append([int(table[accumulated(own, [key]) % len(table)]) for key in keys])
        contexts.append(context)
    return found


def tournament(probabilities: Sequence[float], bits: Sequence[Sequence[int]]) -> list[float]:
    """SynthID: what a tournament of two leaves a match makes of a distribution; `bits[token][layer]`.

    A layer pairs two independent draws; the one with the larger bit goes on, a fair coin deciding where they are alike.
    """
    chances = list(probabilities)
    for layer in range(len(bits[0])):
        new = [0.0] * len(chances)
        for i, p in enumerate(chances):
            for j, q in enumerate(chances):
                a, b = bits[i][layer], bits[j][layer]
                new[i] += p * q * (1.0 if a > b else 0.5 if a == b else 0.0)
                new[j] += p * q * (1.0 if b > a else 0.5 if a == b else 0.0)
        chances = new
    return chances
