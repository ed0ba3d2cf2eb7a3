"""The parameter classes of all schemes: the public fields of their keys, with defaults, presets and validation.

They are below `alimark.core.keys` in the layers, so that a key can be read and checked without importing `alimark.schemes`.
A package that adds a scheme names its watermark class as an entry point of the group `alimark.schemes`;
the parameter class is the attribute `Parameters` of that class.
"""

from __future__ import annotations

from alimark.core._util.registry import Registry
from alimark.core.parameters.base import SchemeParameters
from alimark.errors import KeyFileError

__all__ = ["SchemeParameters", "known_schemes", "parameters_class", "scheme_flaw"]


def scheme_flaw(item: object) -> str:
    """Says what is wrong with the watermark class of a package, as far as its parameters go; "" where nothing is."""
    specification = getattr(item, "Parameters", None)
    if isinstance(specification, type) and issubclass(specification, SchemeParameters):
        return ""
    return "needs an attribute `Parameters`, a subclass of alimark.core.parameters.SchemeParameters"


_REGISTRY: Registry[type] = Registry(
    "scheme",
    "alimark.schemes",
    {
        "alimark": "alimark.core.frozen.parameters:AliMarkParameters",
        "kgw": "alimark.lab.rivals.parameters.kgw:KGWParameters",
        "exp": "alimark.lab.rivals.parameters.exp:EXPParameters",
        "synthid": "alimark.lab.rivals.parameters.synthid:SynthIDParameters",
        "sir": "alimark.lab.rivals.parameters.sir:SIRParameters",
        "semstamp": "alimark.lab.rivals.parameters.semstamp:SemStampParameters",
        "k-semstamp": "alimark.lab.rivals.parameters.k_semstamp:KSemStampParameters",
        "simmark": "alimark.lab.rivals.parameters.simmark:SimMarkParameters",
        "pmark": "alimark.lab.rivals.parameters.pmark:PMarkParameters",
        "samark": "alimark.lab.rivals.parameters.samark:SAMarkParameters",
    },
    error=KeyFileError,
    flaw=scheme_flaw,
)


def known_schemes() -> tuple[str, ...]:
    """The names of all schemes, AliMark first."""
    return _REGISTRY.names()


def parameters_class(scheme: str) -> type[SchemeParameters]:
    """The parameter class of a scheme.

    Args:
        scheme: The scheme's name.

    Returns:
        A frozen dataclass, a subclass of `SchemeParameters`.

    Raises:
        KeyFileError: No scheme has that name, or the package that adds it cannot be loaded.

    Example:
        >>> parameters_class("semstamp").of({"margin": 0.1})
        SemStampParameters(hyperplanes=3, ratio=0.25, margin=0.1)
    """
    if scheme not in _REGISTRY:
        raise KeyFileError(f"scheme {scheme!r} is not known to this release; known: {', '.join(known_schemes())}")
    entry = _REGISTRY.get(scheme)
    # A built-in parameter class, or the watermark class of a package.
    specification: type[SchemeParameters] = getattr(entry, "Parameters", entry)
    return specification
