"""Generation: only prose is marked, and what is written is read again as it was chosen."""

from __future__ import annotations

import re
from typing import Any

import pytest

from alimark import LLM, AliMark, Generation, Key, MarkedSentence
from alimark.core.frozen.text.splitting import splitter
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()
MARK = AliMark(Key.generate(embedder=EMBEDDER, secret=bytes(range(32))), embedder=EMBEDDER)
BLOCKS = {
    "list": "\n\n- Milk\n- Six eggs\n- Bread\n\n",
    "table": "\n\n| Name | Age |\n| --- | --- |\n| Ann | 12 |\n\n",
    "quotation": "\n\n> Call me Ishmael. Some years ago.\n> Never mind.\n\n",
    "math": "\n\n$$\nx^2 + y^2 = z^2\n$$\n\n",
    "code": "\n\n```python\nx = f(1)\nprint(x)\n```\n\n",
}


class Scripted(StandInLLM):
    """Writes a given block after the third sentence, and then goes on with prose, some of it with Markdown."""

    def __init__(self, block: str = "") -> None:
        super().__init__()
        self.block = block

    def _one(self, request: Request, number: int, sampling: Sampling, stop: StopCondition) -> Draw:
        context = request.context
        opened = len(re.findall(r"[.!?]\W*\s", context.partition("\n")[0] + " ")) >= 3
        if self.block and opened and self.block.strip() not in context:
            written = max(size for size in range(len(self.block)) if context.endswith(self.block[:size]))
            return self._rest(self.block[written:], stop)
        draw = super()._one(request, number, sampling, stop)
        if number % 3 == 0:
            text = re.sub(r"\b(the) (\w+)", r"\1 **\2**", draw.text, count=1)
            return Draw(text, draw.tokens, draw.ended)
        return draw

    def _rest(self, rest: str, stop: StopCondition) -> Draw:
        for end in range(1, len(rest) + 1):
            if stop(rest[:end]):
                return Draw(rest[:end], end, "sentence")
        return Draw(rest, len(rest), "length")


def write(llm: LLM, **options: Any) -> Generation:
    """A text of twelve sentences, which the splitter finds again as they were chosen."""
    generation = MARK.generate("It was late.", llm, sentences=12, candidates=16, seed=2, **options)
    assert generation.surviving == len(generation.sentences) == 12
    assert list(generation.sentences) == splitter(MARK.key.splitter).units(generation.text)
    return generation


@pytest.mark.parametrize("kind", ["table", "math", "code"])
def test_blocks_are_passed_through_and_hold_no_mark(kind: str) -> None:
    pieces: list[MarkedSentence] = []
    generation = write(Scripted(BLOCKS[kind]), progress=pieces.append)
    assert BLOCKS[kind].strip() in generation.text
    assert "".join(piece.piece for piece in pieces) == generation.text
    assert len(generation.matches) == 12
    assert MARK.detect(generation.text).verdict() == "found"


@pytest.mark.parametrize("kind", ["list", "quotation"])
def test_words_behind_layout_are_marked(kind: str) -> None:
    generation = write(Scripted(BLOCKS[kind]))
    assert {"list": "Milk.", "quotation": "Call me Ishmael."}[kind] in generation.sentences
    assert {"list": "\n- Milk\n- Six eggs\n", "quotation": "\n> Call me Ishmael."}[kind] in generation.text


def test_markup_inside_sentences_is_read_as_it_was_chosen() -> None:
    generation = write(Scripted())
    assert "**" in generation.text
    assert not any("**" in sentence for sentence in generation.sentences)
    plain = MARK.detect(generation.text.replace("**", ""))
    assert plain.sentences == MARK.detect(generation.text).sentences == generation.sentences


def test_candidates_that_normalisation_would_split_are_rejected() -> None:
    class Joined(StandInLLM):
        def _one(self, request: Request, number: int, sampling: Sampling, stop: StopCondition) -> Draw:
            draw = super()._one(request, number, sampling, stop)
            joined = Draw(draw.text.replace(" the ", " out.<br><br>The "), draw.tokens, draw.ended)
            return joined if number % 2 else draw

    generation = write(Joined())
    assert generation.rejected.get("resplit", 0) > 0
    assert "<br>" not in generation.text
