"""Makes the table of look-alike letters that normalisation reads as Latin, which ships with the package.

    pip install confusable-homoglyphs
    python tools/confusables.py                # writes src/alimark/core/text/confusables.json

The package `confusable-homoglyphs` holds the Unicode table of confusables (UTS #39). Kept are letters outside ASCII that look
like a single ASCII letter. Left out are letters with a compatibility form, which NFKC handles, and Latin letters of ordinary
orthographies, such as the dotless i. `MORE` adds look-alikes that the Unicode table does not list because the two letters
differ in a common font, and small capitals, which are found by their names.

Keys do not rely on the table: it serves the reading without disguises.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from importlib import metadata, resources
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "src/alimark/core/text/confusables.json"
MORE = {
    "b": "вβ", "d": "đԁ", "e": "εєҽ", "f": "ƒϝ", "h": "һнћ", "i": "ιі", "k": "кκ", "m": "мﻡ", "n": "пηή", "o": "σөо", "r": "гɾ",
    "t": "тτ", "u": "υμцս", "w": "ωшԝ", "x": "χхж", "y": "уγч", "z": "ʐ", "E": "Є", "K": "Ҝ", "N": "И", "R": "Я",
}  # fmt: skip
LATIN = ("LATIN SMALL LETTER ALPHA", "LATIN SMALL LETTER SCRIPT G", "LATIN LETTER SMALL CAPITAL ")
"""The names of Latin letters that are read as others; what other Latin letters there are belongs to some orthography."""
ORTHOGRAPHY = "đƒ"


def looks_like(char: str, alternatives: list[str]) -> str | None:
    """The ASCII letter that a character looks like, or None where it does not belong into the table."""
    name = unicodedata.name(char, "")
    if char.isascii() or not char.isalnum() or unicodedata.normalize("NFKC", char) != char or char in ORTHOGRAPHY:
        return None
    if name.startswith("LATIN") and not name.startswith(LATIN):
        return None
    letters = [other for other in alternatives if len(other) == 1 and other.isascii() and other.isalpha()]
    if not letters:
        return None
    # The Unicode table takes l for the whole group of I, l, 1 and |.
    return "I" if "CAPITAL" in name and letters[0] == "l" else letters[0]


def table(confusables: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    """The look-alikes of each ASCII letter, as one string."""
    chosen = {
        char: letter
        for char, others in confusables.items()
        if len(char) == 1 and (letter := looks_like(char, [other["c"] for other in others]))
    }
    for letter, chars in MORE.items():
        chosen |= {char: letter for char in chars if looks_like(char, [letter]) and char not in chosen}
    for code in range(0x80, 0xA800):
        name = unicodedata.name(chr(code), "")
        letter = name.removeprefix("LATIN LETTER SMALL CAPITAL ")
        if letter != name and len(letter) == 1:
            chosen[chr(code)] = letter.lower()
    by_letter: dict[str, str] = {}
    for char in sorted(chosen):
        by_letter[chosen[char]] = by_letter.get(chosen[char], "") + char
    return dict(sorted(by_letter.items()))


def main() -> int:
    try:
        source = resources.files("confusable_homoglyphs").joinpath("confusables.json").read_text("utf-8")
    except ModuleNotFoundError:
        print("The package confusable-homoglyphs is not installed: pip install confusable-homoglyphs", file=sys.stderr)
        return 2
    letters = table(json.loads(source))
    content = {
        "source": f"Unicode confusables by confusable-homoglyphs {metadata.version('confusable-homoglyphs')}, "
        "with the additions of tools/confusables.py",
        "letters": letters,
    }
    FILE.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", "utf-8")
    print(f"{sum(map(len, letters.values()))} look-alikes of {len(letters)} letters in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
