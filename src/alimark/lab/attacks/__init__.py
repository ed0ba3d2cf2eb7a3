"""Attacks: rewrites of marked texts that may remove the watermark, from deleted sentences to paraphrases by a chat model.

`load_attack` makes an attack by its name; `Attack` describes how to run it on one text or on many.
"""

from collections.abc import Mapping

from alimark.core._util.registry import Registry
from alimark.errors import AttackError
from alimark.lab.attacks.base import Attack, Attacked, SettingValue, Target, seed_for

__all__ = ["Attack", "Attacked", "SettingValue", "Target", "attack_class", "load_attack", "names", "seed_for"]


def _flaw(item: object) -> str:
    is_attack = isinstance(item, type) and issubclass(item, Attack)
    return "" if is_attack else "is not a subclass of alimark.lab.attacks.Attack"


ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    "alimark.attacks",
    {
        "insert": "alimark.lab.attacks.structure:Insert",
        "delete": "alimark.lab.attacks.structure:Delete",
        "reorder": "alimark.lab.attacks.structure:Reorder",
        "merge": "alimark.lab.attacks.structure:Merge",
        "split": "alimark.lab.attacks.structure:Split",
        "truncate": "alimark.lab.attacks.structure:Truncate",
        "copy-paste": "alimark.lab.attacks.structure:CopyPaste",
        "synonyms": "alimark.lab.attacks.words:Synonyms",
        "typos": "alimark.lab.attacks.words:Typos",
        "translate": "alimark.lab.attacks.translation:Translate",
        "pegasus": "alimark.lab.attacks.paraphrasers:Pegasus",
        "parrot": "alimark.lab.attacks.paraphrasers:Parrot",
        "dipper": "alimark.lab.attacks.dipper:Dipper",
        "chat": "alimark.lab.attacks.chat:Chat",
        "chat-sentences": "alimark.lab.attacks.chat:ChatSentences",
        "gpt-3.5": "alimark.lab.attacks.chat:GPT35Turbo",
    },
    error=AttackError,
    flaw=_flaw,
)
"""Attack classes by name. Packages add more by entry points of the group `alimark.attacks`."""


def names() -> list[str]:
    """The names of all attacks."""
    return list(ATTACKS.names())


def attack_class(name: str) -> type[Attack]:
    """The class of the attack of that name; its module is imported now, so that unused attacks load no libraries."""
    return ATTACKS.get(name)


def load_attack(name: str, **settings: SettingValue) -> Attack:
    """Makes an attack. Models and other data are loaded when it gets its first text.

    Args:
        name: The name of the attack; `names()` or `alimark attack list` lists them.
        settings: The settings of the attack by name. The defaults are those that the paper names, where it has the attack;
            `preset="paper"` also does what only the paper's public code shows.

    Returns:
        The attack: call it with a text, or call its `run` with many.

    Raises:
        AttackError: There is no attack of this name, it has no such setting, or a value is not possible.

    Example:
        >>> from alimark.lab.attacks import load_attack
        >>> delete = load_attack("delete", rate=0.5)
        >>> delete("The sun rose. The wind fell.", seed=1)
        'The wind fell.'
    """
    kind = attack_class(name)
    _check_types(name, kind, settings)
    try:
        return kind.of(**settings)
    except TypeError as error:
        raise AttackError(f"{name}: {error}; `alimark attack {name} --help` lists the settings") from None


def _check_types(name: str, kind: type[Attack], settings: Mapping[str, SettingValue]) -> None:
    """Raises AttackError for a setting whose value is not of the type of its default; 1 may stand for 1.0."""
    for option, field in kind.options().items():
        if option not in settings or field.default is None:
            continue
        value, wanted = settings[option], type(field.default)
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise AttackError(f"{name}: {option} must be {_TYPES.get(wanted, wanted.__name__)}, not {value!r}")


_TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
