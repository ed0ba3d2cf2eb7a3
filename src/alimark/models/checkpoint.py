"""Weights out of a PyTorch checkpoint, without running it.

A checkpoint (pytorch_model.bin) is a pickle and the numbers it speaks of. A pickle is a program, and one that can call
anything; here none is ever run. Its opcodes are read one by one, by a machine that knows data, tensors and nothing else:
no name in the file is ever looked up, and one that a checkpoint of plain weights has no need of is an error that tells it.

Both forms are read. The older is five pickles (a magic number, a version, the machine's byte order, the object, the keys
of the storages), then for each key a count and its numbers. The newer is a zip archive, not compressed, with the object's
pickle in data.pkl and each storage in data/KEY.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from alimark.errors import ModelError

Bytes = NDArray[np.uint8]

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP = b"PK\x03\x04"

# Far above any model's, and small enough that a file made to exhaust the memory does not.
_MOST_PICKLE = 32 << 20
_MOST_OPCODES = 4_000_000
_MOST_BITS = 128
_MOST_DIMENSIONS = 32
# Tied weights are written under each of their names, and count each time.
_MOST_GROWTH = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of number: its name in safetensors, and its bytes."""

    name: str
    size: int


_KINDS = {
    "torch.DoubleStorage": _Kind("F64", 8),
    "torch.FloatStorage": _Kind("F32", 4),
    "torch.HalfStorage": _Kind("F16", 2),
    "torch.BFloat16Storage": _Kind("BF16", 2),
    "torch.LongStorage": _Kind("I64", 8),
    "torch.IntStorage": _Kind("I32", 4),
    "torch.ShortStorage": _Kind("I16", 2),
    "torch.CharStorage": _Kind("I8", 1),
    "torch.ByteStorage": _Kind("U8", 1),
    "torch.BoolStorage": _Kind("BOOL", 1),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    """A run of numbers under a key; a view is a part of one."""

    kind: _Kind
    key: str
    count: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.storage.kind.size


class _Unsound(ValueError):
    """Why a file is not converted."""


def convert(source: Path, target: Path) -> None:
    """Write a checkpoint's tensors to a safetensors file, which is the same to the byte whenever it is made.

    `target` appears whole or not at all. Raises ModelError where the file holds anything but tensors by name.
    """
    if source.stat().st_size == 0:
        raise ModelError(f"{source} is empty; get it again")
    data: Bytes = np.memmap(source, np.uint8, "r")
    try:
        tensors, places = _from_zip(data, source) if _is_zip(data) else _from_pickles(data)
        _check_size(tensors, len(data))
        named = {name: _seen(data, places, tensor) for name, tensor in tensors.items()}
    except ValueError as error:
        raise ModelError(
            f"{source} is not read, for {error}; take the model's weights as safetensors, or get the file again"
        ) from error
    with _whole(target) as out:
        _write(named, out)


# The machine


@dataclass(slots=True)
class _Machine:
    """Reads one pickle. What it can hold is data, and the few names that `_KNOWN` tells what to do with."""

    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    """What lay on the stack at each mark."""
    memo: dict[int, Any] = field(default_factory=dict)
    storages: dict[str, _Storage] = field(default_factory=dict)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise _Unsound("its pickle takes what is not there")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _Unsound(f"its pickle adds to something that is no {kind.__name__}")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        if not self.below:
            raise _Unsound("its pickle goes back to a mark that is not there")
        items, self.stack = self.stack, self.below.pop()
        return items

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def put(self, place: int) -> None:
        self.memo[place] = self.top(object)

    def get(self, place: int) -> None:
        if place not in self.memo:
            raise _Unsound("its pickle recalls what it never kept")
        self.push(self.memo[place])

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(items[::-1]))

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        into = self.top(dict)
        if len(items) % 2:
            raise _Unsound("its pickle gives a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):  # and never a tuple: hashing one can take forever
                raise _Unsound(f"a dict in it has a key of type {type(key).__name__}")
            into[key] = value

    def name(self, said: str) -> None:
        dotted = said.replace(" ", ".", 1)
        if dotted not in _KNOWN and dotted not in _KINDS:
            raise _Unsound(f"it names {dotted[:200]!r}, which weights have no need of and which could run code")
        self.push(_Name(dotted))

    def name_from_stack(self) -> None:
        last, module = self.pop(), self.pop()
        if not (isinstance(last, str) and isinstance(module, str)):
            raise _Unsound("its pickle has a name that is no text")
        self.name(f"{module} {last}")

    def call(self) -> None:
        given, called = self.pop(), self.pop()
        if not (isinstance(called, _Name) and called.dotted in _KNOWN and isinstance(given, tuple)):
            raise _Unsound("its pickle calls something that is no function")
        self.push(_KNOWN[called.dotted](*given[:_MOST_DIMENSIONS]))

    def build(self) -> None:
        # A state dict carries its modules' versions as an attribute; nothing else has any.
        self.pop()
        self.top(dict)

    def refer(self) -> None:
        made = _storage(self.pop())
        root = _Storage(made.kind, made.key, 0)
        if self.storages.setdefault(made.key, root) != root:
            raise _Unsound(f"its storage {made.key[:40]!r} is of two types")
        self.push(made)


@dataclass(frozen=True, slots=True)
class _Name:
    dotted: str


def _dict(pairs: Any = (), *_: Any) -> dict[Any, Any]:
    machine = _Machine([{}])
    for pair in pairs if isinstance(pairs, list | tuple) else [pairs]:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            raise _Unsound("it makes a dict of something that is no pair")
        machine.set_items(list(pair))
    made: dict[Any, Any] = machine.pop()
    return made


def _tensor(storage: Any = None, offset: Any = None, shape: Any = None, strides: Any = None, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise _Unsound("it has a tensor without a storage")
    if not (isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides) <= _MOST_DIMENSIONS):
        raise _Unsound("it has a tensor whose shape is none")
    if not all(_is_count(number) for number in (offset, *shape, *strides)):
        raise _Unsound("it has a tensor whose shape is not made of counts")
    if 0 not in shape:
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if last >= storage.count or math.prod(shape) > storage.count:
            raise _Unsound("it has a tensor that is larger than its storage")
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: Any = None, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise _Unsound("it has a parameter that is no tensor")
    return tensor


def _storage(said: Any) -> _Storage:
    """Of ("storage", type, key, device, count) and, in the older form, what part of it (None: all)."""
    if not (isinstance(said, tuple) and len(said) in {5, 6} and isinstance(said[0], str) and said[0] == "storage"):
        raise _Unsound("it refers to something that is no storage")
    _, name, key, _, count, *view = said
    if not isinstance(name, _Name) or name.dotted not in _KINDS:
        raise _Unsound("it has a storage of no type")
    if not (isinstance(key, str) and _is_count(count)):
        raise _Unsound("it has a storage without a key or a count")
    first = 0
    if view and view[0] is not None:
        if not (isinstance(view[0], tuple) and len(view[0]) == 3 and all(_is_count(n) for n in view[0][1:])):
            raise _Unsound("it has a view of a storage that is none")
        _, first, part = view[0]
        if first + part > count:
            raise _Unsound("it has a view that is larger than its storage")
        count = part
    return _Storage(_KINDS[name.dotted], key, count, first)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


_KNOWN: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}

