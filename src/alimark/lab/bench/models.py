"""The models, keys and detection settings that a recipe names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alimark.core._util.jsonl import Record
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import DEFAULT_EMBEDDER, Key
from alimark.core.llm import load_llm
from alimark.core.llm.base import LLM
from alimark.core.parameters import parameters_class
from alimark.core.schemes.registry import scheme
from alimark.errors import AlimarkError, KeyFileError
from alimark.lab.bench.recipe import DetectionRow, Recipe, WatermarkRow, detection_options
from alimark.lab.bench.workspace import digest
from alimark.lab.learning import called, check_options

LEARNED = "learned:"
"""Start of a row's `fitted` that the run makes itself: the name of a file in the folder `fitted` of the workspace."""

_LEAST_TEXTS = 20


@dataclass(frozen=True)
class Lesson:
    """What a run learns from text before it writes: the scheme, the embedder of its keys, the options and the texts."""

    scheme: str
    embedder: str
    options: dict[str, Any]
    texts: Sequence[str] = field(repr=False)

    @property
    def file(self) -> str:
        """The name of the file, which depends on everything that is learned from."""
        content = digest({"embedder": self.embedder, "options": self.options, "texts": list(self.texts)})
        return f"{self.scheme}-{content}.npz"

    def check(self) -> None:
        """Check the options, that there are enough texts, and what the scheme asks of them; raises AlimarkError if not."""
        kind: Any = scheme(self.scheme)
        check_options(self.scheme, kind.fit, self.options)
        if len(self.texts) < _LEAST_TEXTS:
            raise AlimarkError(
                f"{self.scheme} learns from texts that are not scored, and only {len(self.texts)} are left; name other data "
                f"sets of at least {_LEAST_TEXTS} texts ([fit] sets), or score fewer human texts (data.human_texts)"
            )
        if hasattr(kind, "check_fit"):
            called(self.scheme, kind.check_fit, self.options, self.texts)

    def learn(self, models: Models) -> Fitted:
        """Learn what the keys of the scheme need; raises AlimarkError if `check` does, or if a library is missing."""
        self.check()
        kind: Any = scheme(self.scheme)
        fitted: Fitted = called(self.scheme, kind.fit, self.options, self.texts, models.embedder(self.embedder))
        return fitted


def learns(watermark: WatermarkRow) -> bool:
    """Whether keys of the watermark need data that are learned from text, and the recipe names no file of them."""
    if "fitted" in watermark.key or not hasattr(scheme(watermark.scheme), "fit"):
        return False
    try:
        watermark.parameters().check_fitted(None)
    except KeyFileError:
        return True
    return False


class Models:
    """Loads models by name and keeps them: every embedder, but only the last language model."""

    folder = Path()  # the folder of the run, where learned data are
    device: str | None = None  # the device of embedders; by default the CPU

    def __init__(self) -> None:
        self._llms: dict[str, LLM] = {}
        self._embedders: dict[str, Embedder] = {}
        self._fitted: dict[str, Fitted] = {}

    def fitted(self, path: str) -> Fitted:
        """The parameters that a rival scheme fitted to text, from a file of `alimark fit` or of the run."""
        if path not in self._fitted:
            learned = path.startswith(LEARNED)
            self._fitted[path] = Fitted.load(self.learned_file(path.removeprefix(LEARNED)) if learned else path)
        return self._fitted[path]

    def learned_file(self, name: str) -> Path:
        """The path of a file that the run learns."""
        return self.folder / "fitted" / name

    def llm(self, name: str, options: Record | None = None) -> LLM:
        cache_key = digest({"name": name, "options": options or {}})
        if cache_key not in self._llms:
            self._llms.clear()  # two language models may not fit into memory
            self._llms[cache_key] = load_llm(name, **(options or {}))
        return self._llms[cache_key]

    def embedder(self, name: str) -> Embedder:
        if name not in self._embedders:
            self._embedders[name] = load_embedder(name, device=self.device)
        return self._embedders[name]


def secret(seed: int, text: str, number: int = 0) -> bytes:
    """The secret of a text's key, the same in every run. It can be computed by anyone: use it for experiments only."""
    return hashlib.sha256(f"alimark/bench/key/{seed}/{number}/{text}".encode("utf-8", "surrogatepass")).digest()


def key_for(watermark: WatermarkRow, secret_bytes: bytes, models: Models) -> Key:
    """The key with this secret and the public parameters of a recipe's watermark.

    Where the watermark has payloads, the key carries one that follows from its secret.
    """
    public: dict[str, Any] = {**watermark.key, "embedder": embedder_for(watermark, models)}
    if "fitted" in public:
        public["fitted"] = models.fitted(str(public["fitted"]))
    key = Key.generate(secret=secret_bytes, scheme=watermark.scheme, **public)
    number = int.from_bytes(key.stream("bench payload", 4), "big")
    return key.carrying(number % key.payload_code.count) if key.payload_bits else key


def embedder_for(watermark: WatermarkRow, models: Models) -> Embedder | None:
    """The embedder of a watermark's keys; None if the scheme does not embed."""
    return models.embedder(embedder_name(watermark)) if parameters_class(watermark.scheme).embeds else None


def embedder_name(watermark: WatermarkRow) -> str:
    """The name of the embedder of a watermark's keys, for schemes that embed."""
    return str(watermark.key.get("embedder", DEFAULT_EMBEDDER))


def diversity_embedder(recipe: Recipe) -> str:
    """The name of the embedder that measures the diversity of answers, the same for all watermarks and unmarked texts."""
    return recipe.embedder or recipe.meaning or DEFAULT_EMBEDDER


def settings_for(watermark: WatermarkRow, detection: DetectionRow) -> RandomKeys:
    """The detection settings of a scheme: the recipe's detection options that this scheme has."""
    kind = scheme(watermark.scheme).settings
    known, options = kind.__dataclass_fields__, detection_options(detection)
    settings: RandomKeys = kind(**{name: value for name, value in options.items() if name in known})
    return settings
