"""Warnings about what a later release removes; CONTRIBUTING.md has the policy."""

from __future__ import annotations

import warnings


def deprecation_message(what: str, *, instead: str, removed_in: str) -> str:
    """Says what is deprecated, when it is removed and what to use instead.

    Args:
        what: What is deprecated, as the user writes it.
        instead: What to use instead.
        removed_in: The release that removes it.

    Returns:
        One sentence.

    Example:
        >>> deprecation_message("`Key.old`", instead="`Key.new`", removed_in="0.3")
        '`Key.old` is deprecated and will be removed in alimark 0.3; use `Key.new`'
    """
    return f"{what} is deprecated and will be removed in alimark {removed_in}; use {instead}"


def warn_deprecated(what: str, *, instead: str, removed_in: str) -> None:
    """Warns the caller of a deprecated function; call it in the function's first line.

    Args:
        what: What is deprecated, as the user writes it.
        instead: What to use instead.
        removed_in: The release that removes it.
    """
    # Three levels up: this function, the deprecated one, its caller.
    warnings.warn(deprecation_message(what, instead=instead, removed_in=removed_in), DeprecationWarning, stacklevel=3)
