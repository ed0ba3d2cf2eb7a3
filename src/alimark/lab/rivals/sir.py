"""SIR (Liu et al., "A Semantic Invariant Robust Watermark for Large Language Models"): a bias by the meaning of the text.

A small network maps the embedding of the text so far to `dimension` numbers, about half of them positive. A hash of the
secret and the token assigns each token of the vocabulary to one of them, and its sign makes the token more or less likely.
Similar meanings give similar biases, so a paraphrase keeps part of the mark. The network is trained on embeddings of ordinary
text (`alimark fit sir`) with the two losses of the paper: the cosine of two outputs follows the cosine of the two embeddings,
stretched about its mean; and the numbers are near +R or -R, balanced over each output and over each of the `dimension`.

The network is not secret and is stored in the key. Random keys differ in the assignment of tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.keys.fitted import Fitted
from alimark.core.parameters import Presets
from alimark.errors import AlimarkError, KeyFileError, MissingExtra
from alimark.lab.rivals import _prf
from alimark.lab.rivals._token_sampling import AddedBias
from alimark.lab.rivals.token_level import TokenLevel, TokenParameters
from alimark.lab.rivals.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.core.embedding.base import Embedder
    from alimark.lab.rivals._token_engines import Bias, TokenEngine

Float32s = NDArray[np.float32]

_HIDDEN = 256
_SHARPNESS = 1000.0  # k2 of the paper: so large that tanh is nearly a sign
_STRETCH = 20.0  # k1 of the paper
_LEAST_PASSAGES = 64
_BATCH = 256
BLOCKS = 2  # the number of residual blocks of the network


@dataclass(frozen=True)
class SIRParameters(TokenParameters):
    """The parameters of a SIR key."""

    scheme = "sir"
    presets: ClassVar[Presets] = {"paper": {}}
    earlier: ClassVar[Mapping[str, object]] = {"bias": "nucleus"}
    embeds = True

    delta: float = 1.0  # the number added to or subtracted from the logits
    chunk: int = 10  # the number of tokens that share a bias, which the text before them decides
    window: int = 200  # the number of last tokens of the text so far that are embedded
    dimension: int = 300  # the number of outputs of the network
    bias: str = "logits"
    """Where delta is added: "logits", before temperature and top-p, as in the code of the authors and in MarkLLM, or "nucleus",
    after both."""

    def __post_init__(self) -> None:
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 1 <= self.chunk <= self.window <= 4096:
            raise KeyFileError("chunk must be at least 1, and window at least chunk and at most 4096")
        if not 2 <= self.dimension <= 10_000:
            raise KeyFileError(f"dimension must be from 2 to 10000, not {self.dimension}")
        self.check_choice("bias", "logits", "nucleus")

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks that there is a trained network with this number of outputs; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError("SIR needs a trained network; train one: alimark fit sir")
        SIRNetwork.of(fitted, self.dimension)


class SIR(TokenLevel):
    """Generates and detects text marked by SIR under one key."""

    scheme = "sir"
    Parameters = SIRParameters
    parameters: SIRParameters

    @property
    def network(self) -> SIRNetwork:
        """The trained network that the key holds."""
        assert self.key.fitted is not None
        return SIRNetwork.of(self.key.fitted, self.parameters.dimension)

    def biases(self, contexts: Sequence[str]) -> Float32s:
        """The signs of the network's outputs for each context, one context per row."""
        return self.network.signs(self.embedder.embed(list(contexts)))

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        for text in texts:
            yield from self.contexts(self.tokenizer.ids(text.strip()))

    def contexts(self, ids: Ids) -> list[str]:
        """The text before each chunk. The first chunk has no context; it is neither marked nor scored, and left out here."""
        chunk, window = self.parameters.chunk, self.parameters.window
        return [self.tokenizer.text(ids[max(0, end - window) : end]).strip() for end in range(chunk, len(ids), chunk)]

    def marker(self, seeds: list[int], engine: TokenEngine) -> MeaningBias:
        return MeaningBias(self, engine.device)

    def find(self, ids: Ids) -> Statistic:
        parameters = self.parameters
        contexts = self.contexts(ids)
        rows = np.arange(parameters.chunk, len(ids)) // parameters.chunk - 1
        tokens = ids[parameters.chunk :]
        biases = self.biases(contexts) if contexts else np.zeros((0, parameters.dimension), np.float32)

        def scores(secrets: _prf.Words) -> Floats:
            if not len(tokens):
                return np.zeros(len(secrets))
            places = assigned(secrets[:, None], tokens, parameters.dimension)
            return np.asarray(biases[rows, places].mean(axis=1, dtype=np.float64))

        def null(first: int, count: int) -> Floats:
            return scores(self.null_secrets(first, count))

        raw = float(scores(self.secret[None])[0])
        return Statistic(raw, None, null, 0.0, {"mean": raw, "scored": len(tokens), "contexts": len(contexts)})

    def strengths(self, ids: Ids) -> Floats:
        chunk, contexts = self.parameters.chunk, self.contexts(ids)
        signs = np.full(len(ids), np.nan)
        if contexts:
            rows = np.arange(chunk, len(ids)) // chunk - 1
            places = assigned(self.secret, ids[chunk:], self.parameters.dimension)
            signs[chunk:] = self.biases(contexts)[rows, places]
        return (signs + 1) / 2

    fit_libraries = (("torch", "transformers"),)

    @classmethod
    def check_fit(cls, texts: Iterable[str], *, passages: int = 2000, seed: int = 0, **_: object) -> None:
        """Check the texts and options of `fit`; raises AlimarkError."""
        passages_of(list(dict.fromkeys(texts)), passages, seed)

    @classmethod
    def fit(
        cls, texts: Iterable[str], embedder: Embedder, *, dimension: int = 300, passages: int = 2000, epochs: int = 60,
        seed: int = 0,
    ) -> Fitted:  # fmt: skip
        """Trains the network of `dimension` outputs on embeddings of at most so many passages of ordinary text."""
        read = list(dict.fromkeys(texts))
        chosen = passages_of(read, passages, seed)
        vectors = np.concatenate([embedder.embed(chosen[i : i + 64]) for i in range(0, len(chosen), 64)])
        arrays, losses = train(vectors, dimension, epochs, seed)
        digest = hashlib.sha256("\0".join(read).encode("utf-8", "surrogatepass")).hexdigest()
        origin = {
            "embedder": embedder.name, "fingerprint": embedder.fingerprint, "texts": len(read), "passages": len(chosen),
            "texts_sha256": digest, "epochs": epochs, "seed": seed, "losses": losses,
        }  # fmt: skip
        return Fitted(cls.scheme, arrays, origin)


