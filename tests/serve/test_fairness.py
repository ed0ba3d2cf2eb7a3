"""One token does not starve another, and work that nobody waits for stops, also at the engine's server."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from services import Running, serving
from stand_ins import EchoLLM

from alimark.core._util.fair_pool import FairPool, FairQueue
from alimark.core._util.work import TimedFuture, working
from alimark.core.detection.settings import DetectionSettings
from alimark.core.llm.base import Request
from alimark.core.llm.openai import OpenAI
from alimark.core.rewriting.api import Original, RewriteSettings, rewrite_many
from alimark.errors import LLMError, TextError
from alimark.serve import checking
from alimark.serve.checking import Answer, Check, Checker
from alimark.serve.places import Places, QueueFull
from alimark.serve.writing import Writers
from alimark.testing import StandInEmbedder, StandInLLM
from fake_server import KEY, Fake, Reply, completions
from fixed_texts import fixed_key, rewrite
from rewriters import STORY, Rewriter, shown_in
from watched import watched


def test_owners_take_turns() -> None:
    fair: FairQueue[str] = FairQueue(lambda item: item[0])
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        fair.put(item)
    assert len(fair) == 6
    assert [fair.get() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert fair.get(block=False) is None
    fair.put("a4")
    fair.close()
    assert [fair.get(), fair.get()] == ["a4", None]


def test_a_newcomer_gets_its_share_of_a_full_queue() -> None:
    places, futures = Places(4), []

    def begin() -> list[Future[int]]:
        futures.append(Future[int]())
        return futures[-1:]

    for _ in range(4):
        places.start("greedy", 1, begin)
    with pytest.raises(QueueFull):
        places.start("greedy", 1, begin)
    for _ in range(2):
        places.start("other", 1, begin)
    with pytest.raises(QueueFull):
        places.start("other", 1, begin)
    for future in futures:
        future.set_result(1)
    assert places.taken == 0
    with pytest.raises(QueueFull):
        places.start("alone", 5, begin)


def test_the_work_of_one_token_leaves_a_thread_to_others() -> None:
    pool, gate = FairPool(3, "test", 2), threading.Event()
    slow = [pool.submit("greedy", gate.wait) for _ in range(8)]
    assert pool.submit("other", lambda: 7).result(5) == 7
    assert not any(future.done() for future in slow)
    assert slow[7].cancel()  # it waits
    assert slow[0].cancel()  # it is under way
    gate.set()
    assert all(future.result(5) for future in slow[1:7])
    pool.close()


def submit(checker: Checker, owner: str, *texts: str) -> list[TimedFuture[Answer]]:
    checks = [Check(text, (fixed_key(1),), DetectionSettings()) for text in texts]
    return checker.submit(owner, checks, lambda _, answer: answer)


@pytest.mark.parametrize("stage", ["prepare", "embed_texts", "answer"])
def test_texts_that_take_long_hold_up_no_other_token(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    over = threading.Event()
    original = getattr(checking, stage)

    def slow(*arguments: Any, **named: Any) -> object:
        if threading.current_thread().name in busy:
            over.wait(30)
        return original(*arguments, **named)

    busy: set[str] = set()

    class Marking(Checker):
        def detect(self, check: Check) -> Answer:
            if check.text[0].isdigit():
                busy.add(threading.current_thread().name)
            return super().detect(check)

    monkeypatch.setattr(checking, stage, slow)
    checker = Marking(lambda _: StandInEmbedder(), most=64)
    futures = submit(checker, "greedy", *(f"{n}. {STORY}" for n in range(8)))
    time.sleep(0.1)
    assert submit(checker, "other", STORY)[0].result(10)
    assert not any(future.done() for future in futures)
    over.set()
    checker.close()
    assert all(future.result() for future in futures)


def test_a_detection_that_nobody_waits_for_stops() -> None:
    checker = Checker(lambda _: StandInEmbedder(), most=64)
    [future] = submit(checker, "greedy", " ".join(f"The number {n} came by night." for n in range(1900)))
    while not future.worked:
        time.sleep(0.05)
    time.sleep(1)
    assert future.cancel(), "the alignment of so long a text takes many seconds"
    started = time.monotonic()
    checker.close()
    assert time.monotonic() - started < 8


def test_waiting_and_working_too_long_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checker, "detect", lambda self, check: time.sleep(4))
    with (
        serving(tmp_path, timeout=2.0) as running,
        running.client("detect") as client,
        ThreadPoolExecutor(3) as threads,
    ):
        answers = list(threads.map(lambda _: client.post("/v1/detect", json={"input": STORY}), range(3)))
    assert sorted(answer.json()["error"]["code"] for answer in answers) == ["busy", "timeout", "timeout"]
    assert sorted(answer.status_code for answer in answers) == [503, 504, 504]
    assert all(answer.headers["retry-after"] == "10" for answer in answers)


def test_rewritings_of_one_token_leave_a_thread_to_others() -> None:
    over = threading.Event()

    def wait(requests: Sequence[Request]) -> None:
        if "xylophone" not in requests[0].messages[-1].content:
            over.wait(30)

    writers = Writers(Rewriter(), lambda: watched(Rewriter(), wait), lambda _: StandInEmbedder(), most=32)
    slow = [writers.rewrite(STORY, fixed_key(1), 1, RewriteSettings(8 + n), "greedy") for n in range(4)]
    time.sleep(0.2)
    text = "The keeper sold a xylophone. A visitor lost the xylophone on Friday."
    assert writers.rewrite(text, fixed_key(1), 1, RewriteSettings(4), "other").result(20).text
    assert not any(future.done() for future in slow)
    over.set()
    assert all(future.result(30).text for future in slow)
    writers.close()


def test_a_rewriting_that_nobody_waits_for_asks_no_more() -> None:
    llm, future = Rewriter(), TimedFuture[object]()
    with working([future]):
        rewritings = rewrite_many([Original(STORY, 1)], fixed_key(1), StandInEmbedder(), llm, RewriteSettings(8))
        future.cancel()
        with pytest.raises(CancelledError):
            next(rewritings)


# Rewriting for many requests at a time

SETTINGS = RewriteSettings(closeness=0.5, mean_closeness=0.5)
TEXTS = [
    "The mayor opened the bridge.",
    "A storm broke the wall.",
    "Nobody came to the harbour.",
    "She sold the piano.",
]


def test_each_text_is_rewritten_as_alone() -> None:
    asked: list[str] = []
    go = threading.Event()

    def hold(requests: Sequence[Request]) -> None:
        asked.extend(shown_in(request) for request in requests)
        go.wait(10)

    llm = watched(EchoLLM(), hold)
    writers = Writers(StandInLLM(), lambda: llm, lambda _: StandInEmbedder(), most=8)
    futures = [writers.rewrite(text, fixed_key(0), i, SETTINGS) for i, text in enumerate(TEXTS)]
    nothing = writers.rewrite(" ", fixed_key(0), 1, SETTINGS)
    given_up = writers.rewrite("Never mind this.", fixed_key(0), 1, SETTINGS)
    assert given_up.cancel()
    go.set()
    rewritten = [future.result(10).text for future in futures]
    with pytest.raises(TextError):
        nothing.result(10)
    assert "Never mind this." not in asked
    assert rewritten == [
        rewrite(text, fixed_key(0), StandInEmbedder(), EchoLLM(), SETTINGS, seed=i).text for i, text in enumerate(TEXTS)
    ]
    assert writers.under_way == 0
    writers.close()


def test_an_error_of_the_model_is_reported_and_the_next_run_works() -> None:
    faults = [RuntimeError("out of memory")]

    def fail(_: object) -> None:
        if faults:
            raise faults[0]

    llm = watched(EchoLLM(), fail)
    writers = Writers(StandInLLM(), lambda: llm, lambda _: StandInEmbedder(), most=8)
    with pytest.raises((RuntimeError, LLMError)):
        writers.rewrite(TEXTS[0], fixed_key(0), 0, SETTINGS).result(10)
    faults.clear()
    assert writers.rewrite(TEXTS[0], fixed_key(0), 0, SETTINGS).result(10).text
    assert writers.under_way == 0
    writers.close()


# A server of another that hangs or fails


class Hanging:
    """Makes a fake server accept requests and not answer them, until it is told to."""

    def __init__(self) -> None:
        self.over, self.open = threading.Event(), 0

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.open += 1
        handler.connection.settimeout(0.05)
        while not self.over.is_set():
            try:
                if handler.connection.recv(1) == b"":
                    break  # the client has closed the connection
            except TimeoutError:
                continue
            except OSError:
                break
        self.open -= 1


def upstream(fake: Fake, **options: int) -> OpenAI:
    return OpenAI(fake.url, "m", dialect="openai", backoff=0.0, retries=0, **options)  # type: ignore[arg-type]


@pytest.fixture
def running(fake: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve")
    with serving(
        folder, writer=upstream(fake, concurrency=2), candidates=4, timeout=2.0, rewrite_llm="stand-in"
    ) as service:
        yield service


def ask(client: httpx.Client, path: str) -> httpx.Response:
    body = {"input": STORY} if path == "/v1/rewrite" else {"prompt": "So.", "sentences": 1}
    return client.post(path, json=body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/rewrite"])
def test_after_a_hung_server_recovers_the_next_request_succeeds(fake: Fake, running: Running, path: str) -> None:
    hanging = Hanging()
    fake.raw = hanging
    with running.client("generate") as client:
        with ThreadPoolExecutor(3) as clients:
            answers = list(clients.map(lambda _: ask(client, path), range(3)))
        statuses = sorted(answer.status_code for answer in answers)
        # Two requests reach the server at a time. A third may wait for them, and is not told to ask for less.
        assert statuses in ([504, 504, 504], [503, 504, 504])
        assert all("retry-after" in answer.headers for answer in answers)
        until, quiet = time.monotonic() + 5, 0
        # The third request may reach the server when the first two have left it, and is closed a moment later.
        while quiet < 25 and time.monotonic() < until:
            quiet = 0 if hanging.open else quiet + 1
            time.sleep(0.02)
        assert hanging.open == 0, "the connections to the server were closed"
        fake.raw, fake.answer = None, completions
        assert ask(client, "/v1/completions").status_code == 200


def test_no_error_tells_the_address_of_the_server(fake: Fake, running: Running) -> None:
    address = fake.url.split("//")[1].split("/")[0]
    replies = [
        Reply({"error": f"overloaded at {address}"}, 500), Reply({"error": "no"}, 401), Reply({}, 302),
        Reply({"error": "bad"}, 400), Reply(b"{", announced=9999),
    ]  # fmt: skip
    with running.client("generate") as client:
        for reply in replies:
            fake.answer = lambda seen, reply=reply: reply  # type: ignore[misc]
            for path in ("/v1/completions", "/v1/rewrite"):
                answer = ask(client, path)
                assert answer.status_code in (502, 504)
                assert address not in answer.text
                assert KEY not in answer.text
            streamed = client.post("/v1/completions", json={"prompt": "So.", "stream": True})
            assert address not in streamed.text
            assert '"error"' in streamed.text
            assert "[DONE]" not in streamed.text


def test_the_text_of_another_server_is_marked(fake: Fake, tmp_path: Path) -> None:
    fake.answer = completions
    with (
        serving(tmp_path, writer=upstream(fake), candidates=16) as running,
        running.client("generate") as client,
        running.client("detect") as detector,
    ):
        completion = client.post("/v1/completions", json={"prompt": "So.", "seed": 1}).json()
        text = completion["choices"][0]["text"]
        assert detector.post("/v1/detect", json={"input": text}).json()["results"][0]["verdict"] == "found"
        assert sum(seen.body.get("n", 1) for seen in fake.seen) >= 12 * 8, "candidates were asked for"
        turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}]
        answer = client.post("/v1/chat/completions", json={"messages": turns, "sentences": 1}).json()
        assert answer["choices"][0]["message"]["content"]
        assert [turn["role"] for turn in fake.seen[-1].body["messages"]][:2] == ["system", "user"]
