"""Texts restructured by a chat model before detection, with a stand-in for the model."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alimark.core.embedding.loading
import alimark.core.llm
from alimark import AliMark, DetectionSettings, detect
from alimark.core.frozen.text.splitting import splitter
from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.errors import AlimarkError, ContextFull, LLMError, TextError
from commands import Run
from fixed_texts import EMBEDDER, fixed_key, unmarked


class Restructurer(LLM):
    """A chat model that answers with what `answer` makes of a text's sentences, and with the number of the draw."""

    name = "restructurer"

    def __init__(self, answer: Callable[[list[str], int], str | Draw | Exception]) -> None:
        self.answer = answer
        self.asked: list[Request] = []

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        self.asked += requests
        draws = []
        for request in requests:
            pattern = r"\[Paraphrased Text\]:\n\n(.*)\n\nOutput format"
            [text] = re.findall(pattern, request.messages[-1].content, re.DOTALL)
            answers = [self.answer(splitter().units(text), number) for number in range(request.count)]
            for error in answers:
                if isinstance(error, Exception):
                    raise error
            draws.append([answer if isinstance(answer, Draw) else Draw(str(answer), 1, "model") for answer in answers])
        return draws


def run_on(sentences: list[str]) -> list[str]:
    """Neighbours joined, two and two."""
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    return [f"{first.rstrip('.!?')}, and {second[0].lower()}{second[1:]}" for first, second in pairs]


def cut_at_random(units: list[str], number: int) -> str:
    """The same words in other sentences."""
    chance = np.random.default_rng([number, len(units[0])])
    words = [word.rstrip(".!?,") for unit in units for word in unit.split()]
    ends = chance.random(len(words)) < len(units) / len(words)
    # Stops before small letters would be read as scattered, and the text by clauses.
    firsts = [word[:1].upper() + word[1:] if new else word for word, new in zip(words, [True, *ends[:-1]], strict=True)]
    return " ".join(f"{word}." if end else word for word, end in zip(firsts, ends, strict=True))


