"""Presets: the settings that they change, and settings that are given beside them."""

from dataclasses import fields
from typing import Any

import pytest

from alimark.errors import AttackError
from alimark.lab.attacks import attack_class, load_attack, names

WITH_PRESETS = [name for name in names() if attack_class(name).presets]
CHANGED = [
    (name, preset, setting)
    for name in WITH_PRESETS
    for preset, changes in attack_class(name).presets.items()
    for setting in changes
]


def test_attacks_of_the_paper_have_a_preset() -> None:
    assert WITH_PRESETS == ["insert", "delete", "reorder", "pegasus", "parrot", "dipper", "chat", "gpt-3.5"]
    for name in set(names()) - set(WITH_PRESETS):
        with pytest.raises(AttackError, match="has no preset 'paper'; there is: none"):
            load_attack(name, preset="paper")


@pytest.mark.parametrize(("name", "preset", "setting"), CHANGED)
def test_a_setting_beside_a_preset_wins_if_it_is_our_default(name: str, preset: str, setting: str) -> None:
    changed = load_attack(name, preset=preset)
    assert changed.follows_public_code
    assert getattr(changed, setting) == changed.settings[setting] == attack_class(name).presets[preset][setting]
    [value] = [option.default for option in fields(attack_class(name)) if option.name == setting]  # type: ignore[arg-type]
    given: dict[str, Any] = {"preset": preset, setting: value}
    kept = load_attack(name, **given)
    assert getattr(kept, setting) == kept.settings[setting] == value
    others = set(attack_class(name).presets[preset]) - {setting}
    assert all(getattr(kept, other) == getattr(changed, other) for other in others)
