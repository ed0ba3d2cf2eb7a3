"""Takes the files of a model from the model hub, where they are the pinned ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alimark.core.models.manifest import WEIGHT_SUFFIXES, Entry, File

ANSWER_SECONDS = 3

Progress = Callable[[int, int], None]
"""Called with the number of bytes downloaded so far and the number of bytes to download."""

_unreachable: set[str] = set()
"""The addresses of hubs that did not answer this process, so that only the first model of a run waits for one."""


def download(model: Entry, folder: Path, progress: Progress) -> bool:
    """Downloads the files of a model from the hub into `folder`; whether all of them are there. The caller checks their hashes.

    The hub tells the hash of large files before they are downloaded. Where one is not the pinned file, nothing of the model is
    taken.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    address = os.environ.get("HF_ENDPOINT", "")
    if not model.hub or any(file.checkpoint for file in model.files) or address in _unreachable:
        return False
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    try:
        return _download(model, folder, progress, address or None)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled):
        return False  # the hub does not have the repository or the file, or asks for permission
    except OSError:
        raise  # the disk is full, say
    # Errors of the network belong to the HTTP library of the hub's client, which has changed before.
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests", "urllib3")):
            raise
        _unreachable.add(address)
        return False


def _download(model: Entry, folder: Path, progress: Progress, address: str | None) -> bool:
    from huggingface_hub import hf_hub_download

    done = 0
    for file in sorted(model.files, key=lambda file: file.size):  # a small file that differs costs little
        if not _may_be_pinned(model.hub, file, address):
            return False
        path = hf_hub_download(
            model.hub,
            file.path,
            local_dir=folder / "hub",
            endpoint=address,
            etag_timeout=ANSWER_SECONDS,
            tqdm_class=_bar(done, model.size, progress),
        )
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
        done += file.size
    shutil.rmtree(folder / "hub")
    return True


def _may_be_pinned(repository: str, file: File, address: str | None) -> bool:
    """Whether the hub names the pinned size and, for large files, the pinned hash."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(repository, file.path, endpoint=address)
    about = get_hf_file_metadata(url, timeout=ANSWER_SECONDS, endpoint=address)
    large = file.path.endswith(WEIGHT_SUFFIXES)
    return about.size in {None, file.size} and (not large or about.etag == file.sha256)


def _bar(before: int, total: int, progress: Progress) -> Any:
    """A progress bar for the hub's client that reports to `progress` instead of drawing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._done = before + int(options.get("initial") or 0)
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            progress(min(self._done, total), total)

    return Bar