_DATA = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING".split()
)
_DO: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_DATA, lambda machine, said: machine.push(said)),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, said: None),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, place: machine.put(place)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, place: machine.get(place)),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "GLOBAL": lambda machine, said: machine.name(said),
    "STACK_GLOBAL": lambda machine, _: machine.name_from_stack(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.refer(),
}


def _unpickled(data: bytes) -> tuple[Any, int, dict[str, _Storage]]:
    """What a pickle stands for, where it ends, and the storages it refers to."""
    stream, machine = io.BytesIO(data), _Machine()
    for number, (opcode, said, _) in enumerate(pickletools.genops(stream)):
        if opcode.name not in _DO:
            raise _Unsound(f"its pickle has the opcode {opcode.name}, which weights have no need of")
        if number > _MOST_OPCODES or (isinstance(said, int) and said.bit_length() > _MOST_BITS):
            raise _Unsound("its pickle is larger than that of any weights")
        _DO[opcode.name](machine, said)
    return machine.pop(), stream.tell(), machine.storages


# The files

_Read = tuple[dict[str, _Tensor], dict[str, tuple[int, int]]]
"""The tensors by name, and for each storage's key where its bytes begin and end."""


def _is_zip(data: Bytes) -> bool:
    return data[: len(_ZIP)].tobytes() == _ZIP


def _from_pickles(data: Bytes) -> _Read:
    at, said = 0, []
    storages: dict[str, _Storage] = {}
    for _ in range(5):
        value, size, met = _unpickled(data[at : at + _MOST_PICKLE].tobytes())
        at += size
        said.append(value)
        storages |= met
        if said[0] != _MAGIC:
            raise _Unsound("it is no PyTorch checkpoint")
    _, protocol, system, made, keys = said
    if protocol != _PROTOCOL:
        raise _Unsound("it is of a version that is not known")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _Unsound("its numbers are not in little-endian order")
    tensors = _tensors(made)
    if not isinstance(keys, list) or any(not isinstance(key, str) or key not in storages for key in keys):
        raise _Unsound("it has a storage that nothing refers to")
    return tensors, _places(data, at, [storages[key] for key in keys])


