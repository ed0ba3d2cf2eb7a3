"""Damaged and malicious key files: every one is refused with a `KeyFileError`, or is a usable key. Folders of keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alimark.core.keys.key import Key, load_keys
from alimark.errors import AlimarkError, AttackError, KeyFileError
from alimark.testing import StandInEmbedder

KEYS = {
    "soft": Key.generate(embedder=StandInEmbedder(), secret=bytes(32)),
    "hard": Key.generate(embedder=StandInEmbedder(), decision="hard", secret=bytes(32)),
    "arrays": Key.from_arrays([[0, 1], [1, 0]], np.eye(2, 64), embedder=StandInEmbedder()),
    "kgw": Key.generate(scheme="kgw", secret=bytes(32)),
    "pmark": Key.generate(scheme="pmark", embedder=StandInEmbedder(), secret=bytes(32)),
}
ODD = [
    None, True, False, -1, 0, 10**400, 2**63, 1e308, float("nan"), float("inf"), "", " ", "x", "\ud800", [], [1], [[999]],
    [[True]], [[0, 1], [1]], [[-1, 0]], [[0.5, 1]], {}, {"a": 1}, "A" * 44,
]  # fmt: skip
MORE_FIELDS = ["bits", "vectors", "law", "centre", "offsets", "run", "span", "fitted", "soft_version", "directions"]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.sampled_from(ODD)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def fields(key: Key) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(key._encoded())
    return content


def check(content: dict[str, Any]) -> None:
    """Reads a key file and uses the key."""
    try:
        key = Key._decoded(json.dumps(content).encode(), "key.json")
        assert key.id.startswith("ak")
        assert repr(key).encode()
        if key.scheme == "alimark":
            key.blocks(3)
            key.vectors(64)
    except AlimarkError:
        pass


@pytest.mark.parametrize("kind", KEYS)
def test_odd_values_in_every_field(kind: str) -> None:
    content = fields(KEYS[kind])
    for name in [*content, *MORE_FIELDS]:
        for value in ODD:
            for removed in ((), ("id",)):
                changed = {field: item for field, item in content.items() if field not in removed}
                check(changed | {name: value})
    if "parameters" in content:
        for name in content["parameters"]:
            for value in ODD:
                check(content | {"parameters": content["parameters"] | {name: value}})


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.data())
def test_random_values(kind: str, data: st.DataObject) -> None:
    content = fields(KEYS[kind])
    del content["id"]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.sampled_from([*content, *MORE_FIELDS]))] = data.draw(VALUES)
    check(content)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(KeyFileError):
        Key._decoded(data, "key.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", True), ("block_size", True), ("offsets", True), ("offsets", 0), ("offsets", 2**20), ("offsets", "16"),
     ("embedder", ""), ("embedder", " "), ("embedder", 5),
     ("embedder", None), ("fingerprint", ["x"]), ("splitter", 1), ("embedder", "\ud800"), ("bits", [[999]])],
)  # fmt: skip
def test_refused(name: str, value: object) -> None:
    content = fields(KEYS["hard"])
    del content["id"]
    with pytest.raises(KeyFileError):
        Key._decoded(json.dumps(content | {name: value}).encode(), "key.json")


def test_a_bad_file_in_a_folder_is_left_out(tmp_path: Path) -> None:
    KEYS["hard"].save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"version": 1, "bits": [[999]]}')
    (tmp_path / "b.json").chmod(0o600)
    with pytest.warns(UserWarning, match=r"left out: .*b\.json"):
        assert load_keys([tmp_path]) == [KEYS["hard"]]
    with pytest.raises(KeyFileError, match=r"b\.json"):
        load_keys([tmp_path / "b.json"])
    (tmp_path / "a.json").unlink()
    with pytest.warns(UserWarning, match="left out"), pytest.raises(KeyFileError, match=r"b\.json"):
        load_keys([tmp_path])


def test_files_and_folders_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    paths = [folder / "b.json", folder / "a.json", tmp_path / "c.json"]
    for path in paths:
        Key.generate().save(path)
    (folder / "notes.txt").write_text("no key")
    keys = load_keys([paths[2], str(folder)])
    assert [key.id for key in keys] == [Key.load(path).id for path in (paths[2], paths[1], paths[0])]


def test_a_folder_without_keys(tmp_path: Path) -> None:
    with pytest.raises(AlimarkError, match="no key file"):
        load_keys([tmp_path])


@pytest.mark.parametrize(
    ("name", "value"), [("via", 5), ("via", None), ("beams", True), ("beams", "2"), ("batch", 1.5)]
)
def test_settings_of_attacks_have_types(name: str, value: Any) -> None:
    from alimark.lab.attacks import load_attack

    with pytest.raises(AttackError, match=f"{name} must be"):
        load_attack("translate", **{name: value})
