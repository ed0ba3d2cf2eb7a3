"""Checkpoints written by torch are converted to safetensors bit for bit; hostile and broken files are refused."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alimark.core.models import checkpoint
from alimark.errors import ModelError

torch = pytest.importorskip("torch")

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
HUGE = 1 << 60


def save(made: object, path: Path, zipped: bool, **options: Any) -> Path:
    torch.save(made, path, _use_new_zipfile_serialization=zipped, **options)
    return path


def converted(source: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    target = source.with_name("model.safetensors")
    checkpoint.convert(source, target)
    assert sorted(p.name for p in source.parent.iterdir()) == sorted([source.name, target.name])
    loaded: dict[str, Any] = load_file(target)
    return loaded


def weights() -> OrderedDict[str, Any]:
    torch.manual_seed(0)
    whole = torch.randn(6, 8)
    made = OrderedDict(
        plain=torch.randn(3, 4),
        half=torch.randn(5).half(),
        brain=torch.randn(5, 1).bfloat16(),
        double=torch.randn(2, 2, 2).double(),
        long=torch.arange(7),
        int=torch.arange(5, dtype=torch.int32),
        short=torch.arange(5, dtype=torch.int16),
        char=torch.arange(-2, 3, dtype=torch.int8),
        byte=torch.arange(3, dtype=torch.uint8),
        bool=torch.tensor([True, False, True]),
        scalar=torch.tensor(2.5),
        empty=torch.empty(0, 3),
        transposed=whole.t(),
        column=whole[:, 3],
        corner=whole[2:5, 1::3],
        single=torch.randn(4, 1, 3).transpose(0, 1)[:, 1:3],
        spread=torch.arange(4.0).expand(1, 4),
        parameter=torch.nn.Parameter(torch.randn(2, 3)),
        tied=whole,
        tied_again=whole,
    )
    made["näme.ü"] = torch.ones(1)
    return made


@FORMS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_saved_comes_back_to_the_bit(tmp_path: Path, zipped: bool, protocol: int) -> None:
    before = weights()
    after = converted(save(before, tmp_path / "x.bin", zipped, pickle_protocol=protocol))
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert after[name].shape == tensor.shape
        assert torch.equal(after[name], tensor), name


@FORMS
def test_a_module_with_tied_weights_and_versions(tmp_path: Path, zipped: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
    model[1].weight = model[0].weight
    after = converted(save(model.state_dict(), tmp_path / "x.bin", zipped))
    assert torch.equal(after["0.weight"], model[0].weight)
    assert torch.equal(after["1.weight"], model[0].weight)
    assert after["2.num_batches_tracked"].shape == ()


def test_the_same_to_the_byte_whatever_the_form_and_the_order(tmp_path: Path) -> None:
    before = weights()
    made = []
    for i, (zipped, state) in enumerate([(True, before), (False, before), (True, dict(reversed(before.items())))]):
        checkpoint.convert(save(state, tmp_path / f"{i}.bin", zipped), tmp_path / f"{i}.safetensors")
        made.append((tmp_path / f"{i}.safetensors").read_bytes())
    assert made[0] == made[1] == made[2]
    from safetensors import safe_open

    with safe_open(tmp_path / "0.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_neither_torch_nor_an_unpickler_is_needed(tmp_path: Path) -> None:
    source = save(weights(), tmp_path / "x.bin", False)
    code = "import pickle, sys; from pathlib import Path; from alimark.core.models.checkpoint import convert; "
    code += "pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = None; "
    code += "convert(Path(sys.argv[1]), Path(sys.argv[2])); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(source), str(tmp_path / "x.safetensors")], check=True)


# Files that torch never writes. The classes below stand for names, calls and storages in a pickle.


class Named:
    """Is pickled as a name, which need not exist."""

    def __init__(self, name: str) -> None:
        self.name = name


class Call:
    def __init__(self, name: str, *given: object) -> None:
        self.name, self.given = name, given


class Stored:
    def __init__(self, *said: object) -> None:
        self.said = said


def pickled(value: object) -> bytes:
    """A pickle of protocol 2, written here because the pickle module refuses names that do not exist."""
    return b"\x80\x02" + _ops(value) + b"."


def _ops(value: object) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return pickle.dumps(value, 2)[2:-1]
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return b"(" + b"".join(map(_ops, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_ops, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_ops(key) + _ops(item) for key, item in value.items()) + b"u"
        case Named():
            return b"c" + value.name.replace(" ", "\n").encode() + b"\n"
        case Call():
            return _ops(Named(value.name)) + _ops(value.given) + b"R"
        case Stored():
            return _ops(value.said) + b"Q"
    raise TypeError(value)


def stored(count: object = 4, key: object = "0", kind: str = "torch FloatStorage", *more: object) -> Stored:
    return Stored("storage", Named(kind), key, "cpu", count, *more)


def tensor(storage: object, offset: object = 0, shape: object = (4,), strides: object = (1,)) -> Call:
    return Call("torch._utils _rebuild_tensor_v2", storage, offset, shape, strides, False, {})


DATA = struct.pack("<4f", 1, 2, 3, 4)


def legacy(made: object, keys: object = ("0",), count: int = 4, data: bytes = DATA, little: bool = True) -> bytes:
    storages = [] if keys == () else [struct.pack("<q", count) + data]
    system = {"protocol_version": 1001, "little_endian": little}
    keys = list(keys) if isinstance(keys, tuple) else keys
    head = [pickled(part) for part in (0x1950A86A20F9469CFC6C, 1001, system, made, keys)]
    return b"".join(head + storages)


def zipped_of(made: object, members: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("m/data.pkl", pickled(made))
        for name, content in {"m/data/0": DATA, **(members or {})}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


BUILDERS = pytest.mark.parametrize("build", [legacy, zipped_of], ids=["legacy", "zip"])
Build = Callable[..., bytes]


def refused(tmp_path: Path, content: bytes, reason: str) -> None:
    source, target = tmp_path / "x.bin", tmp_path / "x.safetensors"
    source.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        checkpoint.convert(source, target)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


@BUILDERS
def test_a_file_by_hand_is_read(tmp_path: Path, build: Build) -> None:
    (tmp_path / "x.bin").write_bytes(build({"w": tensor(stored(), 1, (3,))}))
    assert converted(tmp_path / "x.bin")["w"].tolist() == [2, 3, 4]


def test_a_view_of_an_old_file(tmp_path: Path) -> None:
    part = stored(4, "0", "torch FloatStorage", ("view", 2, 2))
    (tmp_path / "x.bin").write_bytes(legacy({"w": tensor(part, 0, (2,))}))
    assert converted(tmp_path / "x.bin")["w"].tolist() == [3, 4]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ['ALIMARK_EVIL']}",)


@FORMS
def test_a_pickle_that_runs_a_command_does_not(tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = tmp_path.parent / f"{tmp_path.name}-touched"
    monkeypatch.setenv("ALIMARK_EVIL", str(touched))
    save({"w": torch.ones(2), "x": Evil()}, tmp_path / "x.bin", zipped)
    refused(tmp_path, (tmp_path / "x.bin").read_bytes(), r"it names '(posix|nt)\.system'.*run code")
    assert not touched.exists()


@BUILDERS
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"w": Call("builtins eval", "1")}, r"names 'builtins\.eval'"),
        ({"w": Call("torch._utils _rebuild_tensor_v3", 1)}, "_rebuild_tensor_v3"),
        ({"w": Call("torch.storage UntypedStorage", 1)}, "UntypedStorage"),
        ({"w": Call("torch FloatStorage", 1)}, "calls something that is not a function"),
        ({"w": tensor(stored(kind="torch ComplexFloatStorage"))}, "ComplexFloatStorage"),
        ({"w": tensor(stored(kind="collections OrderedDict"))}, "storage without a type"),
        ({"w": tensor(stored(HUGE), 0, (HUGE,))}, "cut short|too many names"),
        ({"w": tensor(stored(5), 0, (5,))}, "cut short"),
        ({"w": tensor(stored(-1))}, "without a key or a count"),
        ({"w": tensor(stored(1 << 70))}, "cut short"),
        ({"w": tensor(stored(1 << 200))}, "larger than that of any"),
        ({"w": tensor(stored(), 1)}, "larger than its storage"),
        ({"w": tensor(stored(), HUGE, (1,))}, "larger than its storage"),
        ({"w": tensor(stored(), -1, (1,))}, "does not consist of counts"),
        ({"w": tensor(stored(), True, (1,))}, "does not consist of counts"),
        ({"w": tensor(stored(), 0, (-4,))}, "does not consist of counts"),
        ({"w": tensor(stored(), 3, (2,), (-1,))}, "does not consist of counts"),
        ({"w": tensor(stored(), 0, (HUGE,), (0,))}, "larger than its storage"),
        ({"w": tensor(stored(), 0, (2, 2), (1,))}, "without a valid shape"),
        ({"w": tensor(stored(), 0, (1,) * 40, (1,) * 40)}, "without a valid shape"),
        ({"w": tensor(stored(), 0, [4])}, "without a valid shape"),
        ({"w": tensor(DATA and 5)}, "without a storage"),
        ({"w": Call("torch._utils _rebuild_tensor_v2")}, "without a storage"),
        ({"w": Call("torch._utils _rebuild_parameter", 4)}, "parameter that is not a tensor"),
        ({"w": tensor(stored()), "v": tensor(stored(2, kind="torch DoubleStorage"))}, "has two types"),
        ({"w": tensor(stored(4, "0", "torch FloatStorage", ("v", 2, 3)))}, "view that is larger"),
        ({"w": tensor(stored(4, "0", "torch FloatStorage", ("v", -2, 3)))}, "invalid view of a storage"),
        ({"w": Stored("module", 1, 2, 3, 4)}, "not a storage"),
        ({"w": Stored(1)}, "not a storage"),
        ({"w": stored()}, "not a tensor but of type _Storage"),
        ({"w": 4}, "'w' is not a tensor but of type int"),
        ({"model": {"w": tensor(stored())}}, "'model' is not a tensor but of type dict"),
        ({4: tensor(stored())}, "cannot be the name of a tensor"),
        ({"__metadata__": tensor(stored())}, "cannot be the name of a tensor"),
        ({(1, 2): 3}, "key of type tuple"),
        ([tensor(stored())], "no named tensors"),
        ({}, "no named tensors"),
        (Call("collections OrderedDict", [[1]]), "not a pair"),
        (Call("collections OrderedDict", 7), "not a pair"),
    ],
)
def test_what_is_refused(tmp_path: Path, build: Build, made: object, reason: str) -> None:
    refused(tmp_path, build(made), reason)


GOOD = {"w": tensor(stored())}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04", "not a valid zip archive"),
        (b"GGUF" * 10, "was not converted"),
        (pickled(5), "not a PyTorch checkpoint"),
        (pickled({"w": 1}), "not a PyTorch checkpoint"),
        (legacy(GOOD).replace(b"\x4d\xe9\x03.", b"\x4d\xe8\x03.", 1), "version"),
        (legacy(GOOD, little=False), "little-endian"),
        (legacy(GOOD, count=HUGE), "cut short"),
        (legacy(GOOD, count=-1), "cut short"),
        (legacy(GOOD, count=3, data=DATA[:12]), "storage '0' is cut short"),
        (legacy(GOOD, ("1",)), "nothing refers"),
        (legacy(GOOD, ()), "storage '0' is missing"),
        (legacy(GOOD, 5), "nothing refers"),
        (zipped_of(GOOD, {"m/byteorder": b"big"}), "little-endian"),
        (zipped_of(GOOD, method=zipfile.ZIP_DEFLATED), "compressed"),
        (zipped_of(GOOD, {"n/data.pkl": b"."}), "not a PyTorch checkpoint"),
        (zipped_of({"w": tensor(stored(key="../../x"))}), r"'\.\./\.\./x' is missing"),
        (zipped_of(GOOD).replace(DATA, DATA[::-1]), "damaged"),
        (pickled(5)[:2] + b"X" + struct.pack("<I", 0xFFFFFFFF), "remain"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62), "remain"),
        (b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.", "not a PyTorch checkpoint"),
        (b"\x80\x02(i" + b"os\nsystem\n.", "opcode INST"),
        (b"\x80\x02\x81.", "opcode NEWOBJ"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"\x80\x02Pid\n.", "opcode PERSID"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"names 'os\.system'"),
        (b"\x80\x04K\x01K\x01\x93.", "not a string"),
        (b"\x80\x02R.", "empty stack"),
        (b"\x80\x02t.", "mark"),
        (b"\x80\x02h\x07.", "never written"),
        (b"\x80\x02q\x00.", "type object"),
        (b"\x80\x02K\x01K\x01a.", "type list"),
        (b"\x80\x02}(K\x01u.", "without a value"),
        (b"\x80\x02}N}b.", "type dict|checkpoint"),
        (b"\x80\x02" + b"]" * 100, "exhausted"),
        # Nested tuples, each twice as large as the one inside it: walking or hashing them would take exponential time.
        (pickled(5)[:2] + b")q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b".", "not a PyTorch checkpoint"),
        (pickled(5)[:2] + b")q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b"}h\x00Ns.", "key of type tuple"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, reason: str) -> None:
    refused(tmp_path, content, reason)


@FORMS
def test_the_same_numbers_under_many_names_do_not_fill_the_disk(tmp_path: Path, zipped: bool) -> None:
    one = torch.ones(20_000)
    source = save({f"w{i}": one for i in range(20)}, tmp_path / "x.bin", zipped)
    refused(tmp_path, source.read_bytes(), "too many names")


def test_a_pickle_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_MAX_OPCODES", 1000)
    refused(tmp_path, b"\x80\x02" + b"]" * 5000, "larger than that of any")
    monkeypatch.setattr(checkpoint, "_MAX_PICKLE", 100)
    refused(tmp_path, zipped_of({"w" * 100: tensor(stored())}), "larger than that of any")


@FORMS
def test_a_file_cut_short_anywhere(tmp_path: Path, zipped: bool) -> None:
    source = save({"w": torch.arange(6.0), "v": torch.ones(3)}, tmp_path / "x.bin", zipped)
    whole = source.read_bytes()
    for size in range(0, len(whole), 7):
        source.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            checkpoint.convert(source, tmp_path / "x.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


@FORMS
def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path: Path, zipped: bool) -> None:
    source = save({"w": torch.arange(6.0).view(2, 3), "v": torch.ones(3).half()}, tmp_path / "x.bin", zipped)
    whole, dice = source.read_bytes(), random.Random(4)
    refusals = 0
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(dice.choice([1, 1, 2, 8])):
            changed[dice.randrange(len(whole))] = dice.randrange(256)
        source.write_bytes(changed)
        try:
            checkpoint.convert(source, tmp_path / "x.safetensors")
        except ModelError:
            refusals += 1
    assert 50 < refusals < 300


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(weights(), tmp_path / "x.bin", True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.convert(source, tmp_path / "x.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]
