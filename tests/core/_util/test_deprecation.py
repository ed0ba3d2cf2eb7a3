"""Deprecation warnings, and the helper that reminds of what is to be removed."""

from __future__ import annotations

import pytest

import alimark
from alimark.core._util.deprecation import deprecation_message, warn_deprecated
from commands import Run
from deprecations import check_deprecation, deprecated


def old() -> int:
    warn_deprecated("`old`", instead="`new`", removed_in="99.0")
    return 1


def test_a_deprecated_function_warns_its_caller() -> None:
    with deprecated("`old`"):
        assert old() == 1
    with pytest.warns(DeprecationWarning, match="old") as warned:
        old()
    assert warned[0].filename == __file__


def test_what_was_to_be_removed_fails_its_test() -> None:
    message = deprecation_message("`old`", instead="`new`", removed_in=alimark.__version__)
    with pytest.raises(AssertionError, match="remove it"):
        check_deprecation(message, "`old`")
    with pytest.raises(AssertionError, match="not a message"):
        check_deprecation("`old` is old", "`old`")


def test_deprecated_options_of_the_command_line(command: Run) -> None:
    done = command("detect", "--input", "nothing.jsonl", "--output", "found.jsonl", "-k", "no-key.json")
    check_deprecation(done.err.splitlines()[0], "`alimark detect --input`")
