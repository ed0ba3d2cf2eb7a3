"""The registry of schemes: watermark classes by name, AliMark and its rivals alike.

A class is imported when its name is asked for. A package adds a scheme by an entry point of the group `alimark.schemes` that
names a class with the interface `alimark.Watermark`; its attribute `Parameters` says what its keys hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alimark._util.registry import Registry
from alimark.errors import KeyFileError
from alimark.parameters import known_schemes, parameters_class

if TYPE_CHECKING:
    from alimark.generation.selection import Rule
    from alimark.generation.settings import GenerationSettings
    from alimark.keys.key import Key
    from alimark.schemes.base import Watermark

_REGISTRY: Registry[type[Watermark]] = Registry(
    "scheme",
    "alimark.schemes",
    {
        "alimark": "alimark.schemes.alimark:AliMark",
        "kgw": "alimark.schemes.kgw:KGW",
        "exp": "alimark.schemes.exp:EXP",
        "synthid": "alimark.schemes.synthid:SynthID",
        "sir": "alimark.schemes.sir:SIR",
        "semstamp": "alimark.schemes.semstamp:SemStamp",
        "k-semstamp": "alimark.schemes.k_semstamp:KSemStamp",
        "simmark": "alimark.schemes.simmark:SimMark",
        "pmark": "alimark.schemes.pmark:PMark",
    },
    error=KeyFileError,
)


def names() -> tuple[str, ...]:
    """All schemes, AliMark first."""
    return known_schemes()


def scheme(name: str) -> type[Watermark]:
    """The watermark class of a scheme; raises KeyFileError where the name is not known."""
    parameters_class(name)  # its messages tell more
    return _REGISTRY.get(name)


def aligns(name: str) -> bool:
    """Whether a scheme's detection aligns sentences with blocks, as AliMark's does (`Watermark.aligns`)."""
    return bool(getattr(scheme(name), "aligns", False))


def asks_llm(key: Key) -> bool:
    """Whether detection is only complete with the model that wrote the text, as where PMark samples its medians."""
    return scheme(key.scheme).asks_llm(key)


def rule_for(key: Key, settings: GenerationSettings, text_id: str) -> Rule:
    """The selection rule of one text under a key of any sentence-level scheme (a `generation.selection.RuleFactory`)."""
    watermark: Any = scheme(key.scheme)
    if not hasattr(watermark, "sentence_rule"):
        raise KeyFileError(f"{key.scheme} marks tokens, not sentences; write with alimark.load(key).generate")
    rule: Rule = watermark.sentence_rule(key, settings, text_id)
    return rule