def _places(data: Bytes, at: int, storages: list[_Storage]) -> dict[str, tuple[int, int]]:
    places = {}
    for storage in storages:
        if at + 8 > len(data):
            raise _Unsound("it is cut short")
        (count,) = struct.unpack("<q", data[at : at + 8].tobytes())
        end = at + 8 + count * storage.kind.size
        if count < 0 or end > len(data):
            raise _Unsound("it is cut short")
        places[storage.key] = (at + 8, end)
        at = end
    return places


def _from_zip(data: Bytes, source: Path) -> _Read:
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.NameToInfo
    # A number in the archive that makes no sense comes as any of these.
    except (zipfile.BadZipFile, NotImplementedError, OverflowError, struct.error, OSError) as error:
        raise _Unsound(f"it is not a sound archive ({error})") from error
    inside = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(inside) != 1:
        raise _Unsound("it is an archive, but no PyTorch checkpoint")
    root = inside[0].removesuffix("data.pkl")
    order = members.get(f"{root}byteorder")
    if order and _member(data, order, 16).tobytes() != b"little":
        raise _Unsound("its numbers are not in little-endian order")
    made, _, storages = _unpickled(_member(data, members[inside[0]], _MOST_PICKLE).tobytes())
    places = {}
    for key in storages:
        if not (info := members.get(f"{root}data/{key}")):
            raise _Unsound(f"its storage {key[:40]!r} is missing")
        start = _start(data, info)
        _member(data, info, info.file_size)
        places[key] = (start, start + info.file_size)
    return _tensors(made), places


def _start(data: Bytes, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind its own header, whose length may be another than the directory says."""
    header = data[info.header_offset : info.header_offset + 30].tobytes() if info.header_offset >= 0 else b""
    if len(header) < 30 or not header.startswith(_ZIP):
        raise _Unsound(f"its member {info.filename[:80]!r} is not where it should be")
    name, extra = struct.unpack("<HH", header[26:30])
    return int(info.header_offset + 30 + name + extra)


def _member(data: Bytes, info: zipfile.ZipInfo, most: int) -> Bytes:
    name, start = info.filename[:80], _start(data, info)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
        raise _Unsound(f"its member {name!r} is compressed")
    if info.file_size > most:
        raise _Unsound(f"its member {name!r} is larger than that of any weights")
    if start + info.file_size > len(data):
        raise _Unsound("it is cut short")
    found = data[start : start + info.file_size]
    if zlib.crc32(found.data) != info.CRC:
        raise _Unsound(f"its member {name!r} is damaged")
    return found


def _tensors(made: Any) -> dict[str, _Tensor]:
    if not isinstance(made, dict) or not made:
        raise _Unsound("it holds no tensors by name")
    for name, value in made.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise _Unsound(f"{str(name)[:80]!r} is no name of a tensor")
        name.encode()  # half a surrogate pair is text for Python, but not for the file to be written
        if not isinstance(value, _Tensor):
            raise _Unsound(f"its {name[:80]!r} is no tensor but of type {type(value).__name__}")
    return made


def _check_size(tensors: dict[str, _Tensor], size: int) -> None:
    if sum(tensor.bytes for tensor in tensors.values()) > _MOST_GROWTH * size:
        raise _Unsound("it names the same numbers over and over")


def _seen(data: Bytes, places: dict[str, tuple[int, int]], tensor: _Tensor) -> tuple[_Tensor, NDArray[Any]]:
    """A tensor's numbers, as they lie in the file: nothing is copied. Their type is not theirs, but of their size."""
    storage, kind = tensor.storage, tensor.storage.kind
    if storage.key not in places:
        raise _Unsound(f"its storage {storage.key[:40]!r} is missing")
    start, end = places[storage.key]
    start += storage.first * kind.size
    if start + storage.count * kind.size > end:
        raise _Unsound(f"its storage {storage.key[:40]!r} is cut short")
    if not tensor.bytes:
        return tensor, np.empty(0, np.uint8)
    numbers = data[start : start + storage.count * kind.size].view(f"u{kind.size}")[tensor.offset :]
    # The stride along a single number is never gone, and could be any.
    strides = [stride * kind.size if n > 1 else 0 for n, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return tensor, as_strided(numbers, tensor.shape, strides, writeable=False)


@contextmanager
def _whole(target: Path) -> Iterator[io.BufferedWriter]:
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _write(named: dict[str, tuple[_Tensor, NDArray[Any]]], out: io.BufferedWriter) -> None:
    # The largest numbers first, as safetensors itself has it: each then begins at a multiple of its size.
    order = sorted(named, key=lambda name: (-named[name][0].storage.kind.size, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in order:
        tensor, _ = named[name]
        header[name] = {
            "dtype": tensor.storage.kind.name,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.bytes],
        }
        at += tensor.bytes
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    said += b" " * (-len(said) % 8)
    out.write(struct.pack("<Q", len(said)) + said)
    for name in order:
        out.write(np.ascontiguousarray(named[name][1]).data)
