"""Detection from end to end with the stand-ins: alignments, p-values, and texts and options that are refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Detection, DetectionSettings, Key
from alimark.core.detection.units import restructure
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits
from alimark.core.frozen.text.units import halve
from alimark.errors import AlimarkError, KeyMismatch, LimitError, TextError
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, unmarked, written


def test_survives_merge_split_and_deletion(mark: AliMark, sentences: list[str]) -> None:
    changed = list(sentences)
    del changed[7]
    changed[1:3] = [changed[1].rstrip(".!?") + " and " + changed[2]]
    assert mark.detect(" ".join(changed)).verdict() == "found"


def test_the_alignment_says_what_met_what(mark: AliMark, sentences: list[str]) -> None:
    detection = mark.detect(" ".join(sentences), restructure="none")
    assert [(step.kind, step.sentences, step.block) for step in detection.alignment] == [
        ("match", (i,), i) for i in range(1, 13)
    ]
    halves: Any = halve(sentences[4])
    merged = mark.detect(" ".join([*sentences[:4], *halves, *sentences[5:]]))
    [step] = [step for step in merged.alignment if step.kind == "merge"]
    assert (step.sentences, step.block, step.in_words) == ((5, 6), 5, "merged")


def test_a_sentence_that_was_moved_is_said_to_be() -> None:
    key = Key.generate(embedder=EMBEDDER, decision="hard", block_size=64, secret=bytes(32))
    texts = written(key)
    changed = [*texts[:2], texts[9], *texts[2:9], *texts[10:]]
    steps = AliMark(key, embedder=EMBEDDER).detect(" ".join(changed), restructure="none").alignment
    words = {step.in_words: step.sentences for step in steps}
    assert words["moved from 10"] == (3,)
    other = AliMark(key, embedder=EMBEDDER).detect(" ".join([*texts[:2], "It rained.", *texts[2:]]), restructure="none")
    assert "inserted" in {step.in_words for step in other.alignment}


@pytest.mark.parametrize("decision", ["hard", "soft"])
def test_strengths_of_a_mark_and_of_chance(decision: str) -> None:
    key = Key.generate(embedder=EMBEDDER, decision=decision, block_size=64, secret=bytes(32))
    mark = AliMark(key, embedder=EMBEDDER)
    marked, other = (mark.detect(" ".join(text), restructure="none") for text in (written(key), unmarked(40, 5)))
    means = [np.mean([step.strength for step in each.alignment if step.strength]) for each in (marked, other)]
    assert means[0] > 0.9
    assert 0.4 < means[1] < 0.7


def test_a_split_is_shown_with_its_halves(mark: AliMark, sentences: list[str]) -> None:
    # Two marked sentences written as one whose middle is their boundary.
    joined = f"{sentences[3].rstrip('.!?')} {sentences[4]}"
    detection = mark.detect(" ".join([*sentences[:3], joined, *sentences[5:]]), restructure=(0, 1))
    halves = [(step.part, step.block) for step in detection.alignment if step.kind == "split"]
    assert halves == [("left", 4), ("right", 5)]
    assert detection.verdict() == "found"


class TestPValues:
    def test_repeats_to_the_last_digit(self, mark: AliMark, sentences: list[str]) -> None:
        text = " ".join(sentences[:5])
        assert mark.detect(text) == mark.detect(text)
        assert mark.detect(text).p_value == mark.detect([" ".join(sentences), text])[1].p_value

    def test_more_draws_and_a_tail_below_one_in_a_thousand(self, mark: AliMark, sentences: list[str]) -> None:
        detection: Any = mark.detect(" ".join(sentences), draws=5000, tail=True)
        assert detection.p_value == 1 / 5001
        assert detection.p_tail < 1 / 5001

    def test_stopping_early(self, mark: AliMark) -> None:
        detection = mark.detect(" ".join(unmarked(6, 1)), stop_after=10, draws=100_000)
        assert detection.stopped_early
        assert detection.draws < 100_000
        assert detection.p_value == 10 / detection.draws
        assert detection.draws <= 1000

    def test_given_bits_that_repeat_are_compared_with_null_keys_that_repeat(self) -> None:
        """Two blocks over and over fit a text of two alternating sentences too well under any random key but such ones."""
        rng = np.random.default_rng(3)
        text = "The old sailor sold two horses. Did it rain in the valley? " * 8
        high = 0
        for _ in range(60):
            vectors = np.linalg.qr(rng.standard_normal((64, 8)))[0].T
            key = Key.from_arrays(rng.integers(0, 2, (2, 8)), vectors, embedder=EMBEDDER)
            high += AliMark(key, embedder=EMBEDDER).detect(text, draws=199).p_value <= 0.05
        assert high <= 10  # 3 expected

    def test_keys_from_arrays_have_null_keys_of_their_law(self) -> None:
        rng = np.random.default_rng(0)
        bits = np.array([[int(b) for b in f"{v:03b}"] for v in rng.permutation(8)])
        vectors = np.linalg.qr(rng.standard_normal((64, 3)))[0].T
        key = Key.from_arrays(bits, vectors, embedder=EMBEDDER, law="shuffle")
        detection = AliMark(key, embedder=EMBEDDER).detect(" ".join(written(key)))
        assert detection.verdict() == "found"


class TestBadInput:
    @pytest.mark.parametrize("text", ["", "  \n\t", "\x00", "\x00\x01\n"])
    def test_no_sentence_is_an_error(self, mark: AliMark, text: str) -> None:
        with pytest.raises(TextError, match="no sentence"):
            mark.detect(text)

    @pytest.mark.parametrize(
        "text",
        ["word", "One sentence.", "no final mark", "?!?!", "😀 😀", "مرحبا. كيف حالك؟", "你好。我很好。", "a\x00b. c\x01.",
         "One.\r\nTwo.",
         "x" * 200_000, "\ud800 lone surrogate."],
    )  # fmt: skip
    def test_odd_text_gets_a_sound_answer(self, mark: AliMark, text: str) -> None:
        detection = mark.detect(text)
        assert 0 < detection.p_value <= 1
        assert detection.verdict() == "too short to tell" or detection.p_value <= 0.01
        json.dumps(detection.report())

    def test_a_book_is_refused_with_the_way_round(self, mark: AliMark) -> None:
        with pytest.raises(LimitError, match=r"100,000 sentences .*--excerpt"):
            mark.detect("Here is a short sentence for you. " * 100_000)

    def test_repeated_sentences_are_embedded_once(self, mark: AliMark) -> None:
        detection = mark.detect("The same again. " * 100)
        assert len(detection.sentences) == 100

    def test_wrong_embedder(self, mark: AliMark) -> None:
        with pytest.raises(KeyMismatch, match="use the embedder"):
            AliMark(mark.key, embedder=StandInEmbedder(32))

    @pytest.mark.parametrize(
        "options",
        [{"restructure": "both"}, {"null": "mine"}, {"draws": 0}, {"search": "all"}, {"alfa": 1}, {"alpha": 2}],
    )
    def test_wrong_options(self, mark: AliMark, options: dict[str, Any]) -> None:
        with pytest.raises(AlimarkError):
            mark.detect("Some text. And more.", **options)

    def test_one_bad_text_of_many(self, mark: AliMark) -> None:
        good, bad = mark.detect_batch(["A good text.", ""], DetectionSettings())
        assert isinstance(good, Detection)
        assert isinstance(bad, TextError)


def test_threads_share_one_mark(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(sentences)
    with ThreadPoolExecutor(4) as pool:
        detection = list(pool.map(lambda _: mark.detect(text).p_value, range(12)))
    assert len(set(detection)) == 1


class Languages(StandInEmbedder):
    """A stand-in embedder that names the languages it knows."""

    def __init__(self, *languages: str) -> None:
        super().__init__()
        self.languages = frozenset(languages)


@pytest.mark.parametrize(("languages", "warned"), [(("en",), True), (("en", "de"), False), ((), False)])
def test_only_an_english_embedder_warns_of_german(mark: AliMark, languages: tuple[str, ...], warned: bool) -> None:
    """A warning for an embedder of several languages would be wrong: the embedder may know the language of the text."""
    text = "Der Hund lief durch den Wald. Dort fand er einen alten Knochen. Er trug ihn nach Hause und war zufrieden. "
    warnings = AliMark(mark.key, embedder=Languages(*languages)).detect(text * 2).warnings
    assert ["does not look like English" in warning for warning in warnings] == [True] * warned


def test_restructurings_are_all_embedded() -> None:
    units = ["One two three four.", "Five six seven eight.", "Nine."]
    single = restructure(units, Limits.of("single"))
    assert single.count == 3
    assert len(single.texts) == 3 + 2 + 4  # 4N - 1 less the two halves that "Nine." has not
    assert single.texts[single.index[1, 1, WHOLE]] == "One two three four. Five six seven eight."
    assert single.texts[single.index[0, 0, LEFT]] == "One two."
    assert single.texts[single.index[0, 0, RIGHT]] == "three four."
    multi = restructure(units, Limits.of((1, 1)))
    assert multi.texts[multi.index[1, 1, RIGHT]] == "three four. Five six seven eight."
    assert multi.texts[multi.index[1, 1, LEFT]] == "One two three four. Five six."
    assert multi.index[1, 1, LEFT | RIGHT] == -1  # takes two splits
    assert restructure(units, Limits.of((1, 2))).index[1, 1, LEFT | RIGHT] >= 0
