"""Functions for keys of any scheme: load the watermark of a key, generate, and detect under many keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from alimark.core.detection.results import Detection, best_first
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys, draws_for_keys
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Key
from alimark.core.llm import as_llm
from alimark.core.schemes.base import Watermark, check_key, detection_settings, texts_of
from alimark.core.schemes.registry import scheme
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from alimark.core.detection.settings import DetectionOptions
    from alimark.core.generation.api import Finished, GenerationSettings, ManyProgress, Prompt
    from alimark.core.llm import SomeLLM
    from alimark.core.llm.base import LLM


def load(key: Key, *, embedder: Embedder | str | None = None) -> Watermark:
    """Returns the watermark of the scheme that a key names.

    Args:
        key: A key of any scheme.
        embedder: The embedder that the key names, or its name; it is loaded on first use where it is not given.

    Returns:
        An object that marks and detects under the key.

    Raises:
        KeyMismatch: The embedder is not the one that the key was made for.
        KeyFileError: The package that adds the scheme cannot be loaded.

    Example:
        >>> from alimark.testing import StandInEmbedder
        >>> embedder = StandInEmbedder()
        >>> load(Key.generate(scheme="pmark", embedder=embedder), embedder=embedder).scheme
        'pmark'
    """
    return scheme(check_key(key).scheme)(key, embedder=embedder)


def generate_many(
    mark: Watermark | None,
    prompts: Iterable[Prompt],
    llm: LLM,
    settings: GenerationSettings,
    *,
    batch: int | None = None,
    progress: ManyProgress | None = None,
) -> Finished:
    """Generates a text after each prompt, unmarked where `mark` is None, and yields the texts as they are finished."""
    from alimark.core.generation.api import generate_many

    if mark is None:
        return generate_many(prompts, None, None, llm, settings, batch=batch, progress=progress)
    return mark.generate_many(prompts, llm, settings, batch=batch, progress=progress)


def detect(
    text: str,
    keys: Sequence[Key] | Key,
    *,
    embedder: Embedder | str | None = None,
    best: int = 3,
    settings: RandomKeys | None = None,
    llm: SomeLLM | None = None,
    **options: Unpack[DetectionOptions],
) -> list[Detection]:
    """Finds out which of several keys a text was generated with.

    Args:
        text: The text.
        keys: The keys to try, of one scheme or several; or one key.
        embedder: The embedder that the keys name, or its name; it is loaded where it is not given.
        best: The most detections that are returned.
        settings: The settings of the detection; by default those of the scheme.
        llm: The chat model that AliMark's learned restructuring asks, or the model that PMark samples; or its name.
        **options: Fields of the settings that differ, such as `draws=10_000`.

    Returns:
        A detection for each of the best keys, best first, with p-values corrected for the number of keys tried.

    Raises:
        AlimarkError: No keys were given, or an option is not known.
        TextError: The text holds no sentence.

    Example:
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> keys = [Key.generate(embedder=embedder, secret=bytes([i]) * 32) for i in range(3)]
        >>> text = load(keys[1], embedder=embedder).generate("It was late.", StandInLLM(), sentences=12, seed=1).text
        >>> answers = detect(text, keys, embedder=embedder)
        >>> answers[0].key_id == keys[1].id, str(answers[0].verdict())
        (True, 'found')
    """
    if not keys:
        raise AlimarkError("no keys were given; give at least one")
    [text], keys = texts_of(text), [check_key(key) for key in ([keys] if isinstance(keys, Key | str) else keys)]
    llm = None if llm is None else as_llm(llm)
    embedder = load_embedder(embedder) if isinstance(embedder, str) else embedder
    from alimark.core.detection.preparing import alike

    detections: list[Detection] = []
    for group in alike(keys):
        # An embedder that is given serves the keys that name it; keys of other embedders load theirs.
        serves = embedder is None or group[0].fingerprint in ("", embedder.fingerprint, keys[0].fingerprint)
        mark = load(group[0], embedder=embedder if serves else None)
        # Settings that the keys of all schemes share leave AliMark's own search at its defaults.
        shared = DetectionSettings.of(settings) if settings is not None and mark.aligns else settings
        chosen = detection_settings(mark.scheme, mark.settings, shared, {**options})
        # 200 random keys for each key with the usual 1000 draws, and more in proportion where a stricter rate asked for more.
        chosen = replace(chosen, draws=draws_for_keys(chosen.draws, len(keys)))
        detections += _detect_group(mark, text, group, chosen, best, len(keys), llm)
    return best_first(detections)[:best]


def _detect_group(
    mark: Watermark, text: str, keys: Sequence[Key], settings: RandomKeys, best: int, tried: int, llm: LLM | None
) -> Sequence[Detection]:
    """The detections under the best keys of a group that can share one embedding; `tried` is the number of all keys."""
    from alimark.core.detection.pipeline import detect_batch

    answer: Sequence[Detection] | AlimarkError
    if isinstance(settings, DetectionSettings):
        [answer] = detect_batch([text], keys, mark.embedder, settings, best=best, tried=tried, llm=llm)
    else:
        [alone] = mark.detect_batch([text], settings, llm=llm)
        answer = alone if isinstance(alone, AlimarkError) else [alone.corrected(tried)]
    if isinstance(answer, AlimarkError):
        raise answer
    return answer
