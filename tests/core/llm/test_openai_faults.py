"""The HTTP adapter when something is wrong: addresses, keys that must stay secret, servers that fail, threads."""

import gc
import json
import logging
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("httpx")

from stories import ANY, CONTEXT, connect, draw, numbered, sentence_over

from alimark.core.llm import _http, load_llm
from alimark.core.llm.base import Request
from alimark.core.llm.openai import OpenAI
from alimark.errors import ContextFull, LLMError
from fake_server import KEY, Fake, Reply, Seen


class TestAddresses:
    @pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://host/v1", "http:///v1", "http://host:99999/v1"])
    def test_what_is_no_address_is_an_error(self, url: str) -> None:
        with pytest.raises(LLMError, match="not the address of a server"):
            OpenAI(url, "m", dialect="openai")

    @pytest.mark.parametrize("url", [f"http://me:{KEY}@host/v1", f"http://{KEY}@host/v1", f"http://host/v1?key={KEY}"])
    def test_a_secret_in_an_address_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(LLMError, match="ALIMARK_API_KEY") as caught:
            load_llm(f"openai:{url}#m", dialect="openai")
        assert KEY not in "".join(traceback.format_exception(caught.value)).replace(repr(url), "")

    @pytest.mark.parametrize("options", [{"concurrency": 0}, {"per_request": 0}, {"timeout": 0}, {"api": "soap"}])
    def test_options_out_of_range_are_errors(self, options: dict[str, Any]) -> None:
        with pytest.raises(LLMError):
            OpenAI("http://localhost:1/v1", "m", **{"dialect": "openai", **options})

    def test_a_path_and_a_slash_are_kept_and_dropped(self, fake: Fake) -> None:
        fake.answer = numbered
        with OpenAI(fake.url + "/", "m", dialect="openai") as llm:
            draw(llm)
        assert fake.seen[0].path == "/v1/completions"


