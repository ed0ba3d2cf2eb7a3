"""Converts PyTorch checkpoints to safetensors without running code from them.

A checkpoint (pytorch_model.bin) is a pickle and the numbers that it refers to. A pickle is a program that can call any
function, so it is never unpickled here. Its opcodes are interpreted one by one by a reader that knows only data and tensors.
The reader imports no name that the file contains, and a name that a checkpoint of plain weights does not need is an error.

Both formats are read. The older one is five pickles (a magic number, a version, the byte order of the machine, the object, the
keys of the storages), and then a count and the numbers for each key. The newer one is an uncompressed zip archive with the
pickle of the object in data.pkl and each storage in data/KEY.

The reader is hand-written although `torch.load(weights_only=True)` exists, for three reasons: models are fetched by the core
install, which has no torch; torch did not return on one hostile file that is refused here; and torch reads fewer pickle
protocols (docs/decisions/0005-hand-written-code.md).
"""

from __future__ import annotations

import io
import json
import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from alimark.core._util.files import replacing
from alimark.errors import ModelError

Bytes = NDArray[np.uint8]

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP = b"PK\x03\x04"

# Limits that no real model reaches. They stop files that were made to exhaust the memory.
_MAX_PICKLE = 32 << 20
_MAX_OPCODES = 4_000_000
_MAX_BITS = 128
_MAX_DIMENSIONS = 32
# The output may be larger than the file, because tied weights are written once for each of their names.
_MAX_GROWTH = 8


@dataclass(frozen=True, slots=True)
class _DType:
    """A type of number: its name in safetensors, and its size in bytes."""

    name: str
    size: int


