"""A quick test whether a text is English, and whether it can be written as UTF-8."""

import re

# The most frequent words of English; they make up about half of any running text.
COMMON = frozenset(
    "the of and to a in is was that it for on as with he be at by i this had not are but from or have an they which "
    "one you were her all she there would their we him been has when who will no if out so up what its about into than "
    "them can only other time new some could these two may then do first any my now such like our over me even most "
    "after also did many off before must well back through years much where your way down should because long those "
    "see said".split()
)
WORDS = re.compile(r"[^\W\d_]+")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def looks_english(text: str) -> bool:
    """Tells whether a text may be English; True for texts too short to judge."""
    sample = text[:20000]
    letters = [c for c in sample if c.isalpha()]
    if len(letters) >= 20 and sum(c <= "\u024f" for c in letters) < 0.7 * len(letters):
        return False
    words = [word.lower() for word in WORDS.findall(sample)]
    return len(words) < 20 or sum(word in COMMON for word in words) >= 0.15 * len(words)


def without_half_pairs(text: str) -> str:
    """The text with the replacement character in the place of each half surrogate pair.

    JSON can hold one in a text, but UTF-8 cannot, and tokenizers cannot read it.
    """
    return _HALF_PAIR.sub("\ufffd", text)
