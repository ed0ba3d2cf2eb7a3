"""Finds a browser on this machine."""

import shutil

import pytest


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium, chromium-browser or google-chrome on this machine to open the page in")