_DTYPES = {
    "torch.DoubleStorage": _DType("F64", 8),
    "torch.FloatStorage": _DType("F32", 4),
    "torch.HalfStorage": _DType("F16", 2),
    "torch.BFloat16Storage": _DType("BF16", 2),
    "torch.LongStorage": _DType("I64", 8),
    "torch.IntStorage": _DType("I32", 4),
    "torch.ShortStorage": _DType("I16", 2),
    "torch.CharStorage": _DType("I8", 1),
    "torch.ByteStorage": _DType("U8", 1),
    "torch.BoolStorage": _DType("BOOL", 1),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    """The numbers of one storage of the file, or of a view of it: `count` numbers from number `first` on."""

    dtype: _DType
    key: str
    count: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as the pickle describes it; strides are counted in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.size


class _InvalidCheckpoint(ValueError):
    """The file cannot be converted; the message says why."""


def convert(source: Path, target: Path) -> None:
    """Writes the tensors of a checkpoint to a safetensors file. The same tensors always give the same bytes.

    Args:
        source: The checkpoint.
        target: The file to write. It appears when it is complete, so that no reader sees a part of it.

    Raises:
        ModelError: The checkpoint is damaged, or it holds something other than named tensors.
    """
    if source.stat().st_size == 0:
        raise ModelError(f"{source} is empty; download it again")
    data: Bytes = np.memmap(source, np.uint8, "r")
    try:
        tensors, spans = _from_zip(data, source) if _is_zip(data) else _from_pickles(data)
        _check_size(tensors, len(data))
        arrays = {name: _array(data, spans, tensor) for name, tensor in tensors.items()}
    except ValueError as error:
        raise ModelError(
            f"{source} was not converted, because {error}; use weights in the form of safetensors, or download the file again"
        ) from error
    with replacing(target) as out:
        _write(tensors, arrays, out)


# Reading pickles


@dataclass(slots=True)
class _PickleReader:
    """Interprets the opcodes of one pickle, as far as a checkpoint needs them."""

    stack: list[Any] = field(default_factory=list)
    marked: list[list[Any]] = field(default_factory=list)
    """The stacks that were set aside at each mark."""
    memo: dict[int, Any] = field(default_factory=dict)
    storages: dict[str, _Storage] = field(default_factory=dict)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise _InvalidCheckpoint("its pickle takes a value from an empty stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _InvalidCheckpoint(f"its pickle needs a value of type {kind.__name__} and has none")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        if not self.marked:
            raise _InvalidCheckpoint("its pickle refers to a mark that does not exist")
        items, self.stack = self.stack, self.marked.pop()
        return items

    def mark(self) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def put(self, number: int) -> None:
        self.memo[number] = self.top(object)

    def get(self, number: int) -> None:
        if number not in self.memo:
            raise _InvalidCheckpoint("its pickle reads a memo that was never written")
        self.push(self.memo[number])

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(items[::-1]))

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise _InvalidCheckpoint("its pickle has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):  # not a tuple: hashing nested tuples can take exponential time
                raise _InvalidCheckpoint(f"a dict in it has a key of type {type(key).__name__}")
            target[key] = value

    def name(self, module_and_name: str) -> None:
        dotted = module_and_name.replace(" ", ".", 1)
        if dotted not in _FUNCTIONS and dotted not in _DTYPES:
            raise _InvalidCheckpoint(f"it names {dotted[:200]!r}, which weights do not need and which could run code")
        self.push(_Name(dotted))

    def name_from_stack(self) -> None:
        last, module = self.pop(), self.pop()
        if not (isinstance(last, str) and isinstance(module, str)):
            raise _InvalidCheckpoint("its pickle has a name that is not a string")
        self.name(f"{module} {last}")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not (isinstance(function, _Name) and function.dotted in _FUNCTIONS and isinstance(arguments, tuple)):
            raise _InvalidCheckpoint("its pickle calls something that is not a function")
        self.push(_FUNCTIONS[function.dotted](*arguments[:_MAX_DIMENSIONS]))

    def build(self) -> None:
        # The attributes of an object are dropped. Only a state dict has any: the versions of its modules.
        self.pop()
        self.top(dict)

    def load_storage(self) -> None:
        storage = _storage(self.pop())
        root = _Storage(storage.dtype, storage.key, 0)
        if self.storages.setdefault(storage.key, root) != root:
            raise _InvalidCheckpoint(f"its storage {storage.key[:40]!r} has two types")
        self.push(storage)


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a function or type in the pickle. It is compared with known names, never imported."""

    dotted: str


def _dict(pairs: Any = (), *_: Any) -> dict[Any, Any]:
    reader = _PickleReader([{}])
    for pair in pairs if isinstance(pairs, list | tuple) else [pairs]:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            raise _InvalidCheckpoint("it makes a dict of something that is not a pair")
        reader.set_items(list(pair))
    result: dict[Any, Any] = reader.pop()
    return result


def _tensor(storage: Any = None, offset: Any = None, shape: Any = None, strides: Any = None, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise _InvalidCheckpoint("it has a tensor without a storage")
    if not (isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides) <= _MAX_DIMENSIONS):
        raise _InvalidCheckpoint("it has a tensor without a valid shape")
    if not all(_is_count(number) for number in (offset, *shape, *strides)):
        raise _InvalidCheckpoint("it has a tensor whose shape does not consist of counts")
    if 0 not in shape:
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if last >= storage.count or math.prod(shape) > storage.count:
            raise _InvalidCheckpoint("it has a tensor that is larger than its storage")
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: Any = None, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise _InvalidCheckpoint("it has a parameter that is not a tensor")
    return tensor


def _storage(reference: Any) -> _Storage:
    """Reads a reference ("storage", type, key, device, count); the older format adds a view (key, first, count) or None."""
    if not (isinstance(reference, tuple) and len(reference) in {5, 6}):
        raise _InvalidCheckpoint("it refers to something that is not a storage")
    label, name, key, _, count, *view = reference
    if not (isinstance(label, str) and label == "storage"):
        raise _InvalidCheckpoint("it refers to something that is not a storage")
    if not isinstance(name, _Name) or name.dotted not in _DTYPES:
        raise _InvalidCheckpoint("it has a storage without a type")
    if not (isinstance(key, str) and _is_count(count)):
        raise _InvalidCheckpoint("it has a storage without a key or a count")
    first = 0
    if view and view[0] is not None:
        if not (isinstance(view[0], tuple) and len(view[0]) == 3 and all(_is_count(n) for n in view[0][1:])):
            raise _InvalidCheckpoint("it has an invalid view of a storage")
        _, first, part = view[0]
        if first + part > count:
            raise _InvalidCheckpoint("it has a view that is larger than its storage")
        count = part
    return _Storage(_DTYPES[name.dotted], key, count, first)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}

_DATA = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING".split()
)
_OPCODES: dict[str, Callable[[_PickleReader, Any], None]] = {
    **dict.fromkeys(_DATA, lambda reader, value: reader.push(value)),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda reader, _: None),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "MARK": lambda reader, _: reader.mark(),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.tuple_of(1),
    "TUPLE2": lambda reader, _: reader.tuple_of(2),
    "TUPLE3": lambda reader, _: reader.tuple_of(3),
    "APPEND": lambda reader, _: reader.append([reader.pop()]),
    "APPENDS": lambda reader, _: reader.append(reader.since_mark()),
    "SETITEM": lambda reader, _: reader.set_items([reader.pop(), reader.pop()][::-1]),
    "SETITEMS": lambda reader, _: reader.set_items(reader.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda reader, number: reader.put(number)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda reader, number: reader.get(number)),
    "MEMOIZE": lambda reader, _: reader.put(len(reader.memo)),
    "GLOBAL": lambda reader, name: reader.name(name),
    "STACK_GLOBAL": lambda reader, _: reader.name_from_stack(),
    "REDUCE": lambda reader, _: reader.call(),
    "BUILD": lambda reader, _: reader.build(),
    "BINPERSID": lambda reader, _: reader.load_storage(),
}


def _unpickled(data: bytes) -> tuple[Any, int, dict[str, _Storage]]:
    """The object of a pickle, the position where the pickle ends, and the storages that it refers to."""
    stream, reader = io.BytesIO(data), _PickleReader()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name not in _OPCODES:
            raise _InvalidCheckpoint(f"its pickle has the opcode {opcode.name}, which weights do not need")
        if number > _MAX_OPCODES or (isinstance(argument, int) and argument.bit_length() > _MAX_BITS):
            raise _InvalidCheckpoint("its pickle is larger than that of any weights")
        _OPCODES[opcode.name](reader, argument)
    return reader.pop(), stream.tell(), reader.storages


# Reading files

_Spans = dict[str, tuple[int, int]]
"""Where the bytes of each storage begin and end in the file, by the key of the storage."""


def _is_zip(data: Bytes) -> bool:
    return data[: len(_ZIP)].tobytes() == _ZIP


def _from_pickles(data: Bytes) -> tuple[dict[str, _Tensor], _Spans]:
    """The tensors of a file in the older format."""
    position, values = 0, []
    storages: dict[str, _Storage] = {}
    for _ in range(5):
        value, size, new_storages = _unpickled(data[position : position + _MAX_PICKLE].tobytes())
        position += size
        values.append(value)
        storages |= new_storages
        if values[0] != _MAGIC:
            raise _InvalidCheckpoint("it is not a PyTorch checkpoint")
    _, protocol, system, state, keys = values
    if protocol != _PROTOCOL:
        raise _InvalidCheckpoint("its version is not known")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _InvalidCheckpoint("its numbers are not in little-endian order")
    tensors = _tensors(state)
    if not isinstance(keys, list) or any(not isinstance(key, str) or key not in storages for key in keys):
        raise _InvalidCheckpoint("it has a storage that nothing refers to")
    return tensors, _spans(data, position, [storages[key] for key in keys])


def _spans(data: Bytes, position: int, storages: list[_Storage]) -> _Spans:
    """Where the storages lie that follow the pickles of the older format from `position` on."""
    spans = {}
    for storage in storages:
        if position + 8 > len(data):
            raise _InvalidCheckpoint("it is cut short")
        (count,) = struct.unpack("<q", data[position : position + 8].tobytes())
        end = position + 8 + count * storage.dtype.size
        if count < 0 or end > len(data):
            raise _InvalidCheckpoint("it is cut short")
        spans[storage.key] = (position + 8, end)
        position = end
    return spans


def _from_zip(data: Bytes, source: Path) -> tuple[dict[str, _Tensor], _Spans]:
    """The tensors of a file in the newer format."""
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.NameToInfo
    # zipfile raises any of these where a number in the archive is invalid.
    except (zipfile.BadZipFile, NotImplementedError, OverflowError, struct.error, OSError) as error:
        raise _InvalidCheckpoint(f"it is not a valid zip archive ({error})") from error
    pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise _InvalidCheckpoint("it is an archive, but not a PyTorch checkpoint")
    root = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{root}byteorder")
    if order and _member(data, order, 16).tobytes() != b"little":
        raise _InvalidCheckpoint("its numbers are not in little-endian order")
    state, _, storages = _unpickled(_member(data, members[pickles[0]], _MAX_PICKLE).tobytes())
    spans = {}
    for key in storages:
        if not (info := members.get(f"{root}data/{key}")):
            raise _InvalidCheckpoint(f"its storage {key[:40]!r} is missing")
        start = _start(data, info)
        _member(data, info, info.file_size)
        spans[key] = (start, start + info.file_size)
    return _tensors(state), spans


def _start(data: Bytes, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin: after its local header, whose length can differ from that in the directory."""
    header = data[info.header_offset : info.header_offset + 30].tobytes() if info.header_offset >= 0 else b""
    if len(header) < 30 or not header.startswith(_ZIP):
        raise _InvalidCheckpoint(f"its member {info.filename[:80]!r} is not where it should be")
    name, extra = struct.unpack("<HH", header[26:30])
    return int(info.header_offset + 30 + name + extra)


def _member(data: Bytes, info: zipfile.ZipInfo, max_size: int) -> Bytes:
    """The bytes of an uncompressed member, after a check of its checksum."""
    name, start = info.filename[:80], _start(data, info)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
        raise _InvalidCheckpoint(f"its member {name!r} is compressed")
    if info.file_size > max_size:
        raise _InvalidCheckpoint(f"its member {name!r} is larger than that of any weights")
    if start + info.file_size > len(data):
        raise _InvalidCheckpoint("it is cut short")
    content = data[start : start + info.file_size]
    if zlib.crc32(content.data) != info.CRC:
        raise _InvalidCheckpoint(f"its member {name!r} is damaged")
    return content


def _tensors(state: Any) -> dict[str, _Tensor]:
    """The state dict of a checkpoint, checked: names and tensors."""
    if not isinstance(state, dict) or not state:
        raise _InvalidCheckpoint("it holds no named tensors")
    for name, value in state.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise _InvalidCheckpoint(f"{str(name)[:80]!r} cannot be the name of a tensor")
        name.encode()  # raises ValueError for half a surrogate pair, which UTF-8 cannot hold
        if not isinstance(value, _Tensor):
            raise _InvalidCheckpoint(f"its {name[:80]!r} is not a tensor but of type {type(value).__name__}")
    return state


def _check_size(tensors: dict[str, _Tensor], size: int) -> None:
    if sum(tensor.bytes for tensor in tensors.values()) > _MAX_GROWTH * size:
        raise _InvalidCheckpoint("it holds the same numbers under too many names")


def _array(data: Bytes, spans: _Spans, tensor: _Tensor) -> NDArray[Any]:
    """The numbers of a tensor as a view of the file, without a copy; as unsigned integers of the right size."""
    storage, size = tensor.storage, tensor.storage.dtype.size
    if storage.key not in spans:
        raise _InvalidCheckpoint(f"its storage {storage.key[:40]!r} is missing")
    start, end = spans[storage.key]
    start += storage.first * size
    if start + storage.count * size > end:
        raise _InvalidCheckpoint(f"its storage {storage.key[:40]!r} is cut short")
    if not tensor.bytes:
        return np.empty(0, np.uint8)
    numbers = data[start : start + storage.count * size].view(f"u{size}")[tensor.offset :]
    # The stride of a dimension of size 1 is not used, and the file can hold any number there.
    strides = [stride * size if n > 1 else 0 for n, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return as_strided(numbers, tensor.shape, strides, writeable=False)


def _write(tensors: dict[str, _Tensor], arrays: dict[str, NDArray[Any]], out: BinaryIO) -> None:
    """Writes a safetensors file."""
    # The types with the largest numbers come first, as in safetensors itself, so that all numbers are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].storage.dtype.size, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        tensor = tensors[name]
        header[name] = {
            "dtype": tensor.storage.dtype.name,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.bytes],
        }
        offset += tensor.bytes
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    encoded += b" " * (-len(encoded) % 8)
    out.write(struct.pack("<Q", len(encoded)) + encoded)
    for name in order:
        out.write(np.ascontiguousarray(arrays[name]).data)
