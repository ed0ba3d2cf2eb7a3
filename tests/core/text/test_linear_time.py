"""Text handling takes linear time: a client's text must not stop the service for minutes."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from alimark.core.frozen.text.long_words import MAX_MARKED_WORD, MAX_WORD, with_short_words
from alimark.core.frozen.text.normalising import normalise
from alimark.core.frozen.text.splitting import splitter
from alimark.core.text.disguises import undisguise


@pytest.mark.slow
def test_runs_of_every_class_and_pair_of_classes() -> None:
    program = Path(__file__).with_name("linear_time.py")
    process = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-100:] + process.stderr[-2000:]


@pytest.mark.parametrize("run", ["!?" * 20_000, " " * 40_000, "؟" * 40_000, "\t\x1f" * 20_000])
def test_a_run_inside_a_text(run: str) -> None:
    """The sentences around an absurd run are what they are without it."""
    sentences = splitter().sentences(f"The lamp burned. It was {run} here. The keeper slept.")
    assert sentences[0] == "The lamp burned."
    assert sentences[-1] == "The keeper slept."


@pytest.mark.parametrize("length", [MAX_MARKED_WORD, MAX_WORD, MAX_WORD + 1, 10 * MAX_WORD])
def test_long_words_keep_their_sentence_ends(length: int) -> None:
    word = "x" * length
    text = f"Before it. A {word}. After (it{'!' * length}) came {word}? Then {word}"
    spans = splitter().spans(text)
    assert [text[a:b][:9] for a, b in spans] == ["Before it", f"A {word[:7]}", "After (it", "Then xxxx"]
    assert [text[a:b][-3:] for a, b in spans] == ["it.", "xx.", "xx?", "xxx"]


def test_short_words_are_passed_on_as_they_stand() -> None:
    seen: list[str] = []

    def finder(text: str) -> list[tuple[int, int]]:
        seen.append(text)
        return [(0, len(text))]

    text = "a" * MAX_WORD + " " + "!" * MAX_MARKED_WORD
    assert with_short_words(finder)(text) == [(0, len(text))]
    assert seen == [text]


@pytest.mark.parametrize(
    "part",
    ["<", "<b", "[", "](", "*", "_", "`", "```\n", "````\n```\n", "&", "&amp;", " ", "\n", " \n", "> ", "| a | b |\n",
     "$$\n", "\\[\n", "a.A", "a,b", "ab.cd.", "12:00", "Bob: ", "a-\nb", "a\u0301", "\u200b", "аa", "\u202e", "<!--",
     "<script>", "T h e  ", "...", '["a",', 'f("a b', "a  b\n", "12\n", "…[^a]", "[^a]: … b\n", "<a> b\n", "um, ", "a-a", "h0u",
     "```\na b\n\n", "a\t", "$$ a", "word ", "- a\n", "(1) "],
)  # fmt: skip
@pytest.mark.parametrize("function", [normalise, undisguise])
def test_rules_take_linear_time(function: Callable[[str], object], part: str) -> None:
    def seconds(size: int) -> float:
        text = (part * size)[:size]
        started = time.process_time()
        function(text)
        return time.process_time() - started

    least = min(seconds(4_000) for _ in range(2))
    # Four times the size may take eight times as long on a busy machine; a quadratic pattern would take sixteen times.
    assert min(seconds(16_000) for _ in range(3)) < 10 * max(least, 0.004)
