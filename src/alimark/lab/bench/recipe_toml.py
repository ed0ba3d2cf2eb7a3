"""Writes a recipe as TOML."""

from __future__ import annotations

from datetime import date
from datetime import time as clock_time
from typing import Any

from alimark.lab.bench.recipe import Recipe


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML with every setting, so that a report says how to repeat the run."""
    content = recipe.model_dump(exclude_none=True)
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    lists = {name: value for name, value in content.items() if _is_tables(value)}
    lines = [f"{name} = {_toml(value)}" for name, value in content.items() if name not in tables and name not in lists]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{_name(key)} = {_toml(value)}" for key, value in table.items())]
    for name, list_of_tables in lists.items():
        for table in list_of_tables:
            lines += ["", f"[[{name}]]", *(f"{_name(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'
    if isinstance(value, dict):
        inside = ", ".join(f"{_name(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, date | clock_time):  # a date with a time is a date, too
        return value.isoformat()
    return repr(value)


def _escape(character: str) -> str:
    """A character that is not printable, as TOML writes it. TOML has no half of a surrogate pair."""
    code = ord(character)
    return "\\ufffd" if 0xD800 <= code < 0xE000 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _name(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml(key)
