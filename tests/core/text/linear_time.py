"""Splits and cleans long runs of single characters and pairs; a program, so that it can be ended where C code takes too long.

python linear_time.py

The CPU time of every text is limited. The last line of the output names the text that took too long.
"""

import signal
import sys
import unicodedata

from alimark.core.frozen.text.normalising import normalise
from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import clean
from alimark.core.rewriting.candidates import _EXACT
from alimark.core.text.disguises import undisguise
from alimark.lab.attacks.structure import _CLAUSE_BREAKS, _FREE_PHRASE, _PHRASE

LONG, SHORT = 240_000, 50_000
CPU_SECONDS_PER_CHARACTER = 2e-5
"""Several times what the slowest text takes. Quadratic time is more than that in texts of the length SHORT already."""
ROLES = 'aA1 \n\u2028.!…。؟"”)-*`'
"""Characters that the splitting rules treat differently."""


def classes() -> list[str]:
    """A character of each Unicode category."""
    by_category: dict[str, str] = {}
    for code in range(sys.maxunicode + 1):
        by_category.setdefault(unicodedata.category(chr(code)), chr(code))
    return list(by_category.values())


def limit(text: str) -> None:
    """Starts the CPU time that the text may take. The signal at its end kills the process, even inside a regular expression."""
    sys.stdout.write(f"{text[:2]!a} to {text[-1:]!a}, {len(text)} characters\n")
    sys.stdout.flush()
    signal.setitimer(signal.ITIMER_PROF, len(text) * CPU_SECONDS_PER_CHARACTER)


def check(text: str) -> None:
    """Runs everything that handles the text of a client; nothing may be lost."""
    limit(text)
    spans = splitter().spans(text)
    if "`" not in text and "".join("".join(text[a:b] for a, b in spans).split()) != "".join(text.split()):
        raise SystemExit(f"characters of {text[:20]!a}... were lost")
    clean(text)


def main() -> None:
    splitter()  # loads what it needs before the first limit
    signs = classes()
    for sign in dict.fromkeys([*signs, *ROLES]):
        check(sign * LONG)
        limit(sign * LONG)
        undisguise(sign * LONG)
        for pattern in (_EXACT, _FREE_PHRASE, _PHRASE, *(pattern for pattern, _ in _CLAUSE_BREAKS)):
            limit(sign * SHORT)
            list(pattern.finditer(sign * SHORT))
    for first in ROLES:
        for second in ROLES:
            if first < second:
                text = (first + second) * (LONG // 4) + first * (LONG // 4) + second * (LONG // 4)
                check(text)
                limit(text)
                undisguise(text)
    for first in signs:
        for second in signs:
            if first < second:
                check((first + second) * (SHORT // 4) + first * (SHORT // 4) + second * (SHORT // 4))
    for text in ("```\n```\n" * (LONG // 8), "`" * LONG + "\n" + "`" * LONG):
        limit(text)
        normalise(text)


if __name__ == "__main__":
    main()
