"""Attacks: rewrites of marked texts that may remove the watermark, from deleted sentences to paraphrases by a chat model.

`load_attack` makes an attack by its name; `Attack` describes how to run it on one text or on many.
"""

from __future__ import annotations

from importlib import import_module

from alimark.attacks.base import Attack, Attacked, SettingValue, Target, seed_for
from alimark.errors import AttackError

__all__ = ["Attack", "Attacked", "SettingValue", "Target", "attack_class", "load_attack", "names", "seed_for"]

# Classes are imported by name, so that an attack does not import the libraries of the others.
_HOME = {
    "insert": "structure.Insert",
    "delete": "structure.Delete",
    "reorder": "structure.Reorder",
    "merge": "structure.Merge",
    "split": "structure.Split",
    "truncate": "structure.Truncate",
    "copy-paste": "structure.CopyPaste",
    "synonyms": "words.Synonyms",
    "typos": "words.Typos",
    "translate": "translation.Translate",
    "pegasus": "pegasus.Pegasus",
    "parrot": "parrot.Parrot",
    "dipper": "dipper.Dipper",
    "chat": "chat.Chat",
    "gpt-3.5": "chat.GPT35Turbo",
}


def names() -> list[str]:
    """The names of all attacks."""
    return list(_HOME)


def attack_class(name: str) -> type[Attack]:
    """The class of the attack of that name."""
    if name not in _HOME:
        raise AttackError(f"no attack is named {name!r}; known: {', '.join(_HOME)}")
    module, _, class_name = _HOME[name].partition(".")
    attack: type[Attack] = getattr(import_module(f"alimark.attacks.{module}"), class_name)
    return attack


def load_attack(name: str, **settings: SettingValue) -> Attack:
    """Makes an attack. Models and other data are loaded when it gets its first text.

    Args:
        name: The name of the attack; `names()` or `alimark attack list` lists them.
        settings: The settings of the attack by name. The defaults are those of the paper, where it has the attack.

    Returns:
        The attack: call it with a text, or call its `run` with many.

    Raises:
        AttackError: There is no attack of this name, it has no such setting, or a value is not possible.

    Example:
        >>> from alimark.attacks import load_attack
        >>> delete = load_attack("delete", rate=0.5)
        >>> delete("The sun rose. The wind fell.", seed=1)
        'The wind fell.'
    """
    try:
        return attack_class(name)(**settings)
    except TypeError as error:
        raise AttackError(f"{name}: {error}; `alimark attack {name} --help` lists the settings") from None
