"""Converts PyTorch checkpoints (pytorch_model.bin) to safetensors without running code from them.

A checkpoint is a pickle, which can name any function. `torch.load(weights_only=True)` accepts only the names that tensors need.
It runs in a process with limits on time and memory, since a file can be made to exhaust either.
"""

from __future__ import annotations

import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core._util import limited
from alimark.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    import torch

# Reading takes about one second for each gigabyte, and importing torch a few.
_SECONDS, _SECONDS_PER_GIGABYTE = 60, 60
# torch reserves some gigabytes of addresses by itself; the numbers are in memory up to three times.
_MEMORY = 8 << 30
# The output may be larger than the file, because tied weights are written once for each of their names.
_MAX_GROWTH = 8


def convert(source: Path, target: Path) -> None:
    """Writes the tensors of a checkpoint to a safetensors file, which appears when it is complete.

    The same tensors always give the same bytes.
    """
    size = source.stat().st_size
    if size == 0:
        raise ModelError(f"{source} is empty; download it again")
    if find_spec("torch") is None:
        raise MissingExtra("torch", "transformers")
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    seconds = _SECONDS + _SECONDS_PER_GIGABYTE * (size >> 30)
    try:
        status, output = limited.run(__name__, [str(source), str(part), str(seconds)], b"", cpu_seconds=seconds)
        if status == 0 and part.is_file():
            os.replace(part, target)
            return
        reason = output.decode("utf-8", "replace").strip()
        reason = reason or "reading it broke off: it is damaged or needs too much memory"
    except limited.TooLong:
        reason = f"reading it took more than {seconds} seconds"
    finally:
        part.unlink(missing_ok=True)
    if reason.startswith("["):  # an error of the system, such as a full disk
        raise OSError(f"{target}: {reason}")
    raise ModelError(
        f"{source} was not converted, because {reason}; use weights in the form of safetensors, or download the file again"
    )


def read(source: Path) -> dict[str, torch.Tensor]:
    """The named tensors of a checkpoint; raises ValueError with the reason where it holds anything else."""
    import torch

    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises errors of many kinds for damaged and for refused files
        raise ValueError(f"torch refuses it ({_first_line(error)})") from error
    if not isinstance(state, dict) or not state:
        raise ValueError("it holds no named tensors")
    total = 0
    for name, tensor in state.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{str(name)[:80]!r} cannot be the name of a tensor")
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"its {name[:80]!r} is not a tensor of plain numbers but of type {type(tensor).__name__}")
        total += tensor.numel() * tensor.element_size()
    if total > _MAX_GROWTH * source.stat().st_size:
        raise ValueError("it holds the same numbers under too many names")
    return state


def _first_line(error: Exception) -> str:
    """The line that says what is wrong. torch's own advice, to load the file without protection, is left out."""
    advice = ("Weights only load failed", "Please file an issue", "Check the documentation")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(advice)]
    return (lines or [type(error).__name__])[0][:200]


def _main(source: str, target: str, seconds: str) -> int:
    path = Path(source)
    size = path.stat().st_size
    limited.limit(int(seconds), _MEMORY + 4 * size, _MAX_GROWTH * size + (1 << 20))
    try:
        from safetensors.torch import save

        state = read(path)
        data = save({name: state[name].detach().contiguous().clone() for name in sorted(state)}, {"format": "pt"})
        with open(target, "xb") as file:
            file.write(data)
            os.fsync(file.fileno())
    except OSError as error:
        sys.stdout.write(f"[{error.errno}] {error.strerror}")
        return 1
    except MemoryError:
        sys.stdout.write("it needs too much memory")
        return 1
    except Exception as error:  # safetensors has an error class of its own, and torch raises RuntimeError
        sys.stdout.write(_first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
