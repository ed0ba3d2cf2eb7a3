"""AliMark: chooses each sentence by how well its projections agree with a block of the key's bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, Unpack, overload

from alimark.core._util.progress import Line
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.preparing import prepare
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.core.keys.key import Key
from alimark.core.llm import as_llm
from alimark.core.parameters import SchemeParameters
from alimark.core.schemes._block_rules import AdaptiveBlockRule, BlockRule
from alimark.core.schemes.base import SentenceWatermark, check_names, in_order, texts_of
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.generation.selection import TextOrigin
    from alimark.core.generation.settings import GenerationSettings, Strength
    from alimark.core.llm import SomeLLM
    from alimark.core.llm.base import LLM
    from alimark.core.rewriting.api import RewriteOptions, Rewriting

    class _RewriteOptions(RewriteOptions, total=False):
        seed: int | None
        strength: Strength | None
        payload: int | None


class AliMark(SentenceWatermark[AlignedDetection]):
    """Generates and detects text marked under one AliMark key.

    Args:
        key: A key of the scheme `alimark`.
        embedder: The embedder that the key names, or its name; by default it is loaded on first use.

    Raises:
        KeyMismatch: The key is of another scheme, or names another embedder.

    Example:
        >>> from alimark import AliMark, Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> mark = AliMark(Key.generate(embedder=embedder, secret=bytes(range(32))), embedder=embedder)
        >>> generation = mark.generate("It was late.", StandInLLM(), sentences=12, candidates=16, seed=1)
        >>> str(mark.detect(generation.text).verdict())
        'found'
    """

    scheme = "alimark"
    Parameters: ClassVar[type[SchemeParameters]] = AliMarkParameters
    aligns = True
    settings: ClassVar[type[RandomKeys]] = DetectionSettings

    @classmethod
    def sentence_rule(cls, key: Key, settings: GenerationSettings, origin: TextOrigin) -> BlockRule:
        rule = AdaptiveBlockRule if AdaptiveBlockRule.pays(key, settings) else BlockRule
        return rule(key, settings, origin)

    def steerable(self, llm: LLM) -> bool:
        from alimark.core.generation.steering import steerable

        return self.key.soft and steerable(llm, self.key)

    @overload
    def rewrite(self, text: str, llm: SomeLLM, **options: Unpack[_RewriteOptions]) -> Rewriting: ...

    @overload
    def rewrite(self, text: list[str], llm: SomeLLM, **options: Unpack[_RewriteOptions]) -> list[Rewriting]: ...

    def rewrite(
        self,
        text: str | list[str],
        llm: SomeLLM,
        *,
        seed: int | None = None,
        strength: Strength | None = None,
        payload: int | None = None,
        **options: Unpack[RewriteOptions],
    ) -> Rewriting | list[Rewriting]:
        """Marks an existing text, or each of several: a chat model rewrites its sentences, and the key chooses the rewrites.

        Args:
            text: The text to mark; a list for several texts.
            llm: A chat model, or its name.
            seed: Makes the result repeatable. The i-th of several texts gets the seed `seed + i`.
            strength: `light`, `standard` or `strong`: a name for a number of rewrites, instead of `candidates`.
            payload: The number that the mark carries, for a key with payloads (docs/payload.md); by default that of the key.
            **options: The fields of `RewriteSettings`, such as `candidates=32`.

        Returns:
            The rewriting, or for a list of texts the list of rewritings in the same order.

        Raises:
            AlimarkError: An option is unknown, a text has no sentence, or the model fails.
        """
        from alimark.core.generation.settings import candidates_for
        from alimark.core.rewriting.api import Original, RewriteSettings, rewrite_many

        check_names("rewriting", options, [field.name for field in fields(RewriteSettings)])
        if strength is not None:
            options["candidates"] = candidates_for(strength, options.get("candidates"))
        originals = [Original(each, None if seed is None else seed + i) for i, each in enumerate(texts_of(text))]
        key, settings, llm = self.key.carrying(payload), RewriteSettings(**options), as_llm(llm)
        done: dict[int, tuple[int, int]] = {}
        with Line("rewriting", 1) as line:

            def step(number: int, sentences: int, total: int) -> None:
                done[number] = sentences, total
                line.at(*map(sum, zip(*done.values(), strict=True)))

            rewritings = in_order(rewrite_many(originals, key, self.embedder, llm, settings, progress=step))
        return rewritings[0] if isinstance(text, str) else rewritings

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[AlignedDetection | AlimarkError]:
        chosen = DetectionSettings.of(settings)
        answers = detect_batch(texts, [self.key], self.embedder, chosen, llm=llm, times=times)
        return [answer if isinstance(answer, AlimarkError) else answer[0] for answer in answers]

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        chosen = DetectionSettings.of(settings)
        for text in texts:
            with suppress(AlimarkError):  # a text that cannot be searched embeds nothing
                yield from prepare(text, self.key, self.embedder, chosen).unit_texts
