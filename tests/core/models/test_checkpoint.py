"""Checkpoints written by torch are converted to safetensors bit for bit; hostile and broken files are refused."""

import os
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from alimark.core.models import converting
from alimark.errors import MissingExtra, ModelError

torch = pytest.importorskip("torch")

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(made: object, path: Path, zipped: bool, **options: Any) -> Path:
    torch.save(made, path, _use_new_zipfile_serialization=zipped, **options)
    return path


def converted(source: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    target = source.with_name("model.safetensors")
    converting.convert(source, target)
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
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # torch writes protocol 2 itself
def test_what_torch_saved_is_read_to_the_bit(tmp_path: Path, zipped: bool, protocol: int) -> None:
    before = weights()
    after = converting.read(save(before, tmp_path / "x.bin", zipped, pickle_protocol=protocol))
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert (after[name].dtype, after[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(after[name], tensor), name


def test_the_same_tensors_give_the_same_file_in_any_form_and_order(tmp_path: Path) -> None:
    before = weights()
    after = converted(save(before, tmp_path / "x.bin", False))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    other = tmp_path / "other.safetensors"
    converting.convert(save(dict(reversed(before.items())), tmp_path / "y.bin", True), other)
    assert other.read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    from safetensors import safe_open

    with safe_open(other, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_torch_is_needed_and_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "find_spec", lambda library: None)
    with pytest.raises(MissingExtra, match="transformers"):
        converting.convert(save(weights(), tmp_path / "x.bin", False), tmp_path / "x.safetensors")


# Files that torch never writes


def refused(tmp_path: Path, content: bytes, reason: str) -> None:
    source, target = tmp_path / "x.bin", tmp_path / "x.safetensors"
    source.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        converting.convert(source, target)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ['ALIMARK_EVIL']}",)


@FORMS
def test_a_pickle_that_runs_a_command_does_not(tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = tmp_path.parent / f"{tmp_path.name}-touched"
    monkeypatch.setenv("ALIMARK_EVIL", str(touched))
    save({"w": torch.ones(2), "x": Evil()}, tmp_path / "x.bin", zipped)
    refused(tmp_path, (tmp_path / "x.bin").read_bytes(), r"(posix|nt)\.system")
    assert not touched.exists()


@FORMS
@pytest.mark.parametrize(
    "content",
    [
        {"w": 4},
        {"model": {"w": torch.ones(4)}},
        {4: torch.ones(4)},
        {"__metadata__": torch.ones(4)},
        [torch.ones(4)],
        {},
    ],
)
def test_what_is_not_a_table_of_tensors_is_refused(tmp_path: Path, zipped: bool, content: object) -> None:
    with pytest.raises(ValueError, match=r"named tensors|not a tensor|name of a tensor"):
        converting.read(save(content, tmp_path / "x.bin", zipped))


@pytest.mark.parametrize(
    "content",
    [b"PK\x03\x04", b"GGUF" * 10, b"\x80\x02X\xff\xff\xff\xff", b"\x80\x02(ios\nsystem\n.", b"\x80\x02}(K\x01u."],
)
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ValueError, match="refuses"):
        converting.read(tmp_path / "x.bin")


def test_the_message_of_a_broken_file(tmp_path: Path) -> None:
    refused(tmp_path, b"", "empty; download it again")
    refused(tmp_path, b"GGUF" * 10, "was not converted.*safetensors")


def test_the_same_numbers_under_many_names_do_not_fill_the_disk(tmp_path: Path) -> None:
    numbers = torch.ones(20_000)
    source = save({f"w{number}": numbers for number in range(20)}, tmp_path / "x.bin", True)
    refused(tmp_path, source.read_bytes(), "too many names")


def test_a_file_that_never_ends_to_be_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested tuples, each twice as large as the one inside it: hashing them would take exponential time."""
    monkeypatch.setattr(converting, "_SECONDS", 4)
    content = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b"}h\x00Ns."
    refused(tmp_path, content, "more than 4 seconds")


@FORMS
def test_a_file_cut_short_or_changed_is_read_or_refused(tmp_path: Path, zipped: bool) -> None:
    source = save({"w": torch.arange(6.0).view(2, 3), "v": torch.ones(3).half()}, tmp_path / "x.bin", zipped)
    whole, dice = source.read_bytes(), random.Random(4)
    for size in range(0, len(whole), 97):
        source.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="refuses"):
            converting.read(source)
    refusals = 0
    for _ in range(100):
        changed = bytearray(whole)
        for _ in range(dice.choice([1, 1, 2, 8])):
            changed[dice.randrange(len(whole))] = dice.randrange(256)
        source.write_bytes(changed)
        try:
            converting.read(source)
        except ValueError:
            refusals += 1
    assert 15 < refusals < 100


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not exist stands in for the disk."""
    source = save(weights(), tmp_path / "x.bin", True)
    with pytest.raises(OSError, match="No such file"):
        converting.convert(source, tmp_path / "missing" / "x.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]
