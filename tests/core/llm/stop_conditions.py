"""What tests pass as `over`."""

from __future__ import annotations

import re


def sentence_over(text: str) -> bool:
    """A plain reading of what callers pass: a mark and white space, or a blank line, behind a first word."""
    return re.search(r"(?<!Dr)(?<!Mrs)[.!?…][\"'”’)]*[ \n]|\n\n", text.lstrip()) is not None


def never_over(text: str) -> bool:
    return False
