"""Detection end to end with the stand-ins, and against the public code's scores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alimark.embedding.loading
import alimark.llm
from alimark import AlignedDetection, AliMark, Detection, DetectionSettings, Key, detect
from alimark.detection.kernels.hard import search
from alimark.detection.kernels.types import LEFT, RIGHT, WHOLE, Limits
from alimark.detection.pipeline import detect_batch
from alimark.detection.stats.null_tables import reference_rule
from alimark.detection.units import restructure
from alimark.errors import AlimarkError, ContextFull, KeyMismatch, LimitError, LLMError, TextError
from alimark.generation.api import GenerationSettings
from alimark.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.testing import StandInEmbedder, StandInLLM
from alimark.text.splitting import splitter
from alimark.text.units import halve
from commands import Run, command
from single_text import generate

__all__ = ["command"]  # a fixture, used by name

EMBEDDER = StandInEmbedder()


def marked(key: Key, sentences: int = 12, seed: int = 5, candidates: int = 64) -> list[str]:
    settings = GenerationSettings(sentences, candidates)
    return list(generate("A long story.", key, EMBEDDER, StandInLLM(), settings, seed=seed).sentences)


def unmarked(sentences: int, seed: int) -> list[str]:
    """Text of the same model under a key that nobody else has."""
    return marked(fixed_key(250), sentences, seed, candidates=1)


def fixed_key(number: int) -> Key:
    """The same in every run: a random key is found in unmarked text as often as the rate says."""
    return Key(bytes([number, *range(1, 32)]), embedder="stand-in", fingerprint=EMBEDDER.fingerprint)


@pytest.fixture(scope="module")
def mark() -> AliMark:
    return AliMark(fixed_key(0), embedder=EMBEDDER)


@pytest.fixture(scope="module")
def sentences(mark: AliMark) -> list[str]:
    return marked(mark.key)


def test_finds_the_mark_and_not_without_the_key(mark: AliMark, sentences: list[str]) -> None:
    found = mark.detect(" ".join(sentences))
    assert found.verdict() == "found"
    assert found.p_value <= 0.002
    assert found.z is not None
    assert found.z > 4
    other = AliMark(fixed_key(1), embedder=EMBEDDER).detect(" ".join(sentences))
    assert other.p_value > 0.01
    assert found.sentences == tuple(sentences)


def test_survives_merge_split_and_deletion(mark: AliMark, sentences: list[str]) -> None:
    changed = list(sentences)
    del changed[7]
    changed[1:3] = [changed[1].rstrip(".!?") + " and " + changed[2]]
    assert mark.detect(" ".join(changed)).verdict() == "found"


def test_the_alignment_says_what_met_what(mark: AliMark, sentences: list[str]) -> None:
    found = mark.detect(" ".join(sentences), restructure="none")
    assert [(step.kind, step.sentences, step.block) for step in found.alignment] == [
        ("match", (i,), i) for i in range(1, 13)
    ]
    halves = halve(sentences[4])
    assert halves is not None
    merged = mark.detect(" ".join([*sentences[:4], *halves, *sentences[5:]]))
    assert "merge" in {step.kind for step in merged.alignment}
    [step] = [step for step in merged.alignment if step.kind == "merge"]
    assert (step.sentences, step.block) == ((5, 6), 5)


def test_a_split_is_shown_with_its_halves(mark: AliMark, sentences: list[str]) -> None:
    # Two marked sentences written as one whose middle is their boundary.
    first, second = sentences[4], sentences[5]
    joined = f"{first.rstrip('.!?')} {second}"
    found = mark.detect(" ".join([*sentences[:4], joined, *sentences[6:]]), restructure=(0, 1))
    parts = [step.part for step in found.alignment if step.kind == "split"]
    assert parts in ([], ["left", "right"])  # the middle need not be the boundary
    assert found.verdict() == "found"


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


# Three cases that the public code scored, and the head of its table: (sentences, merged, left, right, splittable, secret),
# with its score and its score without restructuring. tools/reference_cases.py runs all of a file.
PUBLIC_CASES = [
    (([38], [], [146], [63], True, [54, 225]), 2.1500548490376077, 2.1500548490376077),
    (([145], [], [122], [163], False, [121, 74]), 0.007143039365573295, 0.007143039365573295),
    (
        ([197, 238, 245], [140, 164], [192, 212, 52], [239, 115, 90], True, [66, 43, 192, 212, 59, 102]),
        1.2617559206199331,
        0.015957279422158358,
    ),
]
PUBLIC_MEAN = [0.50125, 0.50365625, 0.5021875, 0.502859375, 0.5031825, 0.503280555555555]
PUBLIC_STD = [0.1749955356573412, 0.15097440995392983, 0.137084771290162, 0.1261015481677512, 0.11778823317422549,
              0.11154305110238107]  # fmt: skip


@pytest.mark.parametrize(("case", "score", "without"), PUBLIC_CASES)
def test_public_code_scores(case: Any, score: float, without: float, tmp_path: Path) -> None:
    table = {n + 1: {"mean": m, "std": s} for n, (m, s) in enumerate(zip(PUBLIC_MEAN, PUBLIC_STD, strict=True))}
    (tmp_path / "table.json").write_text(json.dumps(table))
    sentences, merged, left, right, splittable, secret = case
    count = len(sentences)
    units, valid = np.zeros((count, 2, 4), np.uint64), np.zeros((count, 2, 4), bool)
    units[:, 0, WHOLE], units[1:, 1, WHOLE], units[:, 0, LEFT], units[:, 0, RIGHT] = sentences, merged, left, right
    valid[:, 0, WHOLE] = valid[1:, 1, WHOLE] = True
    valid[:, 0, LEFT] = valid[:, 0, RIGHT] = splittable
    rule = reference_rule(8, count + 1, table=tmp_path / "table.json")
    blocks = np.resize(np.array(secret, np.uint64), int(rule.most[-1]))[None]
    for restructure_by, expected in (("single", score), ("none", without)):
        found = search(units, valid, blocks, 8, Limits.of(restructure_by), rule)
        assert found.z[0] == pytest.approx(expected, abs=1e-9)


class TestPValues:
    def test_repeats_to_the_last_digit(self, mark: AliMark, sentences: list[str]) -> None:
        text = " ".join(sentences[:5])
        assert mark.detect(text) == mark.detect(text)
        assert mark.detect(text).p_value == mark.detect([" ".join(sentences), text])[1].p_value

    def test_uniform_over_keys(self) -> None:
        texts = [" ".join(unmarked(4, seed)) for seed in range(60)]
        values = []
        for number in range(5):
            mark = AliMark(fixed_key(100 + number), embedder=EMBEDDER)
            values += [found.p_randomised for found in mark.detect(texts, draws=99)]
        # Texts of one template share directions, so single keys differ; five keys are near enough to 1/2.
        assert 0.2 < np.mean(np.array(values) <= 0.5) < 0.8

    def test_more_draws_and_a_tail_below_one_in_a_thousand(self, mark: AliMark, sentences: list[str]) -> None:
        found = mark.detect(" ".join(sentences), draws=5000, tail=True)
        assert found.p_value == 1 / 5001
        assert found.p_tail is not None
        assert found.p_tail < 1 / 5001

    def test_stopping_early(self, mark: AliMark) -> None:
        found = mark.detect(" ".join(unmarked(6, 1)), stop_after=10, draws=100_000)
        assert found.stopped_early
        assert found.draws < 100_000
        assert found.p_value == 10 / found.draws
        assert found.draws <= 1000

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
        found = AliMark(key, embedder=EMBEDDER).detect(" ".join(marked(key)))
        assert found.verdict() == "found"


class TestExcerpts:
    def test_a_marked_passage_in_other_text(self, mark: AliMark, sentences: list[str]) -> None:
        other = unmarked(30, 3)
        text = " ".join([*other[:11], *sentences, *other[11:]])
        found = mark.detect(text, search="excerpt")
        assert found.p_value <= 0.01
        assert found.z is None
        [passage] = [passage for passage in found.passages if passage.p_value <= 0.01]
        assert abs(passage.first - 12) + abs(passage.last - 23) <= 4
        assert passage.last_block - passage.first_block == pytest.approx(11, abs=3)

    def test_the_middle_of_a_marked_text(self, mark: AliMark) -> None:
        found = mark.detect(" ".join(marked(mark.key, 30)[14:]), search="excerpt")
        assert found.verdict() == "found"
        assert found.passages[0].first_block >= 14

    def test_two_passages(self, mark: AliMark, sentences: list[str]) -> None:
        other = unmarked(40, 4)
        found = mark.detect(" ".join([*sentences, *other, *marked(mark.key, seed=9)]), search="excerpt")
        assert len([passage for passage in found.passages if passage.p_value <= 0.01]) == 2

    def test_nothing_in_unmarked_text(self, mark: AliMark) -> None:
        found = mark.detect(" ".join(unmarked(30, 8)), search="excerpt")
        assert found.p_value > 0.001
        assert all(passage.p_value <= 0.01 for passage in found.passages)


class TestManyKeys:
    def test_whose_key_it_was(self, mark: AliMark, sentences: list[str]) -> None:
        keys = [fixed_key(number) for number in range(1, 41)]
        keys.insert(17, mark.key)
        keys.append(Key.generate(embedder=EMBEDDER, block_size=16, secret=bytes(32)))
        found = detect(" ".join(sentences), keys, embedder=EMBEDDER)
        assert found[0].key_id == mark.key.id
        assert found[0].keys_tried == 42
        assert found[0].p_value == pytest.approx(42 / (42 * 200 + 1))
        assert found[0].p_randomised <= found[0].p_value
        assert found[0].verdict() == "found"
        assert found[1].verdict() != "found"
        assert len(found) == 3

    def test_scores_are_those_of_each_key(self, mark: AliMark, sentences: list[str]) -> None:
        text = " ".join(sentences)
        [found] = detect(text, [mark.key], embedder=EMBEDDER)
        assert replace(found, draws=0) == replace(mark.detect(text), draws=0)

    def test_an_excerpt_under_many_keys(self, mark: AliMark, sentences: list[str]) -> None:
        keys = [fixed_key(1), mark.key]
        text = " ".join([*unmarked(12, 3), *sentences])
        assert detect(text, keys, embedder=EMBEDDER, search="excerpt")[0].key_id == mark.key.id

    def test_errors(self, mark: AliMark) -> None:
        with pytest.raises(AlimarkError, match="no keys"):
            detect("Text.", [], embedder=EMBEDDER)
        mixed = [mark.key, Key.generate(embedder=StandInEmbedder(32))]
        with pytest.raises(AlimarkError, match="several embedders"):
            detect("Text.", mixed, embedder=EMBEDDER)


class TestVerdict:
    def test_too_short_says_how_long(self, mark: AliMark) -> None:
        verdict = mark.detect("One word.").verdict()
        assert verdict == "too short to tell"
        assert verdict.needed is not None
        assert 3 <= verdict.needed <= 10

    def test_not_found_is_never_called_human(self, mark: AliMark) -> None:
        for seed in range(20):
            found = mark.detect(" ".join(unmarked(12, seed)))
            if found.p_value > 0.01:
                assert found.verdict() == "not found"
                return
        pytest.fail("no unmarked text was left unfound")

    @pytest.mark.parametrize("fpr", [0, 1, 2, -1])
    def test_rates_lie_between_0_and_1(self, mark: AliMark, fpr: float) -> None:
        with pytest.raises(AlimarkError, match="between 0 and 1"):
            mark.detect("One text.").verdict(fpr)

    def test_stricter_rates(self, mark: AliMark, sentences: list[str]) -> None:
        with pytest.raises(AlimarkError, match="draws=1000000"):
            mark.detect(" ".join(sentences)).verdict(fpr=1e-5)
        assert mark.detect(" ".join(sentences), draws=200_000).verdict(fpr=1e-5) == "found"


class TestOutput:
    def test_everything_goes_into_json(self, mark: AliMark, sentences: list[str]) -> None:
        for search_kind in ("whole", "excerpt"):
            found = mark.detect(" ".join(sentences), search=search_kind)
            report = json.loads(json.dumps(found.report()))
            assert report["verdict"] == "found"
            assert report["text_sha256"] == found.text_sha256
            assert report["fingerprint"] == EMBEDDER.fingerprint
            assert report["draws"] == 1000
            assert len(report["alignment"]) >= 10
            assert {"alimark", "numpy", "nupunkt"} <= set(report["versions"])
            assert "near_flips" in report

    def test_notebook_view_is_escaped(self, mark: AliMark) -> None:
        shown = mark.detect("A <script>alert(1)</script> here. And there.")._repr_html_()
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert shown.count("<tr") >= 2


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
        found = mark.detect(text)
        assert 0 < found.p_value <= 1
        assert found.verdict() == "too short to tell" or found.p_value <= 0.01
        json.dumps(found.report())

    def test_a_book_is_refused_with_the_way_round(self, mark: AliMark) -> None:
        with pytest.raises(LimitError, match=r"100,000 sentences .*--excerpt"):
            mark.detect("Here is a short sentence for you. " * 100_000)

    def test_repeated_sentences_are_embedded_once(self, mark: AliMark) -> None:
        found = mark.detect("The same again. " * 300)
        assert len(found.sentences) == 300

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
        good, bad = detect_batch(["A good text.", ""], mark.key, EMBEDDER, DetectionSettings())
        assert isinstance(good, Detection)
        assert isinstance(bad, TextError)


def test_threads_share_one_mark(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(sentences)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: mark.detect(text).p_value, range(12)))
    assert len(set(found)) == 1


def test_language_is_warned_of(mark: AliMark) -> None:
    class English(StandInEmbedder):
        languages = frozenset({"en"})

    english = AliMark(mark.key, embedder=English())
    german = "Der Hund lief über die Straße und die Katze sah ihm dabei zu, ohne sich zu rühren oder zu fürchten, den Tag lang."
    assert "does not look like English" in english.detect(german).warnings[0]
    assert mark.detect(german).warnings == ()


class Restructurer(LLM):
    """A chat model that answers with what `answer` makes of a text's sentences, and with the number of the draw."""

    name = "restructurer"

    def __init__(self, answer: Callable[[list[str], int], str | Draw | Exception]) -> None:
        self.answer = answer
        self.asked: list[Request] = []

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        self.asked += requests
        found = []
        for request in requests:
            [text] = re.findall(
                r"\[Paraphrased Text\]:\n\n(.*)\n\nOutput format", request.messages[-1].content, re.DOTALL
            )
            answers = [self.answer(splitter().units(text), number) for number in range(request.count)]
            for error in answers:
                if isinstance(error, Exception):
                    raise error
            found.append([one if isinstance(one, Draw) else Draw(str(one), 1, "model") for one in answers])
        return found


