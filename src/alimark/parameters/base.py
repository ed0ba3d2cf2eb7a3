"""What the parameter specifications of all schemes have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from alimark._util.json_types import JsonObject
from alimark.errors import KeyFileError

DEFAULT_TOKENIZER = "smollm2-135m"
"""The model whose tokens the keys of token-level schemes mark where nothing else is asked for."""


class FittedData(Protocol):
    """What a scheme learned from text, as `alimark.keys.fitted.Fitted` holds it."""

    @property
    def scheme(self) -> str: ...
    @property
    def arrays(self) -> Mapping[str, NDArray[np.floating]]: ...
    @property
    def origin(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class SchemeParameters:
    """The public parameters of a scheme's keys.

    A scheme adds its fields, whose defaults are those of its paper, and raises KeyFileError in `__post_init__` for values
    that make no sense. `dict(parameters)` and `parameters["name"]` work, too.
    """

    scheme: ClassVar[str]
    """The scheme's name in key files and records."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = MappingProxyType({})
    """Parameters under a name, in place of the defaults; "paper" is what the AliMark paper ran the scheme with."""
    embeds: ClassVar[bool] = False
    """Whether a key names a sentence embedder."""

    @classmethod
    def of(cls, given: Mapping[str, object], *, preset: str | None = None, fingerprint: str = "") -> Self:
        """All parameters: those given, then those of the preset, then the defaults.

        Args:
            given: Values by name, as Python, JSON or TOML has them.
            preset: The name of a preset.
            fingerprint: The fingerprint of the key's embedder, which some defaults depend on.

        Raises:
            KeyFileError: A name is not known, or a value makes no sense.
        """
        defaults = {field.name: field.default for field in fields(cls)}
        wanted = {**cls._preset(preset), **given}
        cls.check_names(wanted)
        return cls(**{name: _converted(defaults[name], value, name) for name, value in wanted.items()})

    @classmethod
    def _preset(cls, preset: str | None) -> Mapping[str, object]:
        if preset is None:
            return {}
        if preset not in cls.presets:
            raise KeyFileError(f"{cls.scheme} has no preset {preset!r}; known: {', '.join(cls.presets) or 'none'}")
        return cls.presets[preset]

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raises KeyFileError where a name is none of the scheme's parameters."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(names) - set(known)):
            raise KeyFileError(
                f"{cls.scheme} has no parameter {', '.join(unknown)}; it has: {', '.join(known) or 'none'}"
            )

    def check(self, embedder: str, fingerprint: str, fitted: FittedData | None) -> None:
        """Raises KeyFileError where a key with these parameters cannot have this embedder or this learned data."""
        if self.embeds != bool(embedder):
            raise KeyFileError(f"a {self.scheme} key names {'an' if self.embeds else 'no'} embedder")
        if fitted is not None and fitted.scheme != self.scheme:
            raise KeyFileError(f"what was learned for {fitted.scheme} cannot be used for {self.scheme}")
        if fitted is not None and embedder and fitted.origin.get("fingerprint") != fingerprint:
            raise KeyFileError(
                f"what was learned from text was learned with the embedder {fitted.origin.get('embedder')}, not {embedder}"
            )
        self.check_fitted(fitted)

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Raises KeyFileError where a key with these parameters needs other learned data."""
        if fitted is not None:
            raise KeyFileError(f"{self.scheme} learns nothing from text")

    def check_dimension(self, dimension: int) -> None:
        """Raises KeyMismatch where the parameters belong to an embedder of another dimension."""

    def to_json(self) -> JsonObject:
        """The parameters as a key file holds them."""
        return asdict(self)

    def keys(self) -> list[str]:
        """The names of the parameters."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


def _converted(default: Any, value: Any, name: str) -> Any:
    """The value in the type of the default: JSON and TOML have lists and no tuples, and 1 may stand for 1.0."""
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(_converted(default[0], item, name) if default else item for item in value)
    if type(value) in (int, float) and math.isfinite(value) and isinstance(default, float):
        return float(value)
    if default is None or (type(value) is type(default) and not isinstance(value, float)):
        return value
    raise KeyFileError(f"{name} must be {_KINDS.get(type(default), 'of another type')}, not {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list"}