class TestKey:
    def test_ours_goes_before_theirs(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        fake.answer = numbered
        sent = []
        for ours, theirs in ((KEY, "other"), ("", "other"), ("", "")):
            monkeypatch.setenv("ALIMARK_API_KEY", ours)
            monkeypatch.setenv("OPENAI_API_KEY", theirs)
            with connect(fake) as llm:
                draw(llm)
            sent.append(fake.seen[-1].headers.get("authorization"))
        assert sent == [f"Bearer {KEY}", "Bearer other", None]

    def test_a_key_that_is_none_is_refused_and_not_repeated(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALIMARK_API_KEY", f"{KEY}\r\nX-Other: 1")
        with pytest.raises(LLMError, match="ALIMARK_API_KEY") as caught:
            connect(fake)
        assert KEY not in "".join(traceback.format_exception(caught.value))

    def test_sending_it_in_the_clear_gives_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALIMARK_API_KEY", KEY)
        with pytest.warns(UserWarning, match="unencrypted") as caught:
            OpenAI("http://models.example/v1", "m", dialect="openai").close()
        assert len(caught) == 1
        assert KEY not in str(caught[0].message)
        OpenAI("https://models.example/v1", "m", dialect="openai").close()
        OpenAI("http://localhost:1/v1", "m", dialect="openai").close()
        monkeypatch.delenv("ALIMARK_API_KEY")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        OpenAI("http://models.example/v1", "m", dialect="openai").close()

    @pytest.mark.parametrize(
        "reply",
        [
            Reply({"error": {"message": f"Incorrect key: {KEY}"}}, 401),
            Reply({"error": {"message": f"bad key {KEY}"}}, 400),
            Reply({"error": {"message": "x" * 290 + KEY}}, 400),
            Reply(f"bad key {KEY}".encode(), 500),
            Reply({"error": {"message": f"maximum context length, {KEY}"}}, 400),
            Reply(b"half", announced=100),
            Reply(b"rubbish"),
        ],
        ids=["401", "400", "cut", "500", "full", "killed", "rubbish"],
    )
    def test_stays_secret(self, fake: Fake, waits: list[float], caplog: pytest.LogCaptureFixture, reply: Reply) -> None:
        fake.answer = lambda seen: reply
        caplog.set_level(logging.DEBUG)
        with connect(fake) as llm, pytest.raises(LLMError) as caught:
            draw(llm)
        assert fake.seen[0].headers["authorization"] == f"Bearer {KEY}"
        links: list[BaseException] = [caught.value]
        for link in links:
            links += [other for other in (link.__cause__, link.__context__) if other]
            assert isinstance(link, LLMError)  # an error of httpx holds the request and its headers
            assert KEY[:12] not in f"{link!r} {link} {vars(link)}"
        assert KEY not in "".join(traceback.format_exception(caught.value))
        assert KEY not in caplog.text
        assert KEY not in repr(llm)


def choice(**changed: Any) -> Reply:
    return Reply({"choices": [{"index": 0, "text": " So. ", "finish_reason": "stop", **changed}]})


PASSING = {
    "killed in mid-answer": Reply(b'{"choices": [{"ind', announced=1000),
    "closed at once": Reply(b"", announced=10),
    "500": Reply({"error": "no"}, 500),
    "503": Reply(b"", 503),
    "408": Reply(b"", 408),
    "409": Reply(b"", 409),
    "429": Reply({"error": {"message": "slow down"}}, 429),
    "not JSON": Reply(b"<html>sorry</html>"),
    "not UTF-8": Reply(b"\xff\xfe\xff"),
    "deep": Reply(b"[" * 200_000),
    "a list": Reply([]),
    "a number": Reply(7),
    "no choices": Reply({"usage": {}}),
    "empty choices": Reply({"choices": []}),
    "choices of the wrong kind": Reply({"choices": {"0": {}}}),
    "a choice of the wrong kind": Reply({"choices": ["text"]}),
    "text of the wrong kind": choice(text=["So."]),
    "no text": choice(text=None),
    "index of the wrong kind": choice(index="0"),
    "no index": choice(index=None),
    "index of no number": choice(index=True),
    "message of the wrong kind": choice(message="So."),
    "content of the wrong kind": choice(message={"content": 3}),
}


class TestFaults:
    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_one_that_passes_goes_unnoticed(self, fake: Fake, waits: list[float], fault: Reply) -> None:
        replies = iter([fault, fault])
        fake.answer = lambda seen: next(replies, None) or numbered(seen)
        with connect(fake) as llm:
            assert draw(llm)[0].ended == "sentence"
        assert len(fake.seen) == 3
        assert len({json.dumps(seen.body) for seen in fake.seen}) == 1
        assert len(waits) == 2

    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_one_that_lasts_is_an_error(self, fake: Fake, waits: list[float], fault: Reply) -> None:
        fake.answer = lambda seen: fault
        with connect(fake) as llm, pytest.raises(LLMError, match=r"failed 3 times in a row.*check that the server"):
            draw(llm)
        assert len(fake.seen) == 3

    def test_nobody_there(self, fake: Fake, waits: list[float]) -> None:
        fake.close()
        with pytest.raises(LLMError, match="failed 2 times in a row, last with: ConnectError"):
            OpenAI(fake.url)
        with connect(fake, retries=0) as llm, pytest.raises(LLMError, match="failed once"):
            draw(llm)

    def test_a_server_too_slow(self, fake: Fake, waits: list[float]) -> None:
        done = threading.Event()
        fake.raw = lambda _: done.wait(5)
        with connect(fake, timeout=0.1, retries=1) as llm, pytest.raises(LLMError, match=r"within 0\.1 seconds"):
            draw(llm)
        done.set()
        assert len(fake.seen) == 2

    def test_an_answer_in_drops(self, fake: Fake, waits: list[float]) -> None:
        """Every byte comes in time, the whole does not."""
        done = threading.Event()

        def drip(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(500):
                if done.wait(0.01):
                    return
                handler.wfile.write(b" ")
                handler.wfile.flush()

        fake.raw = drip
        with connect(fake, timeout=0.2, retries=0) as llm, pytest.raises(LLMError, match="no whole answer"):
            draw(llm)
        done.set()

    def test_waits_grow_and_heed_the_server(self, fake: Fake, waits: list[float]) -> None:
        later = formatdate(4_000_000_000, usegmt=True)
        asked = [None, None, None, "7", "9999", later, "?"]
        replies = iter([Reply({}, 429, {"Retry-After": after} if after else {}) for after in asked])
        fake.answer = lambda seen: next(replies, None) or numbered(seen)
        with connect(fake, backoff=0.01, retries=9) as llm:
            draw(llm)
        expected = [0.01, 0.02, 0.04, 7, 60, 60, 0.64]
        assert waits == pytest.approx(expected, rel=0.26)
        assert waits[3:6] == [7, 60, 60]

    def test_a_huge_answer_is_refused_at_once(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_http, "MOST_BYTES", 2**20)
        fake.answer = lambda seen: Reply(b" " * (2**20 + 1))
        with connect(fake) as llm, pytest.raises(LLMError, match="more than 1 MiB"):
            draw(llm)
        assert len(fake.seen) == 1

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_key_that_is_not_taken(self, fake: Fake, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        fake.answer = lambda seen: Reply({"error": {"message": "who are you?"}}, status)
        with connect(fake) as llm, pytest.raises(LLMError, match=f"the key .{status}.; set ALIMARK_API_KEY"):
            draw(llm, 4)
        assert len(fake.seen) == 1
        monkeypatch.delenv("ALIMARK_API_KEY")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with connect(fake) as llm, pytest.raises(LLMError, match="without a key"):
            draw(llm)

    def test_redirects_are_not_followed(self, fake: Fake) -> None:
        other = Fake()
        fake.answer = lambda seen: Reply(b"", 307, {"Location": f"{other.url}/{KEY}/completions?key={KEY}"})
        with connect(fake) as llm, pytest.raises(LLMError, match=r"redirects \(307\) to http://127") as caught:
            draw(llm)
        assert KEY not in str(caught.value)
        assert (len(fake.seen), len(other.seen)) == (1, 0)
        other.close()

    @pytest.mark.parametrize(
        "error",
        [
            {"error": {"code": "context_length_exceeded", "message": "Reduce the length."}},
            {"object": "error", "message": "This model's maximum context length is 2048 tokens."},
            {"error": {"type": "exceed_context_size_error", "message": "request (5001 tokens) is too large"}},
            {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
            {"error": {"message": "The decoder prompt is longer than the maximum model length of 8."}},
        ],
    )
    def test_a_full_context_is_an_error_of_its_own(self, fake: Fake, error: Any) -> None:
        fake.answer = lambda seen: Reply(error, 400)
        with connect(fake) as llm, pytest.raises(ContextFull):
            draw(llm, 4)
        assert len(fake.seen) == 1

    def test_one_failure_among_many_ends_all(self, fake: Fake) -> None:
        fake.answer = lambda seen: Reply({}, 401) if seen.body["prompt"] == "bad" else numbered(seen)
        requests = [Request("good", 3, 1), Request("bad", 3, 1), Request("good", 3, 1)]
        with connect(fake) as llm:
            with pytest.raises(LLMError, match="401"):
                llm.draw(requests, ANY, sentence_over)
            assert len(draw(llm, 3)) == 3

    def test_an_error_of_the_caller_comes_through(self, fake: Fake) -> None:
        fake.answer = numbered
        with connect(fake) as llm, pytest.raises(ZeroDivisionError):
            llm.draw([Request(CONTEXT, 2, 1)], ANY, lambda _: 1 / 0)  # type: ignore[arg-type, return-value]


class TestThreads:
    def test_so_many_requests_at_a_time_over_all_threads(self, fake: Fake) -> None:
        meeting = threading.Barrier(3, timeout=10)
        lock = threading.Lock()
        flying, most = 0, 0

        def answer(seen: Seen) -> Reply:
            nonlocal flying, most
            with lock:
                flying += 1
                most = max(most, flying)
            meeting.wait()  # passed only if three are here at the same time
            with lock:
                flying -= 1
            return numbered(seen)

        fake.answer = answer
        with connect(fake, concurrency=3, per_request=1, retries=0) as llm, ThreadPoolExecutor(3) as pool:
            assert llm.max_concurrency == 3
            results = list(pool.map(lambda seed: draw(llm, 4, seed=seed), range(3)))
        assert [len(draws) for draws in results] == [4, 4, 4]
        assert most == 3

    def test_an_interrupt_comes_through_and_hangs_up(self, fake: Fake) -> None:
        main, gone = threading.main_thread().ident, threading.Event()
        assert main is not None

        def interrupt(handler: BaseHTTPRequestHandler) -> None:
            signal.pthread_kill(main, signal.SIGINT)
            if handler.connection.recv(1) == b"":
                gone.set()

        fake.raw = interrupt
        with connect(fake) as llm:
            with pytest.raises(KeyboardInterrupt):
                draw(llm)
            assert gone.wait(10)
            fake.raw, fake.answer = None, numbered
            assert len(draw(llm, 2)) == 2

    def test_what_is_closed_draws_no_more(self, fake: Fake) -> None:
        fake.answer = numbered
        llm = connect(fake)
        llm.close()
        llm.close()
        with pytest.raises(LLMError, match="closed"):
            draw(llm)
        assert not fake.seen

    def test_closing_ends_what_is_under_way(self, fake: Fake) -> None:
        llm = connect(fake)

        def close(handler: BaseHTTPRequestHandler) -> None:
            llm.close()
            handler.connection.recv(1)

        fake.raw = close
        with pytest.raises(LLMError, match="closed while in use"):
            draw(llm)

    def test_what_is_forgotten_leaves_no_thread(self, fake: Fake) -> None:
        llm = connect(fake)
        thread = llm._http._thread
        assert thread.is_alive()
        del llm
        gc.collect()
        thread.join(10)
        assert not thread.is_alive()
