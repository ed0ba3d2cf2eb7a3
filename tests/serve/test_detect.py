"""Detection: many texts, many keys, limits, and the same results as the library."""

import json
import re
import threading

import pytest
from services import Running

import alimark
from alimark.core._util.arrays import Packed
from alimark.core._util.work import TimedFuture
from alimark.core.detection.aligned_results import LIKELY, PERHAPS
from alimark.core.detection.settings import DetectionSettings
from alimark.core.keys.key import Key
from alimark.errors import LimitError, TextError
from alimark.serve.checking import Answer, Check, Checker
from alimark.serve.places import QueueFull
from alimark.testing import StandInEmbedder, StandInLLM
from watched import watched

EMBEDDER = StandInEmbedder()


@pytest.fixture(scope="module")
def texts(running: Running) -> list[str]:
    """Texts that are marked with the first key."""
    mark = alimark.AliMark(running.key, embedder=EMBEDDER)
    prompts = [f"Prompt {i}." for i in range(6)]
    return [generation.text for generation in mark.generate(prompts, StandInLLM(), candidates=24, seed=5)]


def test_same_answers_as_the_library(running: Running, texts: list[str]) -> None:
    key = running.key
    mark = alimark.AliMark(key, embedder=EMBEDDER)
    with running.client("detect") as client:
        answer = client.post("/v1/detect", json={"input": texts, "keys": [key.id], "evidence": True}).json()
    for got, text in zip(answer["results"], texts, strict=True):
        detection = mark.detect(text, search="auto")
        assert got["evidence"] == json.loads(json.dumps(detection.report(0.01)))
        assert got["sentence_chances"] == pytest.approx(detection.sentence_chances, abs=1e-3)
        assert (got["verdict"], got["keys_tried"]) == ("found", 1)


def test_without_key_ids_all_active_keys_are_tried(running: Running, texts: list[str]) -> None:
    ring = running.service.ring
    first = ring.all()[0].id
    hard, soft = ring.create(EMBEDDER, decision="hard"), ring.create(EMBEDDER, decision="soft")
    dead, early = ring.create(EMBEDDER, decision="hard"), ring.create(EMBEDDER, decision="hard", starts=4e9)
    ring.retire(dead.id)
    with running.client("detect") as client:
        [got] = client.post("/v1/detect", json={"input": texts[0]}).json()["results"]
        assert (got["key_id"], got["keys_tried"], got["verdict"]) == (first, 3, "found")
        alone = client.post("/v1/detect", json={"input": texts[0], "keys": [first]}).json()["results"][0]
        assert got["p_value"] == pytest.approx(3 / 1001)
        assert alone["p_value"] == pytest.approx(1 / 1001)
        for gone in (dead, early):
            refused = client.post("/v1/detect", json={"input": texts[0], "keys": [gone.id]})
            assert refused.status_code == 409
    for label in (hard, soft):
        ring.retire(label.id)


def test_a_tenant_uses_only_its_own_keys(running: Running, texts: list[str]) -> None:
    ring, tokens = running.service.ring, running.service.tokens
    key = ring.create(EMBEDDER, tenant="acme", decision="hard")
    both = tokens.create(["generate", "detect"], tenant="acme")[1]
    with running.client(None) as client:
        client.headers["authorization"] = f"Bearer {both}"
        [got] = client.post("/v1/detect", json={"input": texts[0]}).json()["results"]
        assert (got["key_id"], got["keys_tried"]) == (key.id, 1)
        other = client.post("/v1/detect", json={"input": texts[0], "keys": [ring.all()[0].id]})
        assert other.status_code == 409
        completion = client.post("/v1/completions", json={"prompt": "So.", "sentences": 1}).json()
        assert completion["alimark"]["key_id"] == key.id
    ring.retire(key.id)


def test_a_bad_text_among_good_ones(running: Running, texts: list[str]) -> None:
    with running.client("detect") as client:
        endless = "Nobody came here. " * 2001
        body = {"input": [texts[0], endless, texts[1]], "search": "whole"}
        answer = client.post("/v1/detect", json=body).json()["results"]
        assert answer[1]["error"]["code"] == "too_much"
        assert [answer[0]["verdict"], answer[2]["verdict"]] == ["found", "found"]
        assert client.post("/v1/detect", json={"input": endless, "search": "whole"}).status_code == 413
        assert client.post("/v1/detect", json={"input": " \n"}).status_code == 422


def test_a_long_text_is_searched_for_passages_by_itself(running: Running, texts: list[str]) -> None:
    plain = " ".join(f"Nobody spoke of item {i} on the long list of things." for i in range(160))
    with running.client("detect") as client:
        body = {"input": [f"{plain} {texts[0]} {plain}", texts[0]], "evidence": True}
        long, short = client.post("/v1/detect", json=body).json()["results"]
        whole = client.post("/v1/detect", json=body | {"search": "whole"}).json()["results"][0]
    assert (long["verdict"], long["searched"]) == ("found", ["excerpt"])
    assert any(passage["first"] <= 172 and passage["last"] >= 161 for passage in long["passages"])
    assert (short["verdict"], short["searched"]) == ("found", ["whole"])
    assert "passages" not in short, "empty fields are left out"
    assert not {"passages", "searched"} & whole.keys()
    assert whole["p_value"] > long["p_value"]


