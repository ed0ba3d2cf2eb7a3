"""PostMark: the table, the insertion by a chat model with its failures, detection, and the command line."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inserting import Inserter, with_words
from rival_keys import EMBEDDER, human
from scipy import stats

import alimark.core.embedding.loading
import alimark.core.llm
from alimark import Key, load
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.core.generation.origin import TextOrigin
from alimark.core.keys.fitted import Fitted
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError, KeyFileError, LLMError
from alimark.lab.rivals._insertion import TRIES, Insertion, answer_flaw, insert_words, without_label, words_of
from alimark.lab.rivals._word_table import frequent_words
from alimark.lab.rivals.postmark import PostMark
from alimark.testing import StandInEmbedder
from commands import Run as RunCommand
from commands import command

__all__ = ["command"]  # a fixture, used by name


@lru_cache(maxsize=1)
def learned() -> Fitted:
    return PostMark.fit(human()[:40], EMBEDDER, words=400)


def key_of(number: int = 0, **parameters: Any) -> Key:
    secret = number.to_bytes(32, "big")
    return Key.generate(scheme="postmark", embedder=EMBEDDER, fitted=learned(), secret=secret, **parameters)


def mark_of(number: int = 0, **parameters: Any) -> PostMark:
    return PostMark(key_of(number, **parameters), embedder=EMBEDDER)


TEXT = " ".join(human()[50].split()[:200])


class TestTable:
    def test_a_text_gets_words_by_its_length_and_the_nearest_points(self) -> None:
        mark = mark_of(1)
        words = mark.words(TEXT)
        known = learned().origin["words"]
        assert len(words) == len(set(words)) == int(0.12 * len(words_of(TEXT)))
        assert set(words) <= set(known)
        # The points of the words that were chosen, computed anew.
        arrays = learned().arrays
        numbers = mark.key.normals("postmark/points", len(known), len(arrays["components"])) / 65535
        points = arrays["mean"] + numbers @ arrays["components"]
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        units = EMBEDDER.embed(load(mark.key, embedder=EMBEDDER)._split(TEXT).sentences)  # type: ignore[attr-defined]
        vector = units.astype(float).mean(axis=0)
        vector /= np.linalg.norm(vector)
        nearest = [known[i] for i in np.argsort(-(points @ vector))[: 3 * len(words)]]
        closest = sorted(nearest, key=lambda word: -float(EMBEDDER.embed([word])[0] @ vector))[: len(words)]
        assert words == closest

    def test_another_key_gives_other_words_and_another_order_the_same(self) -> None:
        words = set(mark_of(1).words(TEXT))
        assert len(words & set(mark_of(2).words(TEXT))) < len(words) / 2
        sentences = mark_of(1)._split(TEXT).sentences
        assert set(mark_of(1).words(" ".join(reversed(sentences)))) == words

    def test_frequent_words_leave_out_function_words_names_and_inflections(self) -> None:
        texts = [f"She walked and walks; I walk with Anna near the {noun} in May." for noun in _NOUNS] * 2
        texts += [f"They were making a {noun}, and make it again." for noun in _NOUNS]
        words = frequent_words(texts, 1000)
        assert set(_NOUNS) <= set(words)
        assert not {"walked", "walks", "making", "with", "they", "anna"} & set(words)
        assert words == sorted(words)
        assert len(frequent_words(texts, 50)) == 50
        with pytest.raises(AlimarkError, match="give more texts"):
            frequent_words(texts[:3], 1000)

    def test_learning_needs_enough_texts(self) -> None:
        with pytest.raises(AlimarkError, match="too few to learn from"):
            PostMark.fit(human()[:3], EMBEDDER)
        with pytest.raises(AlimarkError, match="words must be"):
            PostMark.fit(human()[:40], EMBEDDER, words=3)
        assert learned().arrays["components"].shape == (32, 64)
        assert 200 < len(learned().origin["words"]) <= 400


_NOUNS = [
    first + second
    for first in ("bar", "cor", "dun", "fel", "gom", "hal", "jun", "kip")
    for second in ("nak", "tol", "vem", "wup", "zib", "pod", "rix")
]


class TestInsertion:
    def test_words_are_asked_for_in_groups_and_occur_in_the_text(self) -> None:
        mark, inserter = mark_of(3), Inserter()
        generation = mark.generate("A day.", inserter, sentences=14, seed=1)
        wanted = generation.block_size
        assert len(inserter.asked) == -(-wanted // 10) > 1
        assert generation.matches == (wanted,)
        assert generation.scheme == "postmark"
        assert generation.rejected == {}
        assert generation.tokens > 14
        assert mark.detect(generation.text).verdict() == "found"
        record = generation.record("x")
        assert record["key_id"] == mark.key.id
        assert record["settings"]["block_size"] == wanted

    def test_a_bad_answer_is_asked_again_and_a_group_that_fails_is_recorded(self) -> None:
        refusal = "I'm sorry, but I cannot help with that."
        once = mark_of(3).generate("A day.", Inserter(refusal), sentences=14, seed=1)
        assert once.rejected == {"refusal": 1}
        assert once.matches == (once.block_size,)
        never = mark_of(3).generate("A day.", Inserter(always=refusal), sentences=14, seed=1)
        groups = -(-never.block_size // 10)
        assert never.rejected == {"refusal": TRIES * groups, "failed": groups}
        assert "could not be inserted: refusal" in never.limits[-1]
        assert never.matches[0] < never.block_size / 2
        assert len(never.sentences) == 14  # the text stays, unmarked, and is scored as a miss
        assert mark_of(3).detect(never.text).verdict() != "found"

    def test_an_answer_with_few_words_is_taken_only_if_no_better_one_comes(self) -> None:
        words = [f"word{letter}" for letter in "abcdefghij"]
        text = "It was a day like any other, and the old captain slept in his chair near the window."
        few, more = with_words(text, words[:2]), with_words(text, words[:4])
        insertion = Insertion(text, words, "seed")
        insert_words(Inserter(few, more, few), [insertion])
        assert (insertion.text, insertion.requests, insertion.failed) == (more, 3, [])
        insertion = Insertion(text, words, "seed")
        insert_words(Inserter(few, "..."), [insertion])
        assert (insertion.requests, insertion.inserted) == (2, 1)
        unchanged = Insertion(text, words, "seed")
        insert_words(Inserter(always=text), [unchanged])
        assert (unchanged.text, unchanged.failed) == (text, ["no word inserted"])

    @pytest.mark.parametrize(
        ("answer", "flaw"),
        [
            ("", "empty"),
            ("...", "empty"),
            ("I'm sorry, but I cannot help with that.", "refusal"),
            ("Sure! Here is the edited text you asked for, with all of the words in it as you wanted.", "talks about the task"),
            ("the the the the the the the the the the the the the the the the the the the the the", "degenerate"),
            ("A captain slept.", "too short"),
            ("It was a day like any other. " * 12, "degenerate"),
            ("Many birds flew over green hills while children sang merry songs beside rivers in spring.", "another text"),
        ],
    )  # fmt: skip
    def test_what_is_no_rewrite_is_refused(self, answer: str, flaw: str) -> None:
        text = "It was a day like any other, and the old captain slept in his chair near the window."
        assert answer_flaw(answer, text) == flaw
        assert answer_flaw(text.replace("captain", "able captain"), text) == ""

    def test_labels_and_quotes_around_an_answer_go(self) -> None:
        assert without_label("Here is the edited text:\n\nIt was a day.") == "It was a day."
        assert without_label("Edited text: It was a day.") == "It was a day."
        assert without_label('"It was a day."') == "It was a day."
        assert without_label('"Go," he said. "Now."') == '"Go," he said. "Now."'

    def test_a_model_that_cannot_be_reached_ends_the_run(self) -> None:
        class Down(Inserter):
            def draw(self, requests: Any, sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
                if requests[0].messages:
                    raise LLMError("no connection")
                return super().draw(requests, sampling, stop)

        with pytest.raises(LLMError, match="no connection"):
            mark_of().generate("A day.", Down(), sentences=6, seed=1)
        prompts = [Prompt(f"Day {i} began.", i) for i in range(2)]
        answers = list(mark_of().generate_many(prompts, Down(), GenerationSettings(2, 16)))
        assert [(number, str(error)) for number, error in answers] == [(0, "no connection"), (1, "no connection")]

    def test_one_error_that_ends_a_whole_batch_does_not_end_the_run(self) -> None:
        class DownOnce(Inserter):
            failed = False

            def draw(self, requests: Any, sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
                if requests[0].messages and not self.failed:
                    self.failed = True
                    raise LLMError("no connection")
                return super().draw(requests, sampling, stop)

        generations = mark_of().generate([f"Day {i} began." for i in range(4)], DownOnce(), sentences=4, seed=1)
        assert [generation.matches[0] for generation in generations] == [g.block_size for g in generations]

    def test_an_answer_that_was_cut_off_is_refused(self) -> None:
        class Cut(Inserter):
            def _inserted(self, request: Request) -> Draw:
                return Draw(super()._inserted(request).text, 9, "length")

        generation = mark_of().generate("A day.", Cut(), sentences=6, seed=1)
        assert generation.rejected["unfinished"] == TRIES * generation.rejected["failed"]

    def test_another_model_may_insert_the_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        writer, editor = Inserter(name="writer", always="No."), Inserter(name="editor")
        given = PostMark(key_of(), embedder=EMBEDDER, inserter=editor).generate("A day.", writer, sentences=6, seed=1)
        assert given.limits == ("the words were inserted by editor",)
        assert given.llm == "writer"
        monkeypatch.setattr(alimark.core.llm, "load_llm", lambda name, **_: {"editor": Inserter(name="editor")}[name])
        named = mark_of(inserter="editor").generate("A day.", writer, sentences=6, seed=1)
        assert not writer.asked
        assert named.matches == (named.block_size,)

    def test_many_texts_with_keys_of_their_own_do_not_depend_on_the_batch(self) -> None:
        prompts = [Prompt(f"Day {i} began.", i, key_of(i)) for i in range(5)]
        texts = []
        for batch in (1, 4):
            results = dict(mark_of().generate_many(prompts, Inserter(), GenerationSettings(6, 8), batch=batch))
            assert [results[i].key_id for i in range(5)] == [key_of(i).id for i in range(5)]  # type: ignore[union-attr]
            texts.append([results[i].text for i in range(5)])  # type: ignore[union-attr]
        assert texts[0] == texts[1]
        steps: list[int] = []
        several = mark_of().generate(
            ["A day.", "A night."], Inserter(), sentences=4, progress=lambda s: steps.append(s.number)
        )
        assert len(several) == len(steps) == 2


class TestDetection:
    def test_present_words_are_counted_by_form_and_by_meaning(self) -> None:
        mark = mark_of(4)
        words = mark.words(TEXT)
        evidence = mark.detect(TEXT, draws=10).evidence
        present = evidence["words_present"]
        text_words = list(dict.fromkeys(words_of(TEXT)))
        cosines = EMBEDDER.embed(words) @ EMBEDDER.embed(text_words).T
        expected = [word for word, row in zip(words, cosines, strict=True) if word in text_words or row.max() >= 0.7]
        assert present == expected
        assert evidence["present"] == len(expected)
        strict = mark_of(4, threshold=1.0).detect(TEXT, draws=10).evidence
        assert strict["words_present"] == [word for word in words if word in text_words]

    def test_p_values_of_other_texts_are_uniform(self) -> None:
        p_values = [mark_of(n).detect(TEXT, settings=RandomKeys(draws=99)).p_randomised for n in range(200)]
        assert stats.kstest(p_values, "uniform").pvalue > 0.001

    def test_random_keys_score_as_other_keys_do(self) -> None:
        """The points of a random key are not drawn; the scores must have the same distribution as if they were."""
        mark = mark_of(0)
        [point] = mark._points([mark._split(TEXT)], _units(mark, TEXT))
        drawn = mark._statistic(point).null(0, 600)
        real = [mark_of(n)._statistic(point).raw for n in range(1, 300)]
        assert abs(drawn.mean() - np.mean(real)) < 4 * np.std(real) / np.sqrt(300)
        assert np.array_equal(
            np.concatenate([mark._statistic(point).null(0, 100), mark._statistic(point).null(100, 500)]), drawn
        )

    def test_errors_are_answers_for_their_text_alone(self) -> None:
        good, empty = mark_of().detect_batch([TEXT, " \n "])
        assert not isinstance(good, AlimarkError)
        assert good.z is None
        assert "no sentence" in str(empty)
        units = list(mark_of().units([TEXT, ""]))
        assert set(learned().origin["words"]) <= set(units)
        assert set(mark_of()._split(TEXT).sentences) <= set(units)


def _units(mark: PostMark, text: str) -> Any:
    from alimark.core.detection.batching import deduplicate
    from alimark.lab.rivals.postmark import _units_of_text

    return deduplicate([_units_of_text(mark._split(text))])


class TestKeys:
    def test_a_file_holds_all_of_a_key(self, tmp_path: Path) -> None:
        key = key_of(5, preset="light", inserter="editor")
        key.save(tmp_path / "k.json")
        again = Key.load(tmp_path / "k.json")
        assert again == key
        assert again.parameters["ratio"] == 0.06
        assert PostMark(again, embedder=EMBEDDER).words(TEXT) == PostMark(key, embedder=EMBEDDER).words(TEXT)
        learned().save(tmp_path / "f.npz")
        assert dict(Fitted.load(tmp_path / "f.npz").origin) == dict(learned().origin)

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ({"ratio": 0.0}, "ratio"),
            ({"pool": 0}, "pool"),
            ({"threshold": 1.5}, "threshold"),
            ({"fitted": None}, "alimark fit postmark"),
            ({"fitted": Fitted("postmark", {}, {})}, "learned with the embedder"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, wrong: dict[str, Any], why: str) -> None:
        with pytest.raises(KeyFileError, match=why):
            Key.generate(scheme="postmark", embedder=EMBEDDER, **{"fitted": learned(), **wrong})

    def test_learned_data_that_are_not_complete_are_refused(self) -> None:
        origin, arrays = dict(learned().origin), dict(learned().arrays)
        for broken in (
            Fitted("postmark", arrays, origin | {"words": ["one"]}),
            Fitted("postmark", {"mean": arrays["mean"]}, origin),
        ):
            with pytest.raises(KeyFileError, match="learn"):
                Key.generate(scheme="postmark", embedder=EMBEDDER, fitted=broken)
        with pytest.raises(AlimarkError):
            PostMark(key_of(), embedder=StandInEmbedder(32))

    def test_there_is_no_rule_of_sentences(self) -> None:
        with pytest.raises(KeyFileError, match=r"alimark.load\(key\).generate"):
            rule_for(key_of(), GenerationSettings(), TextOrigin("", "", (), splitter()))


def test_the_whole_road_on_the_command_line(
    command: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alimark.core.embedding.loading, "load_embedder", lambda name, **_: EMBEDDER)
    monkeypatch.setattr(alimark.core.llm, "load_llm", lambda name, **_: Inserter())
    key, text, corpus = tmp_path / "key.json", tmp_path / "text.txt", tmp_path / "human.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": document}) for document in human()))
    assert command("fit", "postmark", "--human", corpus, "--set", "words=300", "-o", tmp_path / "f.npz")[0] == 0
    status, out, err = command(
        "keygen", "--scheme", "postmark", "--fitted", tmp_path / "f.npz", "--embedder", "stand-in", "-o", key
    )
    assert (status, out.strip()) == (0, Key.load(key).id), err
    key_of(1).save(key, overwrite=True)  # from here on a key that is the same in every run
    status, out, err = command("generate", "-k", key, "-p", "It was a day.", "--seed", 3, "--sentences", 14)
    assert status == 0, err
    assert "postmark" in err
    text.write_text(out)
    status, out, _ = command("detect", "-k", key, text)
    assert status == 0
    assert "found" in out
    status, out, _ = command("detect", "-k", key, text, "--json")
    assert json.loads(out)["evidence"]["present"] > 10
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "One day."}\n{"id": "b", "prompt": "Two days."}\n')
    arguments = (
        "generate",
        "-k",
        key,
        "--input",
        prompts,
        "--output",
        tmp_path / "t.jsonl",
        "--sentences",
        8,
        "--seed",
        1,
    )
    assert command(*arguments)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [record["scheme"] for record in records] == ["postmark", "postmark"]
    assert command("audit", "-k", key, "--input", tmp_path / "t.jsonl", "--output", tmp_path / "d.jsonl")[0] == 0


@pytest.mark.weights
@pytest.mark.slow
def test_words_in_a_text_are_found_with_a_real_embedder() -> None:
    from alimark.core.embedding.loading import load_embedder

    embedder = load_embedder("all-MiniLM-L6-v2")
    fitted = PostMark.fit(human()[:40], embedder, words=400)
    key = Key.generate(scheme="postmark", embedder=embedder, fitted=fitted, secret=bytes(range(32)))
    mark = PostMark(key, embedder=embedder)
    assert mark.detect(TEXT).p_value > 0.01
    marked = with_words(TEXT, mark.words(TEXT))
    assert mark.detect(marked).p_value < 0.01
