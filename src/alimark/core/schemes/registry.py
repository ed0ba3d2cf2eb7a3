"""What the schemes are asked: their watermark classes, what they can do, and their rules of selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alimark.core.parameters import SCHEMES
from alimark.core.parameters import watermark_class as scheme
from alimark.errors import KeyFileError

if TYPE_CHECKING:
    from alimark.core.generation.selection import Rule, RuleFactory, TextOrigin
    from alimark.core.generation.settings import GenerationSettings
    from alimark.core.keys.key import Key

__all__ = ["SCHEMES", "aligns", "asks_llm", "rule_for", "scheme"]


def aligns(name: str) -> bool:
    """Whether a scheme's detection aligns sentences with blocks, as AliMark's does (`Watermark.aligns`)."""
    return bool(getattr(scheme(name), "aligns", False))


def asks_llm(key: Key) -> bool:
    """Whether detection under a key asks the model that wrote the text, as PMark does for sampled medians."""
    return scheme(key.scheme).asks_llm(key)


def rule_for(key: Key, settings: GenerationSettings, origin: TextOrigin) -> Rule:
    """Makes the selection rule of one text under a key of any sentence-level scheme (a `generation.selection.RuleFactory`)."""
    make_rule: RuleFactory | None = getattr(scheme(key.scheme), "sentence_rule", None)
    if make_rule is None:
        raise KeyFileError(
            f"{key.scheme} does not choose among sentences; generate text with alimark.load(key).generate"
        )
    return make_rule(key, settings, origin)
