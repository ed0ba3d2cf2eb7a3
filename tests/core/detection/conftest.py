"""A watermark with a fixed hard key and the sentences of a text marked with it; modules on soft keys override both."""

import pytest

from alimark import AliMark
from fixed_texts import EMBEDDER, fixed_key, written


@pytest.fixture(scope="module")
def mark() -> AliMark:
    return AliMark(fixed_key(0), embedder=EMBEDDER)


@pytest.fixture(scope="module")
def sentences(mark: AliMark) -> list[str]:
    return written(mark.key)
