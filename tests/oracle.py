"""The paper's algorithms 2 and 3, and the likelihood of soft decisions, written plainly: candidate by candidate, bit by bit.

Slow and obvious, so that it can be read against the paper line by line. A text is a
number of sentences and a mapping from a run of them to its bits: `(first, last, starts_inside, ends_inside)`, where a run that
starts inside leaves out the left half of its first sentence and one that ends inside the right half of its last.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

Bits = tuple[int, ...]
Run = tuple[int, int, bool, bool]


def hamming(left: Bits, right: Bits) -> int:
    return sum(a != b for a, b in zip(left, right, strict=True))


def block_edit_distance(sentences: Sequence[Bits], blocks: Sequence[Bits], m: int) -> int:
    """Algorithm 3 before it divides."""
    table = [[0] * (len(blocks) + 1) for _ in range(len(sentences) + 1)]
    for i in range(len(sentences) + 1):
        table[i][0] = i * m
    for j in range(len(blocks) + 1):
        table[0][j] = j * m
    for i in range(1, len(sentences) + 1):
        for j in range(1, len(blocks) + 1):
            delete = table[i - 1][j] + m
            insert = table[i][j - 1] + m
            substitute = table[i - 1][j - 1] + hamming(sentences[i - 1], blocks[j - 1])
            table[i][j] = min(delete, insert, substitute)
    return table[-1][-1]


def candidates(
    count: int, splittable: Sequence[bool], merges: int, splits: int, total: int
) -> Iterator[tuple[int, int, list[Run]]]:
    """Every restructuring: the boundaries removed, the sentences split, and the runs that remain."""
    can_split = [i for i in range(count) if splittable[i]]
    for u in range(min(merges, count - 1) + 1):
        for v in range(splits + 1):
            if u + v > total:
                continue
            for removed in combinations(range(count - 1), u):
                for split in combinations(can_split, v):
                    yield u, v, runs_of(count, set(removed), set(split))


def runs_of(count: int, removed: set[int], split: set[int]) -> list[Run]:
    """Removed boundary i stood between sentences i and i + 1."""
    runs: list[Run] = []
    first, inside = 0, False
    for i in range(count):
        if i in split:
            runs.append((first, i, inside, True))
            first, inside = i, True
        if i not in removed:
            runs.append((first, i, inside, False))
            first, inside = i + 1, False
    return runs


def prefix_length(share: float, sentences: int) -> int:
    """The ceiling of a share of the sentences, at least 1; the share is the decimal number that Python prints."""
    return max(1, math.ceil(Fraction(str(share)) * sentences))


def score(
    count: int,
    bits: Mapping[Run, Bits],
    splittable: Sequence[bool],
    secret: Sequence[Bits],
    m: int,
    *,
    mean: Mapping[int, float],
    std: Mapping[int, float],
    alpha: float = 0.5,
    beta: float = 1.5,
    merges: int = 1,
    splits: int = 1,
    total: int = 1,
    by_longer: bool = False,
) -> float:
    """Algorithm 2: the largest z over all restructurings and all lengths of the secret."""
    best = -math.inf
    for _, _, runs in candidates(count, splittable, merges, splits, total):
        sentences = [bits[run] for run in runs]
        n = len(sentences)
        for length in range(prefix_length(alpha, n), prefix_length(beta, n) + 1):
            distance = block_edit_distance(sentences, secret[:length], m)
            rate = distance / (m * max(n, length))
            at = max(n, length) if by_longer else n
            best = max(best, (mean[at] - rate) / std[at])
    return best


def local_score(
    count: int,
    bits: Mapping[Run, Bits],
    splittable: Sequence[bool],
    secret: Sequence[Bits],
    m: int,
    *,
    theta: float,
    skip_sentence: float,
    skip_block: float,
    restructure: float,
) -> float:
    """The best sum over any stretch of the text and any stretch of the secret, by the recurrence itself."""
    table = [[0.0] * (len(secret) + 1) for _ in range(count + 1)]

    def worth(run: Run, j: int) -> float:
        return theta * m - hamming(bits[run], secret[j - 1])

    for i in range(1, count + 1):
        for j in range(1, len(secret) + 1):
            options = [
                0.0,
                table[i - 1][j - 1] + worth((i - 1, i - 1, False, False), j),
                table[i - 1][j] - skip_sentence,
                table[i][j - 1] - skip_block,
            ]
            if i > 1:
                options.append(table[i - 2][j - 1] + worth((i - 2, i - 1, False, False), j) - restructure)
            if j > 1 and splittable[i - 1]:
                halves = worth((i - 1, i - 1, False, True), j - 1) + worth((i - 1, i - 1, True, False), j)
                options.append(table[i - 1][j - 2] + halves - restructure)
            table[i][j] = max(options)
    return max(max(row) for row in table)


def soft_likelihood(
    worths: Sequence[Sequence[float]],
    chances: Mapping[str, float],
    best: Callable[[Sequence[float]], float] = sum,
    first_blocks: Sequence[int] = (0,),
) -> float:
    """How much likelier a text is if it carries the blocks: over all that may become of it, or by `best=max` the likeliest.

    `worths[i][j]` is the worth of sentence i for block j. The text began with any of `first_blocks`, counted from 0.
    """
    size, gain = len(worths[0]), chances["worth"]
    usual = 1 - sum(chances[name] for name in ("foreign", "replaced", "repeated", "skipped", "jump", "leaving"))

    def ratio(worth: float) -> float:
        """Of the densities of N(gain, 1) and N(0, 1)."""
        return math.exp(gain * worth - gain * gain / 2)

    def rest(i: int, j: int, outside: bool = False) -> float:
        """Of sentences i and on, block number j (from 1) being the last one carried, or left for a passage without any."""
        if i == len(worths):
            return 1.0
        if outside:
            back = [
                (chances["resumed"], j + 1),
                *((((1 - chances["resumed"]) / size), to) for to in range(1, size + 1)),
            ]
            ways = [chance * ratio(worths[i][to - 1]) * ahead(i + 1, to) for chance, to in back if to <= size]
            return best([chances["staying"] * ahead(i + 1, j, True), *((1 - chances["staying"]) * way for way in ways)])
        other = 1 - chances["moved"] + chances["moved"] * sum(map(ratio, worths[i])) / size
        ways = [chances["foreign"] * other * ahead(i + 1, j), chances["leaving"] * ahead(i + 1, j, True)]
        if j < size:
            ways.append(chances["replaced"] * other * ahead(i + 1, j + 1))
        starts = [(usual, j + 1), (chances["repeated"], j if j else size + 1)]
        starts += [
            (chances["skipped"] * (1 - chances["further"]) * chances["further"] ** (lost - 1), j + 1 + lost)
            for lost in range(1, size)
        ]
        starts += [(chances["jump"] / size, to) for to in range(1, size + 1)]
        ways += [chance * ratio(worths[i][to - 1]) * ahead(i + 1, to) for chance, to in starts if to <= size]
        return best(ways)

    ahead = cache(rest)
    starts = [start for start in first_blocks if start < size]
    within = [(1 - chances["outside"]) * ahead(0, start) / len(starts) for start in starts]
    return best([*within, *(chances["outside"] * ahead(0, start, True) / len(starts) for start in starts)])


# [soft-reference]
NAMES = "weight foreign replaced moved repeated skipped further jump outside leaving staying resumed".split()
RULES = [  # five models of rewriting: their weight, and the probabilities of what becomes of a sentence
    (0.60, 0.05, 0.006, 0.07, 0.04, 0.036, 0.53, 0.007, 0, 0, 0, 0),
    (0.10, 0.31, 0.003, 0.02, 0.04, 0.002, 0.46, 0.001, 0, 0, 0, 0),
    (0.15, 0.004, 0.004, 0.45, 0.01, 0.6, 0.2, 0.004, 0, 0, 0, 0),
    (0.10, 0.07, 0.22, 0.97, 0.007, 0.03, 0.11, 0.002, 0, 0, 0, 0),
    (0.05, 0.004, 0.005, 0.27, 0.008, 0.12, 0.12, 0.004, 0.86, 0.14, 0.75, 0.39),
]
G, SHRINK, BLOCKS_PER_SENTENCE = 1.6, 20, 2.5


def soft_score(projections: Any, signs: Any, starts: Sequence[int]) -> float:
    """The score of a text: `projections` (N, M) of its sentences on the secret vectors, `signs` (L, M) of the blocks, +1 or -1.

    L is ceil(2.5 N) + starts[-1]; a text begins with any of the blocks `starts`, each as likely.
    """
    centred = projections - projections.sum(axis=0) / (len(projections) + SHRINK)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    ratios = np.exp(
        G * (scaled @ signs.T / np.sqrt(signs.shape[1])) - G**2 / 2
    )  # (N, L): if sentence i carries block j
    size = len(signs)
    likelihood = 0.0
    for rule in RULES:
        p = dict(zip(NAMES, rule, strict=True))
        usual = 1 - sum(p[name] for name in ("foreign", "replaced", "repeated", "skipped", "jump", "leaving"))
        inside, out = np.zeros(size + 1), np.zeros(size + 1)  # j blocks are used up; inside the mark, or in other text
        inside[list(starts)], out[list(starts)] = (1 - p["outside"]) / len(starts), p["outside"] / len(starts)
        for ratio in ratios:
            unmarked = 1 - p["moved"] + p["moved"] * ratio.mean()
            back = (1 - p["staying"]) * out
            anywhere = (p["jump"] * inside.sum() + (1 - p["resumed"]) * back.sum()) / size
            now, gap = p["foreign"] * unmarked * inside, 0.0
            for j in range(1, size + 1):
                if j > 1:  # blocks before this one were lost
                    gap = p["further"] * gap + (1 - p["further"]) * inside[j - 2]
                carries = usual * inside[j - 1] + p["repeated"] * inside[j] + p["skipped"] * gap
                carries += p["resumed"] * back[j - 1] + anywhere
                now[j] += p["replaced"] * unmarked * inside[j - 1] + carries * ratio[j - 1]
            inside, out = now, p["staying"] * out + p["leaving"] * inside
        likelihood += p["weight"] * (inside.sum() + out.sum())
    return math.log(likelihood)


# [/soft-reference]


def runs_likelihood(
    ratios: Mapping[tuple[int, int], Sequence[float]],
    chances: Mapping[tuple[int, int], float],
    rule: Mapping[str, float],
    best: Callable[[Sequence[float]], float] = sum,
    first_blocks: Sequence[int] = (0,),
) -> float:
    """How much likelier a text of pieces is if it carries the blocks: over all sentences that its pieces can make.

    `ratios[first, last][j]` is the likelihood ratio of that run of pieces for block j, and `chances[first, last]` the
    probability that a sentence which begins with the piece `first` ends with the piece `last`.
    """
    count, size = max(last for _, last in chances) + 1, len(next(iter(ratios.values())))
    usual = 1 - sum(rule[name] for name in ("foreign", "replaced", "repeated", "skipped"))

    @cache
    def ahead(i: int, j: int) -> float:
        """Of pieces i and on, block number j (from 1) being the last one carried."""
        if i == count:
            return 1.0
        ways = [0.0]
        starts = [(usual, j + 1), (rule["repeated"], j if j else size + 1)]
        starts += [
            (rule["skipped"] * (1 - rule["further"]) * rule["further"] ** (lost - 1), j + 1 + lost)
            for lost in range(1, size)
        ]
        for last in range(i, count):
            chance = chances.get((i, last), 0.0)
            if chance:
                ways.append(chance * rule["foreign"] * ahead(last + 1, j))
                if j < size:
                    ways.append(chance * rule["replaced"] * ahead(last + 1, j + 1))
                for share, to in starts:
                    if to <= size:
                        ways.append(chance * share * ratios[i, last][to - 1] * ahead(last + 1, to))
        return best(ways)

    starts = [start for start in first_blocks if start < size]
    return best([ahead(0, start) / len(starts) for start in starts])


def soft_local(
    worths: Sequence[Sequence[float]], pairs: Sequence[Sequence[float] | None], costs: Sequence[float]
) -> float:
    """The best sum of a passage, by looking at every end; `pairs` are the worths of units with the one before them."""
    theta, skip_sentence, skip_block, restructure = costs

    @cache
    def ending(i: int, j: int) -> float:
        """The best passage that ends behind sentence i and block j, or nothing."""
        if i == 0 or j == 0:
            return 0.0
        ways = [
            0.0,
            ending(i - 1, j - 1) + worths[i - 1][j - 1] - theta,
            ending(i - 1, j) - skip_sentence,
            ending(i, j - 1) - skip_block,
        ]
        pair = pairs[i - 1]
        if i > 1 and pair is not None:
            ways.append(ending(i - 2, j - 1) + pair[j - 1] - theta - restructure)
        if j > 1:
            both = (worths[i - 1][j - 2] + worths[i - 1][j - 1]) / math.sqrt(2)
            ways.append(ending(i - 1, j - 2) + both - theta - restructure)
        return max(ways)

    return max(ending(i, j) for i in range(len(worths) + 1) for j in range(len(worths[0]) + 1))
