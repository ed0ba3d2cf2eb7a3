"""Files that are written whole or not at all, and text files read as UTF-8."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from alimark.errors import AlimarkError, RecordError


def is_special(path: Path | str) -> bool:
    """Whether a path is a device, a pipe or a socket, which may have no end."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def regular(path: Path | str, error: type[AlimarkError] = AlimarkError) -> Path:
    """The path of a file, of a folder or of nothing; raises an error for anything else."""
    if is_special(path):
        raise error(f"{path} is a device, a pipe or a socket; name a file (or -, where a command reads standard input)")
    return Path(path)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o644, overwrite: bool = True) -> Iterator[BinaryIO]:
    """A new file to write to, which takes the place of `path` when the block ends without an error.

    Without `overwrite` a file that exists is an error.
    """
    part = regular(path).with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(part, path)
        else:
            os.link(part, path)  # unlike replace, fails where the path exists
    except OSError as error:
        if error.filename not in (None, str(part)):
            raise
        # The caller does not know the temporary file, and a full disk names no file.
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def write_whole(path: Path | str, data: bytes, *, mode: int = 0o644, overwrite: bool = True) -> None:
    """Writes `data` such that `path` never holds a part of it."""
    with replacing(Path(path), mode=mode, overwrite=overwrite) as file:
        file.write(data)


def read_text(path: Path | str) -> str:
    """The text of a file; raises RecordError as `decode`."""
    return decode(regular(path).read_bytes(), str(path))


def decode(data: bytes, name: str) -> str:
    """The text of some bytes; raises RecordError with the place of the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"{name} is not UTF-8 (byte {error.start}); save it as UTF-8 first") from None
