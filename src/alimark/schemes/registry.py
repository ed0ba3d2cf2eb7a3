"""The rivals, one file a method, behind the same `Watermark` protocol as AliMark.

A scheme is a class of watermarks that also says what its keys hold: `Parameters`, a frozen dataclass whose defaults are those
of the method's own paper and which refuses what makes no sense; `presets`, of which "paper" is what the AliMark paper ran it
with; and whether a key names an embedder or holds something learned from text. Modules are imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from alimark.errors import KeyFileError

if TYPE_CHECKING:
    from alimark.generation.rules import Rule
    from alimark.keys.fitted import Fitted
    from alimark.keys.key import Key

_HOME = {
    "kgw": "kgw.KGW",
    "exp": "exp.EXP",
    "synthid": "synthid.SynthID",
    "sir": "sir.SIR",
    "semstamp": "semstamp.SemStamp",
    "k-semstamp": "k_semstamp.KSemStamp",
    "simmark": "simmark.SimMark",
    "pmark": "pmark.PMark",
}
"""Where each scheme is: its module here, and the class."""


def names() -> tuple[str, ...]:
    """All schemes, AliMark first."""
    return ("alimark", *_HOME)


class Scheme(Protocol):
    """What a class of watermarks says of its keys."""

    scheme: ClassVar[str]
    Parameters: ClassVar[type[Any]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Parameters under a name, in place of the defaults."""
    embeds: ClassVar[bool]
    """Whether its keys name a sentence embedder."""
    candidates: ClassVar[int]
    """Draws for each sentence, at most, where nothing else is asked for."""

    @classmethod
    def check_fitted(cls, parameters: Any, fitted: Fitted | None) -> None:
        """Raises KeyFileError where a key with these parameters needs something else learned from text."""
        ...


def scheme(name: str) -> type[Scheme]:
    """The class behind a name; AliMark is not among them."""
    if name not in _HOME:
        raise KeyFileError(f"scheme {name!r} is not known to this release; known: {', '.join(names())}")
    module, _, attribute = _HOME[name].partition(".")
    found: type[Scheme] = getattr(import_module(f"alimark.schemes.{module}"), attribute)
    return found


def asks_llm(key: Key) -> bool:
    """Whether detection is only whole with the model that wrote the text, as where PMark samples its medians."""
    asks = None if key.scheme == "alimark" else getattr(scheme(key.scheme), "asks_llm", None)
    return bool(asks is not None and asks(key))


def sentence_rule(key: Key) -> Rule:
    """What a sentence-level scheme adds to the loop that writes."""
    kind: Any = scheme(key.scheme)
    if not hasattr(kind, "rule"):
        raise KeyFileError(f"{key.scheme} marks tokens, not sentences; write with alimark.load(key).generate")
    found: Rule = kind.rule(key)
    return found


def parameters(name: str, given: Mapping[str, Any], preset: str | None = None) -> dict[str, Any]:
    """All parameters of a key: those given, then those of the preset, then the method's own defaults."""
    kind = scheme(name)
    if preset is not None and preset not in kind.presets:
        raise KeyFileError(f"{name} has no preset {preset!r}; known: {', '.join(kind.presets) or 'none'}")
    known = {one.name: one.default for one in fields(kind.Parameters)}
    wanted = {**(kind.presets[preset] if preset else {}), **given}
    if unknown := sorted(set(wanted) - set(known)):
        raise KeyFileError(f"{name} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}")
    made = kind.Parameters(**{one: _like(known[one], value, one) for one, value in wanted.items()})
    return asdict(made)


def _like(default: Any, value: Any, name: str) -> Any:
    """The value as the kind of thing that the default is: JSON and TOML know lists, not tuples, and 1 may mean 1.0."""
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(_like(default[0], one, name) if default else one for one in value)
    if type(value) in (int, float) and math.isfinite(value) and isinstance(default, float):
        return float(value)
    if default is None or (type(value) is type(default) and not isinstance(value, float)):
        return value
    raise KeyFileError(f"{name} must be {_KINDS.get(type(default), 'another kind of thing')}, not {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list"}
