"""AliMark: its watermark class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from alimark.detection.pipeline import detect_batch, units_of
from alimark.detection.results import AlignedDetection
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import RandomKeys
from alimark.errors import AlimarkError
from alimark.schemes.base import SentenceWatermark, check_names, in_order

if TYPE_CHECKING:
    from alimark.llm.base import LLM
    from alimark.rewriting.api import Rewriting


class AliMark(SentenceWatermark[AlignedDetection]):
    """Marks and detects under one key of AliMark."""

    scheme = "alimark"
    settings: ClassVar[type[RandomKeys]] = DetectionSettings

    @overload
    def rewrite(self, text: str, llm: LLM, *, seed: int | None = ..., **options: Any) -> Rewriting: ...

    @overload
    def rewrite(self, text: list[str], llm: LLM, *, seed: int | None = ..., **options: Any) -> list[Rewriting]: ...

    def rewrite(
        self, text: str | list[str], llm: LLM, *, seed: int | None = None, **options: Any
    ) -> Rewriting | list[Rewriting]:
        """Marks a text that exists, or each of several, by a chat model's rewrites of its sentences.

        Options are the fields of RewriteSettings. The i-th of several texts has the seed `seed + i`.
        """
        from alimark.rewriting.api import Original, RewriteSettings, rewrite, rewrite_many

        check_names("rewriting", options, RewriteSettings)
        settings = RewriteSettings(**options)
        if isinstance(text, str):
            return rewrite(text, self.key, self.embedder, llm, settings, seed=seed)
        originals = [Original(one, None if seed is None else seed + i) for i, one in enumerate(text)]
        return in_order(rewrite_many(originals, self.key, self.embedder, llm, settings))

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[AlignedDetection | AlimarkError]:
        return detect_batch(texts, self.key, self.embedder, DetectionSettings.of(settings), llm=llm, times=times)

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        return units_of(texts, self.key, self.embedder, DetectionSettings.of(settings))
