"""Everything that is done to marked texts: what the paper does, and what people really do.

from alimark.attacks import load_attack
delete = load_attack("delete", rate=0.3)
delete(text, seed=7)                        # one text
for place, made in delete.run(targets):     # many, as they are finished
    ...
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from alimark.attacks.base import Attack, Attacked, Target, seed_for
from alimark.errors import AttackError

__all__ = ["Attack", "Attacked", "Target", "attack_class", "load_attack", "names", "seed_for"]

# Loaded by name, so that asking for one brings in the libraries of no other.
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
    return list(_HOME)


def attack_class(name: str) -> type[Attack]:
    """The attack of that name, without its settings."""
    if name not in _HOME:
        raise AttackError(f"no attack is named {name!r}; known: {', '.join(_HOME)}")
    module, _, class_name = _HOME[name].partition(".")
    found: type[Attack] = getattr(import_module(f"alimark.attacks.{module}"), class_name)
    return found


def load_attack(name: str, **settings: Any) -> Attack:
    """An attack with its settings; those not given are the paper's. Nothing heavy is loaded before its first text."""
    try:
        return attack_class(name)(**settings)
    except TypeError as error:
        raise AttackError(f"{name}: {error}; `alimark attack {name} --help` lists the settings") from None