def test_undoes_more_than_one_step(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(run_on(sentences))
    llm = Restructurer(lambda units, number: " ".join(sentences) if number == 1 else " ".join(units[::-1]))
    plain: Any = mark.detect(text, restructure="none")
    detection: Any = mark.detect(text, restructure="learned", variants=2, llm=llm)
    assert detection.z > plain.z + 2
    assert detection.p_value <= 0.002
    assert detection.restructured.texts == (" ".join(run_on(sentences)[::-1]), " ".join(sentences))
    assert (detection.restructured.llm, detection.restructured.best) == ("restructurer", 2)
    assert [step.text for step in detection.alignment if step.kind == "match"] == sentences
    assert detection.sentences == tuple(splitter().units(text))  # those of the text that was asked about
    report = json.loads(json.dumps(detection.report()))
    assert report["restructured"]["texts"] == list(detection.restructured.texts)
    assert detection.record()["restructured"] == {"llm": "restructurer", "texts": 2, "dropped": {}, "best": 2}


def test_the_best_of_the_text_and_its_restructurings(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join([*sentences[:6], *run_on(sentences[6:])])
    llm = Restructurer(cut_at_random)
    for step in ("none", "single"):
        detection: Any = mark.detect(text, restructure="learned" if step == "none" else "learned+single", llm=llm)
        every = [text, *detection.restructured.texts]
        assert len(every) == 5
        scores = [mark.detect(variant, restructure=step).raw for variant in every]
        assert detection.raw == max(scores)
        assert detection.restructured.best == int(np.argmax(scores))


def test_the_answer_replaces_the_text(mark: AliMark, sentences: list[str]) -> None:
    """As the paper's figures imply: a model that rewrites too much loses the mark even of a text that nobody attacked."""
    text = " ".join(sentences)
    summary = "A sailor went to sea. Nobody heard from him again."
    llm = Restructurer(lambda units, number: summary)
    kept = mark.detect(text, restructure="learned", variants=1, llm=llm)
    replaced: Any = mark.detect(text, restructure="learned-only", variants=1, llm=llm)
    alone = mark.detect(summary, restructure="none")
    assert kept.p_value <= 0.002
    assert replaced.raw == alone.raw
    assert replaced.p_value > 0.05
    assert replaced.sentences == tuple(splitter().units(text))
    assert (replaced.restructured.texts, replaced.restructured.best) == ((summary,), 1)
    assert replaced.restructured.dropped == {}
    assert next(step.text for step in replaced.alignment if step.text) == "A sailor went to sea."


def test_every_answer_that_holds_a_sentence_replaces_the_text(mark: AliMark, sentences: list[str]) -> None:
    text, other = " ".join(sentences), " ".join(run_on(sentences))
    answers: list[str | Draw] = ["", other, Draw(other[:200], 1, "length"), other, text]
    llm = Restructurer(lambda _, number: answers[number])
    detection: Any = mark.detect(text, restructure="learned-only", variants=5, llm=llm)
    assert detection.restructured.texts == (other, other[:200].strip(), text)
    assert detection.restructured.dropped == {"empty": 1, "repeat": 1}
    assert detection.restructured.best == 3
    assert detection.raw == mark.detect(text, restructure="none").raw
    first = mark.detect(text, restructure="learned-only", variants=2, llm=llm)
    assert first.raw == mark.detect(other, restructure="none").raw


def test_without_an_answer_the_text_is_searched_and_a_warning_says_so(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(sentences)
    for answer in ("", ContextFull("too long")):
        llm = Restructurer(lambda units, number, answer=answer: answer)  # type: ignore[misc]
        detection: Any = mark.detect(text, restructure="learned-only", variants=1, llm=llm)
        assert detection.raw == mark.detect(text, restructure="none").raw
        assert detection.restructured.best == 0
        assert any("no answer" in warning for warning in detection.warnings)


def test_a_text_is_asked_about_without_the_key(mark: AliMark, sentences: list[str]) -> None:
    llm = Restructurer(cut_at_random)
    text = " ".join(sentences)
    mark.detect(text, restructure="learned", llm=llm)
    AliMark(fixed_key(1), embedder=EMBEDDER).detect([text, text], restructure="learned", llm=llm)
    assert llm.asked[0] == llm.asked[1] == llm.asked[2]
    assert text in llm.asked[0].messages[0].content


def test_what_is_no_restructuring_is_dropped_and_counted(mark: AliMark, sentences: list[str]) -> None:
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
    restructured: Any = mark.detect(text, restructure="learned", variants=7, llm=llm).restructured
    assert restructured.texts == (other, answers[-1])
    assert restructured.dropped == {"repeat": 1, "unchanged": 1, "other words": 2, "unfinished": 1}
    assert restructured.best == 0


def test_a_text_beyond_the_model_is_searched_as_it_is(mark: AliMark, sentences: list[str]) -> None:
    texts = [" ".join(sentences), "A short one is enough. " * 40, ""]
    llm = Restructurer(lambda units, n: ContextFull("too long") if len(units) > 20 else cut_at_random(units, n))
    answers: list[Any] = mark.detect_batch(texts, DetectionSettings("learned"), llm=llm)
    assert isinstance(answers[2], TextError)
    assert len(answers[0].restructured.texts) == 4
    assert answers[1].restructured.dropped == {"context full": 4}
    assert answers[1].p_value == answers[1].readings * mark.detect(texts[1], restructure="none").p_value


def test_a_model_that_is_gone_ends_it(mark: AliMark) -> None:
    llm = Restructurer(lambda units, number: LLMError("no route to host"))
    with pytest.raises(LLMError, match="no route"):
        mark.detect("Some text. And more.", restructure="learned", llm=llm)


def test_p_values_are_not_too_small() -> None:
    """The best of nine texts would pass at 5% three times in ten, were random keys given the first of them alone."""
    llm = Restructurer(cut_at_random)
    texts = [" ".join(unmarked(6, seed)) for seed in range(4)]
    values = []
    for number in range(60):
        mark = AliMark(fixed_key(number), embedder=EMBEDDER)
        detections = mark.detect(texts, restructure="learned", variants=8, draws=99, llm=llm)
        values += [detection.p_value for detection in detections]
        assert all(detection.restructured and len(detection.restructured.texts) >= 6 for detection in detections)
    shares = {rate: np.mean(np.array(values) <= rate) for rate in (0.05, 0.2, 0.5)}
    # 240 answers under 60 keys; those of one key are alike, so the bounds are wide.
    assert shares[0.05] <= 0.09
    assert shares[0.2] <= 0.28
    assert 0.3 <= shares[0.5] <= 0.6


@pytest.mark.parametrize("restructure", ["learned", "learned-only"])
def test_whose_key_it_was(mark: AliMark, sentences: list[str], restructure: Any) -> None:
    llm = Restructurer(lambda units, number: " ".join(sentences))
    keys = [fixed_key(number) for number in range(5)]
    best: Any = detect(" ".join(run_on(sentences)), keys, embedder=EMBEDDER, restructure=restructure, llm=llm)[0]
    assert (best.key_id, best.verdict(), best.restructured.best) == (mark.key.id, "found", 1)
    assert len(llm.asked) == 1


def test_wrong_options(mark: AliMark) -> None:
    with pytest.raises(AlimarkError, match="asks a chat model"):
        mark.detect("Some text. And more.", restructure="learned")
    with pytest.raises(AlimarkError, match="excerpts"):
        DetectionSettings("learned", search="excerpt")
    with pytest.raises(AlimarkError, match="variants"):
        DetectionSettings("learned", variants=0)
    with pytest.raises(AlimarkError, match="'learned'"):
        DetectionSettings("learnt")


@pytest.mark.usefixtures("stand_in_models")
def test_commands(
    mark: AliMark, sentences: list[str], tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, names = Restructurer(lambda units, number: " ".join(sentences if number else units)), []

    def load_llm(name: str, **_: Any) -> LLM:
        names.append(name)
        return llm

    monkeypatch.setattr(alimark.core.llm, "load_llm", load_llm)
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
    status, _, _ = command("audit", "-k", key, many, "--output", tmp_path / "found.jsonl", *learned)
    assert status == 0
    [record] = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text("utf-8").splitlines()]
    assert record["p_value"] <= 0.05
    assert record["restructured"]["best"] == 1
    for words in (("--restructure", "learned"), ("--llm", "m"), (*learned, "--excerpt")):
        status, _, err = run(text, *words)
        assert status == 2
        assert err.startswith("error: ")
