"""Documents that share text, such as receipts from one template: under one key, all of them look marked together, or none.

Each p-value is right over random keys, but the p-values of such documents rise and fall together. One key in a hundred then
finds most of a thousand receipts at once. Control of the false discovery rate, which is right on average over keys, does not
help the owner of that key. So the documents that were found are scored under the same random keys. Documents whose scores rise
and fall together form a group, to which documents that were not found may belong, too. What was found in a group stands where
random keys that make half as many of the group look as marked are rare: so rare that on average fewer documents than the false
discovery rate are found by such a chance, or two keys in a thousand. Otherwise it is undecided. Marked documents form groups as
well, since they carry the same blocks; their p-values are small enough to stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alimark.core._util.arrays import Floats, Ints
from alimark.core._util.json_types import JsonObject
from alimark.core.detection.stats.p_values import NullScores

BURSTS = 2e-3
"""The share of random keys that may in any case make half as many documents of a group look as marked. By Markov's
inequality fewer do where all of a group have p-values of at most half of it, which 999 random keys resolve."""
RANDOM_KEYS = 4_999
MAX_FOUND, MAX_OTHERS = 500, 300
"""Documents that are checked under a key, at most: those found, the largest p-values first, and others, the smallest first."""
_ALIKE = 0.25
"""Correlation of the scores of two documents over random keys from which they belong together; chance gives at most 0.08."""
_FEW_KEYS, _PERHAPS_ALIKE = 999, 0.16
"""A first look at the documents takes fewer random keys. Two documents that belong together correlate less than this with a
chance of 1 in 1,000; of the others hardly any pair correlates more."""


@dataclass(frozen=True)
class SharedText:
    """Documents whose scores under random keys rise and fall together. Documents are numbered from 0."""

    members: tuple[int, ...]  # all members, whether they were found or not
    found: tuple[int, ...]  # the members that were found
    effective: float  # the number of independent documents that vary as much as the members
    chance: float  # the share of random keys that make half as many members look as marked
    kept: tuple[int, ...]
    """The members that remain found: those up to a p-value at which the share of random keys is small enough."""

    @property
    def undecided(self) -> tuple[int, ...]:
        """The members that were found, and for which chance is a possible reason."""
        return tuple(member for member in self.found if member not in self.kept)

    def record(self) -> JsonObject:
        """What an answer says about its group."""
        return {
            "documents": len(self.members),
            "found": len(self.found),
            "effective": round(self.effective, 2),
            "chance": round(self.chance, 4),
        }


def find_groups(
    p_values: Sequence[float],
    found: Sequence[bool],
    null_scores: Floats,
    fdr: float = 0.05,
    numbers: Ints | None = None,
) -> list[SharedText]:
    """Returns the groups of documents with shared text, of which several were found under one key.

    Args:
        p_values: The p-value of each document, not corrected for the number of keys.
        found: Whether each document was found.
        null_scores: The score of each document under each of the same random keys, (documents, random keys).
        fdr: The false discovery rate.
        numbers: The numbers by which the groups name the documents; by default from 0.

    Example:
        >>> shared = np.random.default_rng(1).normal(size=999)
        >>> [group] = find_groups([0.01, 0.01, 0.01], [True] * 3, np.stack([shared, shared, shared + 0.1]))
        >>> group.members, round(group.effective, 6), group.kept
        ((0, 1, 2), 1.0, (0, 1, 2))
        >>> group.chance
        0.01
    """
    alike = _correlations(null_scores)
    random_p = _random_p_values(null_scores)
    p, is_found = np.asarray(p_values), np.asarray(found, bool)
    names = np.arange(len(p)) if numbers is None else numbers
    groups = []
    for members in _components(alike >= _ALIKE):
        hits = members[is_found[members]]
        if len(hits) > 1:
            pairs = alike[np.ix_(members, members)]
            mean = float((pairs.sum() - np.trace(pairs)) / (len(members) * (len(members) - 1)))
            effective = len(members) / (1 + (len(members) - 1) * max(mean, 0.0))
            chance = _chance(float(p[hits].max()), len(hits), random_p[members])
            kept = hits[p[hits] <= _limit(p[hits], random_p[members], fdr)]
            named = [tuple(names[some].tolist()) for some in (members, hits, kept)]
            groups.append(SharedText(named[0], named[1], effective, chance, named[2]))
    return groups


def search_groups(
    p_values: Sequence[float], found: Sequence[bool], scorers: Sequence[NullScores], fdr: float = 0.05
) -> list[SharedText]:
    """Returns what `find_groups` does; most random keys are drawn only for documents that may belong to such a group.

    `scorers` are functions that score each document under random keys, the same for all documents.
    """
    few = np.stack([scorer(0, _FEW_KEYS) for scorer in scorers])
    groups: list[SharedText] = []
    for part in _components(_correlations(few) >= _PERHAPS_ALIKE):
        is_found = [found[number] for number in part]
        if sum(is_found) > 1:
            more = [scorers[number](_FEW_KEYS, RANDOM_KEYS - _FEW_KEYS) for number in part]
            scores = np.concatenate([few[part], np.stack(more)], axis=1)
            groups += find_groups([p_values[number] for number in part], is_found, scores, fdr, part)
    return groups


def effective_count(groups: Sequence[SharedText], documents: int) -> float:
    """The number of independent documents that vary as much as `documents` with these groups."""
    grouped = sum(len(group.members) for group in groups)
    return documents - grouped + sum(group.effective for group in groups)


def _correlations(scores: Floats) -> Floats:
    """Correlations of ranks, which hold for scores of any distribution."""
    return np.atleast_2d(np.corrcoef(scores.argsort(axis=1).argsort(axis=1)))


def _random_p_values(scores: Floats) -> Floats:
    """The p-value of each document under each random key, among all random keys."""
    ordered = np.sort(scores, axis=1)
    below = np.stack([np.searchsorted(row, values, side="left") for row, values in zip(ordered, scores, strict=True)])
    return np.asarray((scores.shape[1] - below + 1) / (scores.shape[1] + 1))


def _chance(p: float, count: int, random_p: Floats) -> float:
    """The share of random keys under which half of `count` documents of a group, at least two, have p-values of at most `p`."""
    least = 2 / (random_p.shape[1] + 1)  # the smallest p-value that the random keys resolve
    bursts = (random_p <= max(p, least)).sum(axis=0) >= max(count / 2, min(count, 2))
    return (1 + int(bursts.sum())) / (len(bursts) + 1)


def _limit(p: Floats, random_p: Floats, fdr: float) -> float:
    """The largest p-value up to which a group has too many small p-values for chance; 0 if there is no such value."""
    allowed = max(fdr / len(random_p), BURSTS)
    for level in np.unique(p)[::-1]:
        if _chance(float(level), int((p <= level).sum()), random_p) <= allowed:
            return float(level)
    return 0.0


def _components(linked: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> list[Ints]:
    """The connected components of a graph."""
    labels = np.arange(len(linked))
    while True:  # each takes the smallest label of those that it is linked with
        lowest = np.minimum(labels, np.where(linked, labels, len(linked)).min(axis=1))
        if np.array_equal(lowest, labels):
            return [np.flatnonzero(labels == label) for label in np.unique(labels)]
        labels = lowest
