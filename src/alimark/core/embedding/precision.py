"""The precision in which an embedder computes: float32, and faster ones where it has them.

A p-value compares the key with random keys on the same vectors, so that it is valid for any vectors that do not depend on
the key. A fast precision can therefore only cost power: a mark may be missed, but unmarked text is not found more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from alimark.core.embedding.base import Embedder
from alimark.errors import AlimarkError, ModelError

Precision = Literal["auto", "float32", "tf32", "bfloat16", "int8"]
"""int8 is for CPUs, tf32 and bfloat16 are for GPUs. "auto" leaves the choice to the caller: float32 for a single text."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def check_precision(precision: str) -> None:
    """Raises AlimarkError for an unknown precision."""
    if precision not in PRECISIONS:
        raise AlimarkError(f"precision must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, not {precision!r}")


def precision_of(embedder: Embedder) -> str:
    """The precision in which an embedder computes; float32 where it does not say."""
    return str(getattr(embedder, "precision", "float32"))


def precisions_of(embedder: Embedder) -> Sequence[str]:
    """The precisions that an embedder offers, the fastest last."""
    return tuple(getattr(embedder, "precisions", (precision_of(embedder),)))


def at_precision(embedder: Embedder, precision: str) -> Embedder:
    """The same model in another precision; for "auto" the embedder itself. Name and fingerprint stay the same.

    Example:
        >>> from alimark.testing import StandInEmbedder
        >>> at_precision(StandInEmbedder(), "int8")
        Traceback (most recent call last):
        ...
        alimark.errors.ModelError: the embedder stand-in computes in float32 here, not in int8; use precision auto or float32
    """
    if precision in ("auto", precision_of(embedder)):
        return embedder
    offered = precisions_of(embedder)
    if precision not in offered:
        raise ModelError(
            f"the embedder {embedder.name} computes in {' or '.join(offered)} here, not in {precision}; use precision auto or "
            f"{offered[0]}"
        )
    other: Embedder = embedder.with_precision(precision)  # type: ignore[attr-defined]  # embedders with several precisions have this method
    return other
