"""Folders that alimark keeps files in."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for models, graphs, null tables and compiled kernels: `ALIMARK_HOME`, or the user's cache folder."""
    if chosen := os.environ.get("ALIMARK_HOME"):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("alimark", appauthor=False))


def data_folder() -> Path:
    """The folder for what must not be lost, such as the key that signs evidence: `ALIMARK_HOME`, or the user's data folder."""
    if os.environ.get("ALIMARK_HOME"):
        return cache_folder()
    from platformdirs import user_data_dir

    return Path(user_data_dir("alimark", appauthor=False))
