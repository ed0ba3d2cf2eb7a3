"""Everything that is done to marked texts: what the paper does, and what people really do.

from alimark.attacks import load_attack
delete = load_attack("delete", rate=0.3)
delete(text, seed=7)                        # one text
for place, made in delete.run(targets):     # many, as they are finished
    ...
"""

from __future__ import annotations

from typing import Any

from alimark._util.registry import Registry
from alimark.attacks.base import Attack, Attacked, Target, seed_for
from alimark.errors import AttackError

__all__ = ["Attack", "Attacked", "Target", "attack_class", "load_attack", "names", "seed_for"]

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    "alimark.attacks",
    {
        "insert": "alimark.attacks.structure:Insert",
        "delete": "alimark.attacks.structure:Delete",
        "reorder": "alimark.attacks.structure:Reorder",
        "merge": "alimark.attacks.structure:Merge",
        "split": "alimark.attacks.structure:Split",
        "truncate": "alimark.attacks.structure:Truncate",
        "copy-paste": "alimark.attacks.structure:CopyPaste",
        "synonyms": "alimark.attacks.words:Synonyms",
        "typos": "alimark.attacks.words:Typos",
        "translate": "alimark.attacks.translation:Translate",
        "pegasus": "alimark.attacks.pegasus:Pegasus",
        "parrot": "alimark.attacks.parrot:Parrot",
        "dipper": "alimark.attacks.dipper:Dipper",
        "chat": "alimark.attacks.chat:Chat",
        "gpt-3.5": "alimark.attacks.chat:GPT35Turbo",
    },
    error=AttackError,
)
"""Attack classes by name. Packages add more by entry points of the group `alimark.attacks`."""


def names() -> list[str]:
    """The names of all attacks."""
    return list(ATTACKS.names())


def attack_class(name: str) -> type[Attack]:
    """The attack of that name, without its settings; its module is imported here and not before."""
    return ATTACKS.get(name)


def load_attack(name: str, **settings: Any) -> Attack:
    """An attack with its settings; those not given are the paper's. Nothing heavy is loaded before its first text."""
    try:
        return attack_class(name)(**settings)
    except TypeError as error:
        raise AttackError(f"{name}: {error}; `alimark attack {name} --help` lists the settings") from None
