"""Runs the command line inside the process of the test."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from alimark.cli import main as cli


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command, given its words, and returns its exit status and what it printed."""

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["alimark", *map(str, words)])
        capfdbinary.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as done:
            status = int(done.code or 0)
        printed = capfdbinary.readouterr()
        return Done(status, printed.out.decode(), printed.err.decode())

    return call
