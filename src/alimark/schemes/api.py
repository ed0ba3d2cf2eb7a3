"""The watermark of a key, and detection under many keys of any scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from alimark.detection.results import Detection
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import MAX_DRAWS, RandomKeys
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.schemes.alimark import AliMark
from alimark.schemes.base import Watermark, detection_settings

if TYPE_CHECKING:
    from alimark.llm.base import LLM


def load(key: Key, *, embedder: Embedder | None = None) -> Watermark:
    """The watermark of the scheme that a key names."""
    if key.scheme == "alimark":
        return AliMark(key, embedder=embedder)
    from alimark.schemes.registry import scheme

    kind: Any = scheme(key.scheme)
    return cast(Watermark, kind(key, embedder=embedder))


def detect(
    text: str,
    keys: Sequence[Key],
    *,
    embedder: Embedder | None = None,
    best: int = 3,
    settings: RandomKeys | None = None,
    llm: LLM | None = None,
    **options: Any,
) -> list[Any]:
    """Whose key it was: the best few of `keys`, best first, p-values corrected for the number of keys tried."""
    if not keys:
        raise AlimarkError("no keys were given")
    if any(key.scheme != "alimark" for key in keys):
        return _detect_each(text, keys, embedder, best, settings, options)
    chosen = DetectionSettings.of(detection_settings(AliMark(keys[0]), settings, options))
    from alimark.detection.many_keys import detect_keys

    return detect_keys(text, keys, embedder or AliMark(keys[0]).embedder, chosen, best=best, llm=llm)


def _detect_each(
    text: str, keys: Sequence[Key], embedder: Embedder | None, best: int, settings: Any, options: dict[str, Any]
) -> list[Detection]:
    """Keys of rivals, or of several schemes: each is asked, with as many random keys as it takes to tell them apart."""
    found: list[Detection] = []
    for key in keys:
        mark = load(key, embedder=embedder)
        chosen = detection_settings(mark, settings, options)
        chosen = replace(chosen, draws=min(MAX_DRAWS, max(chosen.draws, chosen.draws * len(keys) // 5)))
        [answer] = mark.detect_batch([text], chosen)
        if isinstance(answer, AlimarkError):
            raise answer
        found.append(answer.corrected(len(keys)))
    return sorted(found, key=lambda one: (one.p_value, -one.score))[:best]