def assigned(secret: _prf.Words, tokens: Ids, dimension: int) -> NDArray[np.int64]:
    """The index of the network's output that each token is assigned to."""
    return (_prf.hashed(secret, tokens) >> np.uint64(32)).astype(np.int64) * dimension >> 32


@dataclass(frozen=True)
class SIRNetwork:
    """The network of SIR: an input layer, residual blocks and an output layer. It runs on NumPy, once for each chunk."""

    layers: tuple[tuple[Float32s, Float32s], ...]

    @classmethod
    def of(cls, fitted: Fitted, dimension: int) -> SIRNetwork:
        """The network from learned data; raises KeyFileError if these are not a network with that many outputs."""
        names = ["in", *(f"block{i}" for i in range(BLOCKS)), "out"]
        broken = KeyFileError("the learned data are not a SIR network; train one: alimark fit sir")
        try:
            layers = tuple(
                (fitted.arrays[f"{name}.weight"].astype(np.float32), fitted.arrays[f"{name}.bias"].astype(np.float32))
                for name in names
            )
        except KeyError:
            raise broken from None
        if fitted.scheme != SIRParameters.scheme or any(w.ndim != 2 or b.shape != w.shape[:1] for w, b in layers):
            raise broken
        if len(layers[-1][1]) != dimension:
            raise KeyFileError(f"the network has {len(layers[-1][1])} outputs, but the key needs {dimension}")
        return cls(layers)

    def __call__(self, vectors: Float32s) -> Float32s:
        (first, bias), *blocks, (last, shift) = self.layers
        x = np.maximum(vectors @ first.T + bias, 0)
        for weight, offset in blocks:
            x = x + np.maximum(x @ weight.T + offset, 0)
        return np.asarray(x @ last.T + shift)

    def signs(self, vectors: Float32s) -> Float32s:
        """The outputs for some embeddings, each nearly +1 or -1."""
        return np.asarray(np.tanh(_SHARPNESS * self(vectors)))


class MeaningBias(AddedBias):
    """Adds delta times the sign of its output to the logit of every token; the signs change from chunk to chunk."""

    def __init__(self, mark: SIR, device: torch.device) -> None:
        super().__init__(mark.parameters.bias)
        self._mark, self._device = mark, device
        self._secret = _prf.on(device, mark.secret)
        self._signs: torch.Tensor | None = None

    def added(self, text_ids: torch.Tensor) -> Bias | None:
        import torch

        parameters, number = self._mark.parameters, text_ids.shape[1]
        if number < parameters.chunk:
            return None
        if number % parameters.chunk == 0:
            read = self._mark.tokenizer.text
            contexts = [read(ids).strip() for ids in text_ids[:, -parameters.window :].tolist()]
            self._signs = torch.from_numpy(self._mark.biases(contexts)).to(self._device)
        signs = self._signs
        assert signs is not None  # set at the first multiple of `chunk`

        def bias(tokens: torch.Tensor) -> torch.Tensor:
            # The same assignment as in `assigned`: the upper 32 bits, scaled to the dimension.
            upper = (_prf.torch_hashed(self._secret, tokens) >> 32) & 0xFFFFFFFF
            return parameters.delta * signs.gather(1, upper * parameters.dimension >> 32)

        return bias

    def keep(self, rows: torch.Tensor) -> None:
        self._signs = None if self._signs is None else self._signs[rows]


