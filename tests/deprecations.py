"""A helper for tests of what is deprecated: it warns, says what to use instead, and is removed in time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import alimark

_MESSAGE = re.compile(r"(?P<what>.+) is deprecated and will be removed in alimark (?P<release>\d+(\.\d+)*); use .+")


def check_deprecation(message: str, what: str) -> None:
    """Checks a message about a deprecated thing; fails once the release that removes it has come."""
    match = _MESSAGE.search(message)
    assert match is not None, f"not a message of alimark.core._util.deprecation: {message!r}"
    assert what in match["what"], message
    current, removal = _numbers(alimark.__version__), _numbers(match["release"])
    assert current < removal, (
        f"{what} was to be removed in {match['release']}; this is {alimark.__version__}: remove it"
    )


@contextmanager
def deprecated(what: str) -> Iterator[None]:
    """Checks that the block warns that `what` is deprecated: `with deprecated("Key.old"): key.old()`."""
    with pytest.warns(DeprecationWarning, match=re.escape(what)) as warned:
        yield
    [warning] = [warning for warning in warned if what in str(warning.message)]
    check_deprecation(str(warning.message), what)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
