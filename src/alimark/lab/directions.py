"""Learns the directions of an embedding space in which a mark survives paraphrasing.

Three covariances decide. W says how the sentences of a text differ from the text's mean: a mark is the choice of a sentence, so
it can only move a text along directions in which sentences differ. P says how a paraphrase moves a sentence: this is noise. T
says how the means of texts differ, by their topics. This is noise too: no candidate sentence changes the topic, and all
sentences of a text share it, so it does not average out within a block. The directions are the leading generalised
eigenvectors of W against P + 2 T, scaled to a variance of 1 under W. They are not made orthonormal, because the scale is part
of what makes noisy directions count less.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.directions import MOST, DirectionTable
from alimark.core.keys.fitted import Fitted
from alimark.errors import AlimarkError
from alimark.lab.learning import embedded, sentences_of

_RIDGE = 1e-4
_TOPIC_WEIGHT = 2.0  # how much the topics count beside the paraphrases; docs/soft.md compares others
_FEWEST_SENTENCES = 200
_FIT_RIDGE = 1.0
"""How much unknown noise is added when directions are learned from few texts, as a share of the noise that was measured."""


@dataclass
class Statistics:
    """The sums from which directions are learned. Statistics of several corpora can be averaged, see `combine`."""

    dimension: int
    spread: Floats = field(init=False)
    noise: Floats = field(init=False)
    total: Floats = field(init=False)
    means: list[Floats] = field(default_factory=list)
    spread_count: int = 0
    noise_count: int = 0
    sentences: int = 0

    def __post_init__(self) -> None:
        self.spread, self.noise = np.zeros((2, self.dimension, self.dimension))
        self.total = np.zeros(self.dimension)

    def add_text(self, vectors: Floats) -> None:
        """Adds how the sentences of a text differ from its mean, and the mean."""
        self.means.append(vectors.mean(axis=0))
        differences = vectors - self.means[-1]
        self.spread += differences.T @ differences
        self.spread_count += len(vectors) - 1
        self.total += vectors.sum(axis=0)
        self.sentences += len(vectors)

    def add_noise(self, differences: Floats) -> None:
        """Adds how paraphrases differ from their sentences, one difference per row."""
        self.noise += differences.T @ differences
        self.noise_count += len(differences)


class Covariances(NamedTuple):
    """What directions are learned from."""

    spread: Floats
    noise: Floats
    topics: Floats
    """The covariance of the means of texts. A part of it is the spread itself, which does not change the directions."""
    mean: Floats  # the mean sentence

    def against(self, topic_weight: float = _TOPIC_WEIGHT) -> Floats:
        """The noise of paraphrases and topics together."""
        return self.noise + topic_weight * self.topics


def combine(corpora: Sequence[Statistics]) -> Covariances:
    """The mean covariances and the mean sentence of several corpora; each corpus and each paraphraser counts the same."""
    spread = np.mean([corpus.spread / corpus.spread_count for corpus in corpora if corpus.spread_count], axis=0)
    noise = np.mean([corpus.noise / corpus.noise_count for corpus in corpora if corpus.noise_count], axis=0)
    texts = [np.array(corpus.means) for corpus in corpora if len(corpus.means) > 1]
    topics = np.mean([np.cov(means.T) for means in texts], axis=0) if texts else np.zeros_like(noise)
    mean = np.sum([corpus.total for corpus in corpora], axis=0) / sum(corpus.sentences for corpus in corpora)
    return Covariances(spread, noise, topics, mean)


def directions_of(spread: Floats, noise: Floats, count: int = MOST, ridge: float = _RIDGE) -> tuple[Floats, Floats]:
    """The leading directions, one per row, scaled to unit variance under `spread`; and their ratios of spread to noise.

    `ridge` is added to the noise, as a share of its mean variance, so that it can be inverted.
    """
    size = len(noise)
    lower = np.linalg.cholesky(noise + ridge * np.trace(noise) / size * np.eye(size))
    inverse = np.linalg.inv(lower)
    ratios, vectors = np.linalg.eigh(inverse @ spread @ inverse.T)
    rows = (inverse.T @ vectors[:, ::-1]).T[:count] / np.sqrt(ratios[::-1][:count])[:, None]
    signs = np.where(rows.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)  # either sign is as good; one is chosen
    return rows * signs, ratios[::-1][:count]


def table_of(
    corpora: Sequence[Statistics], ridge: float = _RIDGE, topic_weight: float = _TOPIC_WEIGHT
) -> tuple[DirectionTable, Floats]:
    """The table of directions learned from several corpora, and the ratio of spread to noise along each."""
    if sum(corpus.noise_count for corpus in corpora) < _FEWEST_SENTENCES:
        raise AlimarkError(
            f"directions are learned from at least {_FEWEST_SENTENCES} sentences with their paraphrases; give more texts"
        )
    sums = combine(corpora)
    rows, ratios = directions_of(sums.spread, sums.against(topic_weight), min(MOST, len(sums.mean)), ridge)
    return DirectionTable.of(rows, sums.mean), ratios


# A noise model for texts without paraphrases


def simulated_statistics(texts: Iterable[Sequence[str]], embedder: Embedder, seed: int = 0) -> Statistics:
    """The statistics of texts alone; each sentence's paraphrase is replaced by a distorted copy of it."""
    random = Random(seed)
    pairs = [(text, [distorted(sentence, random) for sentence in text]) for text in texts]
    rows = list(dict.fromkeys(sentence for pair in pairs for part in pair for sentence in part))
    vectors = dict(zip(rows, embedded(rows, embedder).astype(np.float64), strict=True)) if rows else {}
    statistics = Statistics(embedder.dimension)
    for pair in pairs:
        original, copy = (np.stack([vectors[sentence] for sentence in part]) for part in pair)
        statistics.add_text(original)
        statistics.add_noise(original - copy)
    return statistics


