"""The registry of schemes: the watermark class of each scheme by its name.

A class is imported on first use. A package adds a scheme by an entry point of the group `alimark.schemes` that
names a class with the interface `alimark.Watermark`; its attribute `Parameters` is the class of its key parameters.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from alimark.core._util.registry import Registry
from alimark.core.parameters import known_schemes, parameters_class, scheme_flaw
from alimark.errors import KeyFileError

if TYPE_CHECKING:
    from alimark.core.generation.origin import TextOrigin
    from alimark.core.generation.selection import Rule, RuleFactory
    from alimark.core.generation.settings import GenerationSettings
    from alimark.core.keys.key import Key
    from alimark.core.schemes.watermark import Watermark

_METHODS = ("generate_many", "detect_batch", "asks_llm")
"""Methods that every watermark class has; a class that lacks them is none."""


def _flaw(item: object) -> str:
    missing = [method for method in _METHODS if not hasattr(item, method)]
    return scheme_flaw(item) or (f"is not a watermark class: it has no {', '.join(missing)}" if missing else "")


SCHEMES: Registry[type[Watermark]] = Registry(
    "scheme",
    "alimark.schemes",
    {
        "alimark": "alimark.core.schemes.alimark:AliMark",
        "kgw": "alimark.lab.rivals.kgw:KGW",
        "exp": "alimark.lab.rivals.exp:EXP",
        "synthid": "alimark.lab.rivals.synthid:SynthID",
        "sir": "alimark.lab.rivals.sir:SIR",
        "semstamp": "alimark.lab.rivals.semstamp:SemStamp",
        "k-semstamp": "alimark.lab.rivals.k_semstamp:KSemStamp",
        "simmark": "alimark.lab.rivals.simmark:SimMark",
        "pmark": "alimark.lab.rivals.pmark:PMark",
        "samark": "alimark.lab.rivals.samark:SAMark",
    },
    error=KeyFileError,
    flaw=_flaw,
)
"""Watermark classes by name. Packages add more by entry points of the group `alimark.schemes`."""


def names() -> tuple[str, ...]:
    """The names of all schemes, AliMark first."""
    return known_schemes()


def scheme(name: str) -> type[Watermark]:
    """The watermark class of a scheme; raises KeyFileError if there is no such scheme."""
    parameters_class(name)  # its error messages are more specific
    return SCHEMES.get(name)


def aligns(name: str) -> bool:
    """Whether a scheme's detection aligns sentences with blocks, as AliMark's does (`Watermark.aligns`)."""
    return bool(getattr(scheme(name), "aligns", False))


def asks_llm(key: Key) -> bool:
    """Whether detection under a key asks the model that wrote the text, as PMark does for sampled medians."""
    return scheme(key.scheme).asks_llm(key)


def fit_options(kind: type[Watermark]) -> list[str]:
    """The names of the options that the class method `fit` of a watermark class takes; empty if it has none."""
    fit = getattr(kind, "fit", None)
    parameters = signature(fit).parameters.values() if fit else ()
    return [item.name for item in parameters if item.kind == item.KEYWORD_ONLY]


def rule_for(key: Key, settings: GenerationSettings, origin: TextOrigin) -> Rule:
    """Makes the selection rule of one text under a key of any sentence-level scheme (a `generation.selection.RuleFactory`)."""
    make_rule: RuleFactory | None = getattr(scheme(key.scheme), "sentence_rule", None)
    if make_rule is None:
        raise KeyFileError(
            f"{key.scheme} does not choose among sentences; generate text with alimark.load(key).generate"
        )
    return make_rule(key, settings, origin)