def run_on(sentences: list[str]) -> list[str]:
    """Neighbours joined, two and two."""
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    return [f"{one.rstrip('.!?')}, and {two[0].lower()}{two[1:]}" for one, two in pairs]


def cut_at_random(units: list[str], number: int) -> str:
    """The same words in other sentences."""
    chance = np.random.default_rng([number, len(units[0])])
    words = [word.rstrip(".!?,") for unit in units for word in unit.split()]
    ends = chance.random(len(words)) < len(units) / len(words)
    return " ".join(f"{word}." if end else word for word, end in zip(words, ends, strict=True))


class TestLearned:
    def test_undoes_more_than_one_step(self, mark: AliMark, sentences: list[str]) -> None:
        text = " ".join(run_on(sentences))
        llm = Restructurer(lambda units, number: " ".join(sentences) if number == 1 else " ".join(units[::-1]))
        plain = mark.detect(text, restructure="none")
        found = mark.detect(text, restructure="learned", variants=2, llm=llm)
        assert found.z is not None
        assert plain.z is not None
        assert found.z > plain.z + 2
        assert found.p_value <= 0.002
        assert found.restructured is not None
        assert found.restructured.texts == (" ".join(run_on(sentences)[::-1]), " ".join(sentences))
        assert (found.restructured.llm, found.restructured.best) == ("restructurer", 2)
        assert [step.text for step in found.alignment if step.kind == "match"] == sentences
        assert found.sentences == tuple(splitter().units(text))  # those of the text that was asked about
        report = json.loads(json.dumps(found.report()))
        assert report["restructured"]["texts"] == list(found.restructured.texts)
        assert found.record()["restructured"] == {"llm": "restructurer", "texts": 2, "dropped": {}, "best": 2}

    def test_the_best_of_the_text_and_its_restructurings(self, mark: AliMark, sentences: list[str]) -> None:
        text = " ".join([*sentences[:6], *run_on(sentences[6:])])
        llm = Restructurer(cut_at_random)
        for step in ("none", "single"):
            found = mark.detect(text, restructure="learned" if step == "none" else "learned+single", llm=llm)
            assert found.restructured is not None
            every = [text, *found.restructured.texts]
            assert len(every) == 5
            scores = [mark.detect(one, restructure=step).raw for one in every]
            assert found.raw == max(scores)
            assert found.restructured.best == int(np.argmax(scores))

    def test_a_text_is_asked_about_without_the_key(self, mark: AliMark, sentences: list[str]) -> None:
        llm = Restructurer(cut_at_random)
        text = " ".join(sentences)
        mark.detect(text, restructure="learned", llm=llm)
        AliMark(fixed_key(1), embedder=EMBEDDER).detect([text, text], restructure="learned", llm=llm)
        assert llm.asked[0] == llm.asked[1] == llm.asked[2]
        assert text in llm.asked[0].messages[0].content

    def test_what_is_no_restructuring_is_dropped_and_counted(self, mark: AliMark, sentences: list[str]) -> None:
        text, other = " ".join(sentences), " ".join(run_on(sentences))
        answers: list[str | Draw] = [
            other,
            f"Here is the restored text:\n\n{other}",
            text,
            "The text is about a sailor, a teacher and what they did.",
            Draw(other[:200], 1, "length"),
            "",
            " ".join(run_on(sentences[:6]) + sentences[6:]),
        ]
        llm = Restructurer(lambda _, number: answers[number])
        found = mark.detect(text, restructure="learned", variants=7, llm=llm).restructured
        assert found is not None
        assert found.texts == (other, answers[-1])
        assert found.dropped == {"repeat": 1, "unchanged": 1, "other words": 2, "unfinished": 1}
        assert found.best == 0

    def test_a_text_beyond_the_model_is_searched_as_it_is(self, mark: AliMark, sentences: list[str]) -> None:
        texts = [" ".join(sentences), "A short one is enough. " * 40, ""]
        llm = Restructurer(lambda units, n: ContextFull("too long") if len(units) > 20 else cut_at_random(units, n))
        answers = detect_batch(texts, mark.key, EMBEDDER, DetectionSettings("learned"), llm=llm)
        assert isinstance(answers[0], Detection)
        assert isinstance(answers[1], Detection)
        assert isinstance(answers[2], TextError)
        assert answers[0].restructured is not None
        assert len(answers[0].restructured.texts) == 4
        assert answers[1].restructured is not None
        assert answers[1].restructured.dropped == {"context full": 4}
        assert answers[1].p_value == mark.detect(texts[1], restructure="none").p_value

    def test_a_model_that_is_gone_ends_it(self, mark: AliMark) -> None:
        llm = Restructurer(lambda units, number: LLMError("no route to host"))
        with pytest.raises(LLMError, match="no route"):
            mark.detect("Some text. And more.", restructure="learned", llm=llm)

    def test_p_values_are_not_too_small(self) -> None:
        """The best of nine texts would pass at 5% three times in ten, were random keys given the first of them alone."""
        llm = Restructurer(cut_at_random)
        texts = [" ".join(unmarked(6, seed)) for seed in range(4)]
        values = []
        for number in range(60):
            mark = AliMark(fixed_key(number), embedder=EMBEDDER)
            found = mark.detect(texts, restructure="learned", variants=8, draws=99, llm=llm)
            values += [one.p_value for one in found]
            assert all(one.restructured and len(one.restructured.texts) >= 6 for one in found)
        shares = {rate: np.mean(np.array(values) <= rate) for rate in (0.05, 0.2, 0.5)}
        # 240 answers under 60 keys; those of one key are alike, so the bounds are wide.
        assert shares[0.05] <= 0.09
        assert shares[0.2] <= 0.28
        assert 0.3 <= shares[0.5] <= 0.6

    def test_whose_key_it_was(self, mark: AliMark, sentences: list[str]) -> None:
        llm = Restructurer(lambda units, number: " ".join(sentences))
        keys = [fixed_key(number) for number in range(5)]
        found = detect(" ".join(run_on(sentences)), keys, embedder=EMBEDDER, restructure="learned", llm=llm)
        assert found[0].key_id == mark.key.id
        assert found[0].verdict() == "found"
        assert isinstance(found[0], AlignedDetection)
        assert found[0].restructured is not None
        assert found[0].restructured.best == 1
        assert len(llm.asked) == 1

    def test_wrong_options(self, mark: AliMark) -> None:
        with pytest.raises(AlimarkError, match="asks a chat model"):
            mark.detect("Some text. And more.", restructure="learned")
        with pytest.raises(AlimarkError, match="excerpts"):
            DetectionSettings("learned", search="excerpt")
        with pytest.raises(AlimarkError, match="variants"):
            DetectionSettings("learned", variants=0)
        with pytest.raises(AlimarkError, match="'learned'"):
            DetectionSettings("learnt")

    def test_commands(
        self,
        mark: AliMark,
        sentences: list[str],
        tmp_path: Path,
        command: Run,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        llm, names = Restructurer(lambda units, number: " ".join(sentences if number else units)), []

        def load_llm(name: str, **_: Any) -> LLM:
            names.append(name)
            return llm

        monkeypatch.setattr(alimark.embedding.loading, "load_embedder", lambda name, **_: EMBEDDER)
        monkeypatch.setattr(alimark.llm, "load_llm", load_llm)
        key, text, many = tmp_path / "key.json", tmp_path / "text.txt", tmp_path / "many.jsonl"
        mark.key.save(key)
        text.write_text(" ".join(run_on(sentences)), "utf-8")
        many.write_text(json.dumps({"id": "a", "text": text.read_text("utf-8")}) + "\n", "utf-8")

        run = partial(command, "detect", "-k", key)
        learned = ("--restructure", "learned", "--llm", "openai:http://host/v1#model")
        status, out, _ = run(text, *learned)
        assert status == 0
        assert "1 restructurings by restructurer tried (1 unchanged, 2 repeat); best: restructuring 1" in out
        assert names == ["openai:http://host/v1#model"]
        status, out, _ = run(text, *learned, "--json", "--variants", 2)
        assert json.loads(out)["restructured"]["texts"] == [" ".join(sentences)]
        status, _, _ = run("--input", many, "--output", tmp_path / "found.jsonl", *learned)
        assert status == 0
        [record] = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text("utf-8").splitlines()]
        assert record["p_value"] <= 0.05
        assert record["restructured"]["best"] == 1
        for words in (("--restructure", "learned"), ("--llm", "m"), (*learned, "--excerpt")):
            status, _, err = run(text, *words)
            assert status == 2
            assert err.startswith("error: ")
