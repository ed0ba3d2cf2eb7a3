"""The public parameters of keys: the base class of the parameter classes, and the registry of schemes that they belong to.

Each scheme is a watermark class, whose attribute `Parameters` is the class of its key parameters. A class is imported on first
use. A package adds a scheme by an entry point of the group `alimark.schemes` that names its watermark class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, cast

from alimark.core._util.json_types import JsonObject
from alimark.core._util.registry import Registry
from alimark.errors import KeyFileError

if TYPE_CHECKING:
    from alimark.core.keys.fitted import Fitted
    from alimark.core.schemes.base import Watermark

Presets: TypeAlias = Mapping[str, Mapping[str, object]]  # named sets of parameters


@dataclass(frozen=True)
class SchemeParameters:
    """The public parameters of a scheme's keys.

    A scheme is a frozen dataclass that adds its fields, with the defaults of its paper, and raises KeyFileError in
    `__post_init__` for invalid values. `dict(parameters)` and `parameters["name"]` also work.
    """

    scheme: ClassVar[str]
    """The scheme's name in key files and records."""
    presets: ClassVar[Presets] = MappingProxyType({})
    """Named sets of parameters that replace the defaults; "paper" has those of the experiments in the AliMark paper."""
    embeds: ClassVar[bool] = False
    """Whether a key names a sentence embedder."""
    earlier: ClassVar[Mapping[str, object]] = MappingProxyType({})
    """Parameters that were added after a release, with the values that keep what that release did. Key files do not hold
    them at these values, so that key files of that release and the ids of their keys stay the same."""

    @classmethod
    def of(
        cls,
        given: Mapping[str, object],
        *,
        preset: str | None = None,
        fingerprint: str = "",
        fitted: Fitted | None = None,
    ) -> Self:
        """Makes the parameters from those given, those of a preset and the defaults, in this order of precedence.

        Some defaults depend on the fingerprint of the key's embedder, or on the data that the scheme learned from text
        (`fitted`). Raises KeyFileError where a name is unknown or a value invalid.
        """
        defaults = {field.name: field.default for field in fields(cls)}
        wanted = {**cls._preset(preset), **given}
        cls.check_names(wanted)
        return cls(**{name: _converted(defaults[name], value, name) for name, value in wanted.items()})

    @classmethod
    def parse(cls, stored: JsonObject) -> Self:
        """Reads the parameters of a key file. Those that an earlier release did not have get the values of `earlier`."""
        return cls.of({**cls.earlier, **stored})

    @classmethod
    def _preset(cls, preset: str | None) -> Mapping[str, object]:
        if preset is None:
            return {}
        if preset not in cls.presets:
            raise KeyFileError(f"{cls.scheme} has no preset {preset!r}; known: {', '.join(cls.presets) or 'none'}")
        return cls.presets[preset]

    def check_choice(self, name: str, *choices: str) -> None:
        """Checks that a parameter has one of its possible values; raises KeyFileError if not."""
        if self[name] not in choices:
            raise KeyFileError(f"{name} must be one of {', '.join(choices)}, not {self[name]!r}")

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Checks that all names are parameters of the scheme; raises KeyFileError if not."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(names) - set(known)):
            raise KeyFileError(
                f"{cls.scheme} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}"
            )

    def check(self, embedder: str, fingerprint: str, fitted: Fitted | None) -> None:
        """Checks that a key with these parameters can have this embedder and this learned data; raises KeyFileError if not."""
        if self.embeds != bool(embedder.strip()):
            raise KeyFileError(f"a {self.scheme} key must name {'an' if self.embeds else 'no'} embedder")
        if fitted is not None and fitted.scheme != self.scheme:
            raise KeyFileError(
                f"data learned for {fitted.scheme} cannot be used for {self.scheme}; learn them: alimark fit {self.scheme}"
            )
        if fitted is not None and embedder and fitted.origin.get("fingerprint") != fingerprint:
            raise KeyFileError(
                f"the learned data were learned with the embedder {fitted.origin.get('embedder')}, not {embedder}; learn them "
                "with the embedder of the key: alimark fit"
            )
        self.check_fitted(fitted)

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks the data that the scheme learned from text; raises KeyFileError if they are missing or do not fit."""
        if fitted is not None:
            raise KeyFileError(f"{self.scheme} does not learn from text; leave the learned data out")

    def check_dimension(self, dimension: int) -> None:
        """Checks the dimension of the embedder; raises KeyMismatch if the parameters need another."""

    def to_json(self) -> JsonObject:
        """The parameters as a key file holds them: without those that have their values of `earlier`."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in self.earlier or value != self.earlier[name]
        }

    def keys(self) -> list[str]:
        """The names of the parameters."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


def _converted(default: Any, value: Any, name: str) -> Any:
    """Converts a value to the type of the default: JSON and TOML have no tuples, and 1 may stand for 1.0."""
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(_converted(default[0], item, name) if default else item for item in value)
    if type(value) in (int, float) and math.isfinite(value) and isinstance(default, float):
        return float(value)
    if default is None or (type(value) is type(default) and not isinstance(value, float)):
        return value
    raise KeyFileError(f"{name} must be {_KINDS.get(type(default), 'of another type')}, not {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list"}


# The registry

_METHODS = ("generate_many", "detect_batch", "asks_llm")  # methods that every watermark class has


def _flaw(item: object) -> str:
    """Says what is wrong with the watermark class of a package; "" where nothing is."""
    specification = getattr(item, "Parameters", None)
    if not (isinstance(specification, type) and issubclass(specification, SchemeParameters)):
        return "needs an attribute `Parameters`, a subclass of alimark.core.parameters.SchemeParameters"
    missing = [method for method in _METHODS if not hasattr(item, method)]
    return f"is not a watermark class: it has no {', '.join(missing)}" if missing else ""


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
        "k-semstamp": "alimark.lab.rivals.semstamp:KSemStamp",
        "simmark": "alimark.lab.rivals.simmark:SimMark",
        "pmark": "alimark.lab.rivals.pmark:PMark",
        "samark": "alimark.lab.rivals.samark:SAMark",
    },
    error=KeyFileError,
    flaw=_flaw,
)
"""Watermark classes by name, AliMark first. Packages add more by entry points of the group `alimark.schemes`."""


_PARAMETERS = {"alimark": "alimark.core.frozen.parameters:AliMarkParameters"}
"""Parameter classes that are read without the watermark class: that of AliMark loads the detector, which no key needs."""


def watermark_class(scheme: str) -> type[Watermark]:
    """The watermark class of a scheme; raises KeyFileError if there is no such scheme or its package cannot be loaded."""
    if scheme not in SCHEMES:
        raise KeyFileError(f"scheme {scheme!r} is not known to this release; known: {', '.join(SCHEMES.names())}")
    return SCHEMES.get(scheme)


def parameters_class(scheme: str) -> type[SchemeParameters]:
    """The parameter class of a scheme; raises KeyFileError as `watermark_class` does."""
    if scheme not in _PARAMETERS:
        return watermark_class(scheme).Parameters
    module, _, name = _PARAMETERS[scheme].partition(":")
    return cast(type[SchemeParameters], getattr(import_module(module), name))
