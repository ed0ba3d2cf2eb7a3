"""Splits and cleans long runs of single characters and pairs; a program, so that its CPU time can be limited.

python linear_time.py
"""

from __future__ import annotations

import sys
import unicodedata

from alimark.attacks.structure import _CLAUSE_BREAKS, _FREE_PHRASE, _PHRASE
from alimark.rewriting.candidates import _EXACT
from alimark.text.code import outside_code
from alimark.text.splitting import splitter
from alimark.text.units import clean

LONG, SHORT = 1_000_000, 100_000
ROLES = 'aA1 \n\u2028.!…。؟"”)-*`'
"""Characters that the splitting rules treat differently."""


def classes() -> list[str]:
    """A character of each Unicode category."""
    by_category: dict[str, str] = {}
    for code in range(sys.maxunicode + 1):
        by_category.setdefault(unicodedata.category(chr(code)), chr(code))
    return list(by_category.values())


def check(text: str) -> None:
    """Runs everything that handles the text of a client; nothing may be lost."""
    spans = splitter().spans(text)
    if "".join("".join(text[a:b] for a, b in spans).split()) != "".join(text.split()):
        raise SystemExit(f"characters of {text[:20]!a}... were lost")
    clean(text)


def main() -> None:
    signs = classes()
    for sign in dict.fromkeys([*signs, *ROLES]):
        check(sign * LONG)
        for pattern in (_EXACT, _FREE_PHRASE, _PHRASE, *(pattern for pattern, _ in _CLAUSE_BREAKS)):
            list(pattern.finditer(sign * SHORT))
    for first in ROLES:
        for second in ROLES:
            if first < second:
                check((first + second) * (LONG // 4) + first * (LONG // 4) + second * (LONG // 4))
    for first in signs:
        for second in signs:
            if first < second:
                check((first + second) * (SHORT // 4) + first * (SHORT // 4) + second * (SHORT // 4))
    outside_code("```\n```\n" * (LONG // 8))
    outside_code("`" * LONG + "\n" + "`" * LONG)


if __name__ == "__main__":
    main()
