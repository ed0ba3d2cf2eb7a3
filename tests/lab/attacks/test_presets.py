"""Presets: the settings that they change, and settings that are given beside them."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import pytest

from alimark.lab.attacks import SettingValue, attack_class, load_attack, names
from alimark.lab.attacks.base import recorded_settings
from alimark.lab.attacks.chat import Chat, GPT35Turbo
from alimark.lab.attacks.pegasus import Pegasus

WITH_PRESETS = [name for name in names() if attack_class(name).presets]
CHANGED = [
    (name, preset, setting)
    for name in WITH_PRESETS
    for preset, changes in attack_class(name).presets.items()
    for setting in changes
]


def default(name: str, setting: str) -> Any:
    return next(option.default for option in fields(attack_class(name)) if option.name == setting)  # type: ignore[arg-type]


def test_attacks_of_the_paper_have_a_preset() -> None:
    assert WITH_PRESETS == ["pegasus", "parrot", "dipper", "chat", "gpt-3.5"]


@pytest.mark.parametrize(("name", "preset", "setting"), CHANGED)
def test_a_setting_beside_a_preset_wins_if_it_is_our_default(name: str, preset: str, setting: str) -> None:
    changed = load_attack(name, preset=preset)
    assert getattr(changed, setting) == attack_class(name).presets[preset][setting]
    value: SettingValue = default(name, setting)
    kept = load_attack(name, **{"preset": preset, setting: value})
    assert getattr(kept, setting) == value
    assert kept.settings[setting] == value
    others = set(attack_class(name).presets[preset]) - {setting}
    assert all(getattr(kept, other) == getattr(changed, other) for other in others)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("chat", {"max_tokens": 1024}),
        ("chat", {"tries": 4}),
        ("gpt-3.5", {"max_tokens": 1024}),
        ("pegasus", {"sample": False}),
        ("pegasus", {"repetition_penalty": 1.0}),
        ("pegasus", {"top_k": 0}),
        ("dipper", {"tries": 3}),
        ("dipper", {"max_new_tokens": 0}),
        ("parrot", {"max_tokens": 128}),
    ],
)
def test_the_cases_where_our_default_lost(name: str, given: dict[str, SettingValue]) -> None:
    [(setting, value)] = given.items()
    assert default(name, setting) == value
    assert getattr(load_attack(name, **{"preset": "paper"}, **given), setting) == value


def test_an_attack_that_is_made_in_python() -> None:
    assert Chat(preset="paper", max_tokens=1024).max_tokens == 1024
    assert Chat("gpt", 1.0, 1.0, 1024, preset="paper").max_tokens == 1024
    assert GPT35Turbo(preset="paper", tries=4).tries == 4
    attack = Pegasus(preset="paper", sample=False)
    assert attack == Pegasus(preset="paper", sample=False) != Pegasus(preset="paper")
    for twin in (copy.copy(attack), copy.deepcopy(attack), replace(attack), replace(attack, beams=10)):
        assert twin == attack
        assert hash(twin) == hash(attack)
        assert (twin.sample, twin.top_k) == (False, 50)


@pytest.mark.parametrize("name", names())
def test_records_of_defaults_do_not_name_what_an_attack_gained_later(name: str) -> None:
    kind = attack_class(name)
    gained = {option.name for option in fields(kind) if not option.metadata.get("record_default", True)}  # type: ignore[arg-type]
    assert not gained & set(load_attack(name).settings)


def test_what_a_preset_changes_is_recorded() -> None:
    settings = Pegasus(preset="paper").settings
    assert (settings["preset"], settings["top_k"], settings["repetition_penalty"]) == ("paper", 50, 1.03)
    assert Pegasus(preset="paper", top_k=0, repetition_penalty=1.0).settings == (
        settings | {"top_k": 0, "repetition_penalty": 1.0}
    )


def test_the_settings_of_a_recipe_differ_where_the_attacks_do() -> None:
    """Job ids of the bench follow from these settings, so an attack with another result must not have the same ones."""
    preset: dict[str, Any] = {"preset": "paper"}
    assert recorded_settings(Pegasus, preset) == preset
    assert recorded_settings(Pegasus, preset | {"top_k": 0}) == preset | {"top_k": 0}
    assert recorded_settings(Pegasus, {"top_k": 0, "preset": ""}) == {}
    assert recorded_settings(Chat, preset | {"rounds": 1}) == preset  # which the preset does not change