def test_sentences_are_compared_with_random_keys(running: Running, texts: list[str]) -> None:
    plain = " ".join(f"Nobody spoke of item {i} on the long list of things." for i in range(12))
    with running.client("detect") as client:
        body = {"input": [texts[0], plain], "evidence": True}
        marked, unmarked = client.post("/v1/detect", json=body).json()["results"]
        bare = client.post("/v1/detect", json={"input": texts[0]}).json()["results"][0]
    chances = [result["sentence_chances"] for result in (marked, unmarked)]
    assert [len(numbers) for numbers in chances] == [marked["sentence_count"], 12]
    assert sum(chance >= PERHAPS for chance in chances[0]) >= 5
    assert not any(chance >= LIKELY for chance in chances[1]), "agreement by chance is not shown as a mark"
    assert not {"evidence", "sentence_chances"} & bare.keys(), "they take time"
    assert marked["p_text"].startswith("<= "), "no random key scored as high, so the p-value is an upper bound"
    assert unmarked["p_text"] == f"{unmarked['p_value']:.3g}"


def test_a_short_text_is_found_with_a_caveat(running: Running, texts: list[str]) -> None:
    with running.client("detect") as client:
        short = " ".join(re.split(r"(?<=[.!?]) ", texts[0])[:3])
        results = client.post("/v1/detect", json={"input": [short, texts[0]], "fpr": 0.05}).json()["results"]
    assert results[0]["verdict"] == "found"
    assert results[0]["caveat"].startswith("The text is short")
    assert "caveat" not in results[1]


@pytest.mark.parametrize("search", ["auto", "whole", "excerpt"])
def test_odd_texts_have_answers(running: Running, search: str) -> None:
    odd = ["x", "...", "a" * 5000, "\u200f\u05d0.", "```\ncode\n```", "😀 😀!", "\0", "1. 2. 3.", "One.\r\nTwo."]
    with running.client("detect") as client:
        answer = client.post("/v1/detect", json={"input": odd, "search": search, "evidence": True})
    assert answer.status_code == 200, answer.text
    assert all("error" in result or 0 < result["p_value"] <= 1 for result in answer.json()["results"])


def submit(checker: Checker, *texts: str, key: Key | None = None) -> list[TimedFuture[Answer]]:
    keys = (key or Key.generate(embedder=EMBEDDER, decision="hard"),)
    return checker.submit("", [Check(text, keys, DetectionSettings()) for text in texts], lambda _, answer: answer)


def test_texts_that_wait_are_answered_and_too_many_are_refused() -> None:
    go = threading.Event()
    waiting = watched(StandInEmbedder(), lambda _: go.wait(10), "embed")
    key, checker = Key.generate(embedder=EMBEDDER, decision="hard"), Checker(lambda _: waiting, most=20)
    texts = [f"Text {i} was here. It said little." for i in range(19)]
    futures = submit(checker, *texts, key=key)
    with pytest.raises(QueueFull):
        submit(checker, *texts[:2])
    assert checker.under_way == 19
    go.set()
    checker.close()
    mark = alimark.AliMark(key, embedder=EMBEDDER)
    assert [future.result()[0].p_value for future in futures] == [mark.detect(text).p_value for text in texts]
    with pytest.raises(QueueFull):
        submit(checker, texts[0])


def test_an_error_of_the_embedder_is_reported_and_the_next_batch_works() -> None:
    faults = [RuntimeError("out of memory")]

    def fail(_: object) -> None:
        if faults:
            raise faults[0]

    key = Key.generate(embedder=EMBEDDER, decision="hard")
    checker = Checker(lambda _: watched(StandInEmbedder(), fail, "embed"), most=4)
    with pytest.raises(RuntimeError):
        submit(checker, "One came. Two went.")[0].result(10)
    faults.clear()
    assert submit(checker, "One came. Two went.", key=key)[0].result(10)[0].key_id == key.id
    with pytest.raises(TextError):
        submit(checker, " ")[0].result(10)
    checker.close()


def checked(text: str, keys: int, search: str = "auto") -> Check:
    ring = tuple(Key.generate(embedder=EMBEDDER, secret=bytes([number]) * 32) for number in range(keys))
    return Check(text, ring, DetectionSettings(search=search))  # type: ignore[arg-type]


def bounded(check: Check, max_work: float = 120.0) -> DetectionSettings:
    """The settings with which a check is made; nothing is embedded or aligned."""
    checker = Checker(lambda _: EMBEDDER, most=1, max_work=max_work)
    return checker._bounded(check, checker._prepared(check)[0])


def test_the_work_on_a_text_is_bounded_however_it_is_read() -> None:
    """Without full stops a text is one sentence, but it is searched by clauses."""
    text = "the keeper came and the visitor went but nobody saw what they did there " * 400
    bounded(checked(text, 1))
    with pytest.raises(LimitError, match="too much work"):
        bounded(checked(text, 100, search="whole"))


@pytest.mark.parametrize("text", ["Two we. " * 51, "two wen " * 300])
def test_the_work_on_a_text_is_bounded_by_a_setting(text: str) -> None:
    """Short texts are expensive under many keys, as fuzzing showed."""
    bounded(checked(text, 1), 10.0)
    message = r"200 keys .* about \d+ s of CPU time, and the limit is 5 s; cut the text into parts, name the key"
    with pytest.raises(LimitError, match=message):
        bounded(checked(text, 200), 5.0)


def test_few_random_keys_are_drawn_for_an_expensive_text_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of tiny sentences under many keys cost half a minute of CPU time for a p-value near 1."""
    drawn = 0

    def null_blocks(key: Key, first: int, count: int, length: int) -> Packed:
        nonlocal drawn
        drawn += count
        return original(key, first, count, length)

    original = Key.null_blocks
    monkeypatch.setattr(Key, "null_blocks", null_blocks)
    check = checked("Two we. " * 51, 24, "whole")
    settings = bounded(check)
    [best, *_] = Checker(lambda _: EMBEDDER, most=1).detect(check)
    assert settings.draws == 4800
    assert best.p_value >= 0.1
    assert drawn < 2 * settings.draws  # three times as many without the stop