# Training


def passages_of(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Random passages of one to eight sentences from all texts; raises AlimarkError if they are too few to train on."""
    cut = splitter(DEFAULT_SPLITTER)
    random = np.random.default_rng(seed)
    each = math.ceil(count / max(1, len(texts)))
    runs: list[str] = []
    for text in texts:
        spans = cut.spans(text)
        for _ in range(each if spans else 0):
            start = int(random.integers(len(spans)))
            stop = min(len(spans), start + int(random.integers(1, 9)))
            runs.append(text[spans[start][0] : spans[stop - 1][1]])
    random.shuffle(runs)
    chosen = list(dict.fromkeys(runs))[:count]
    if len(chosen) < _LEAST_PASSAGES:
        raise AlimarkError(f"{len(chosen)} passages are too few to train on; give at least {_LEAST_PASSAGES}")
    return chosen


def train(
    vectors: Float32s, dimension: int, epochs: int, seed: int, *, rate: float = 1e-3
) -> tuple[dict[str, Float32s], dict[str, float]]:
    """Trains the network; returns its arrays and its final losses."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "transformers") from None
    order = torch.Generator().manual_seed(seed)
    data = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    middle = mean_cosine(data)
    parts = _initial(vectors.shape[1], dimension, order)
    optimiser = torch.optim.Adam(parts.values(), lr=rate)
    similarity = normalisation = torch.zeros(())
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=order).split(_BATCH):  # type: ignore[no-untyped-call]
            if len(rows) < 2:
                continue
            outputs = _forward(parts, data[rows])
            similarity, normalisation = similarity_loss(outputs, data[rows], middle), normalisation_loss(outputs)
            # Lambda 1 and 2 of the paper are 1, for losses that are means here and sums there. With a much larger first one the
            # network gives the same output for all texts.
            loss = similarity + normalisation
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    arrays = {name: part.detach().numpy().copy() for name, part in parts.items()}
    return arrays, {"similarity": float(similarity.detach()), "normalisation": float(normalisation.detach())}


def _initial(inputs: int, outputs: int, order: torch.Generator) -> dict[str, torch.Tensor]:
    import torch

    shapes = {"in": (_HIDDEN, inputs), **{f"block{i}": (_HIDDEN, _HIDDEN) for i in range(BLOCKS)}}
    parts = {}
    for name, (rows, columns) in {**shapes, "out": (outputs, _HIDDEN)}.items():
        weight = torch.randn((rows, columns), generator=order) * math.sqrt(1 / columns)
        parts[f"{name}.weight"] = weight.requires_grad_()
        parts[f"{name}.bias"] = torch.zeros(rows).requires_grad_()
    return parts


def _forward(parts: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = (x @ parts["in.weight"].T + parts["in.bias"]).relu()
    for i in range(BLOCKS):
        x = x + (x @ parts[f"block{i}.weight"].T + parts[f"block{i}.bias"]).relu()
    return x @ parts["out.weight"].T + parts["out.bias"]


def _cosines(rows: torch.Tensor) -> torch.Tensor:
    import torch.nn.functional as F

    unit = F.normalize(rows, dim=1)
    return unit @ unit.T


def mean_cosine(vectors: torch.Tensor) -> torch.Tensor:
    """The mean cosine over all pairs, including each vector with itself, as in the paper."""
    return _cosines(vectors).mean()


def similarity_loss(outputs: torch.Tensor, vectors: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """The mean difference between the cosines of outputs and those of embeddings, stretched about their mean."""
    import torch

    return (_cosines(outputs) - torch.tanh(_STRETCH * (_cosines(vectors) - middle))).abs().mean()


def normalisation_loss(outputs: torch.Tensor) -> torch.Tensor:
    """The imbalance of outputs over each text and over each number, plus their mean distance from 1 or -1."""
    over_numbers = outputs.mean(dim=1).abs().mean()
    over_texts = outputs.mean(dim=0).abs().mean()
    return over_numbers + over_texts + (1 - outputs.abs()).abs().mean()