def distorted(sentence: str, random: Random) -> str:
    """A copy of a sentence that is damaged as a clumsy paraphrase would damage it: words are left out, swapped and recased."""
    words = sentence.rstrip(".!?\"'”’").split()
    kept = [word for word in words if random.random() > 0.25] or words[:1]
    for i in range(len(kept) - 1):
        if random.random() < 0.2:
            kept[i], kept[i + 1] = kept[i + 1], kept[i]
    return " ".join(kept).lower()


def fit_directions(texts: Iterable[str], embedder: Embedder, *, seed: int = 1) -> Fitted:
    """Learns a table of directions for an embedder that has none, for `Key.generate(fitted=...)`.

    How sentences differ is learned from the texts. How a paraphrase would change them is imitated: words are left out and
    swapped. The tables that ship with alimark were learned from real paraphrases and are better.

    Args:
        texts: Ordinary texts, of at least 200 sentences together; some thousands are better.
        embedder: The embedder of the keys.
        seed: Makes the imitated paraphrases repeatable.

    Returns:
        The directions and the mean of all sentences, with a record of what they were learned from.

    Raises:
        AlimarkError: There are too few sentences.
    """
    corpus = sentences_of(texts)
    by_text: dict[int, list[str]] = {}
    for number, sentence in zip(corpus.texts, corpus.sentences, strict=True):
        by_text.setdefault(number, []).append(sentence)
    several = [sentences for sentences in by_text.values() if len(sentences) > 2]
    table, ratios = table_of([simulated_statistics(several, embedder, seed)], ridge=_FIT_RIDGE)
    arrays = {"directions": table.rows.astype("<f4"), "mean": table.mean.astype("<f4")}
    origin = corpus.origin(embedder) | {"seed": seed, "spread_over_noise": round(float(ratios[:32].mean()), 2)}
    return Fitted("alimark", arrays, origin)
