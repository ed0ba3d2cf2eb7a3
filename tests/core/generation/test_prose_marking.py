"""Generation: only prose is marked, and what is written is read again as it was chosen."""

import random
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

WORDS = (
    "keeper lamp visitor river bridge letter garden winter window painter captain slept walked found sold hid".split()
)


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


class Enclosing(StandInLLM):
    """Writes six sentences between two strings, with a border between them, and ends its text behind."""

    def __init__(self, opening: str, closing: str, border: str) -> None:
        super().__init__()
        self.opening, self.closing, self.border = opening, closing, border

    def _one(self, request: Request, number: int, sampling: Sampling, stop: StopCondition) -> Draw:
        chance, written, text = random.Random(f"{request.seed} {number}"), request.context, ""
        while True:
            count = written.count(".")
            tail = written.rpartition(".")[2] if count else written
            fixed = self.opening if not count else self.border if count < 6 else self.closing
            done = max(
                size for size in range(len(fixed) + 1) if tail.startswith(fixed[:size].rstrip(" ") or fixed[:size])
            )
            sentence = " ".join(["The", *(chance.choice(WORDS) for _ in range(7))]) + "."
            blank = "" if (fixed + text)[-1:].isspace() else " "
            for letter in fixed[done:] + (blank + sentence) * (count < 6):
                written, text = written + letter, text + letter
                if stop(text):
                    return Draw(text, 1, "sentence")
            if count >= 6:
                return Draw(text, 1, "model")


@pytest.mark.parametrize(
    ("opening", "closing", "border"),
    [
        ("", "\n", ""),
        ("```text\n", "\n```\n", ""),
        ("```\nx = f(y);\n\n", "\n```\n", "\n\n"),
        ("~~~\n", "\n~~~\n", "\n\ny = g(x);\n\n"),
        ("$$\n", "\n$$\n", ""),
        ("\\[ ", " \\]\n", ""),
        ("\\begin{quote}\n", "\n\\end{quote}\n", ""),
        ('```python\ndef f(x):\n    """What it says\n\n    ', '\n\n    """\n    return x\n```\n', ""),
        ("| 1 |", " | 12 |\n", " | 12 |\n| 1 |"),
        ("> ", "\n", "\n> "),
        ("- ", "\n", "\n- "),
    ],
)
def test_prose_is_marked_where_it_stands(opening: str, closing: str, border: str) -> None:
    generation = MARK.generate(
        "It was late.", Enclosing(opening, closing, border), sentences=12, candidates=16, seed=2,
        sampling=Sampling(may_end=True), prompt_style="chat",
    )  # fmt: skip
    assert generation.text.startswith(opening.rstrip(" "))
    assert generation.text.endswith(closing.rstrip())
    assert generation.ended == "model ended"
    assert list(generation.sentences) == splitter(MARK.key.splitter).units(generation.text)
    assert len(generation.sentences) == 6
    assert generation.candidates >= 6 * 16, "each was chosen among all candidates"
    assert generation.text.count("y = g(x);") == (5 if "g(x)" in border else 0), "code is passed through"


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
