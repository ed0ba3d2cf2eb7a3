from __future__ import annotations

import gc
import json
import logging
import re
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from overs import never_over, sentence_over

from alimark.errors import ContextFull, LLMError
from alimark.llm import load_llm
from alimark.llm.base import Request, Sampling, Turn
from fake_server import KEY, Answer, Fake, Reply, Seen, fake, waits

pytest.importorskip("httpx")

from alimark.llm import _dialects, _http
from alimark.llm.openai import OpenAI

__all__ = ["fake", "waits"]  # fixtures, used by name

CONTEXT = "It was late."
ASKED = Turn("user", "Why is the sky blue?")
ANY = Sampling(max_tokens=64)


def words_of(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def teller(story: str, *, stop_field: str = "", usage: bool = True) -> Answer:
    """A model that always tells the same story, a word a token, from where the request stands in it."""

    def answer(seen: Seen) -> Reply:
        body = seen.body
        chats = "messages" in body
        said = body["messages"][-1]["content"] if chats else body["prompt"]
        rest = words_of(story[len(said) :]) if story.startswith(said) else words_of(story)
        text, reason, stop = "", "stop", None
        most = body.get("max_tokens") or body["max_completion_tokens"]
        for number, word in enumerate(rest):
            if number == most:
                reason = "length"
                break
            text += word
            stop = next((each for each in body.get("stop", ()) if stop_field and each in text), None)
            if stop:
                text = text.partition(stop)[0]
                break
        else:
            number = len(rest)
        spent = number + (1 if stop else 0)
        one: dict[str, Any] = {"finish_reason": reason, stop_field: stop} if stop_field else {"finish_reason": reason}
        one |= {"message": {"role": "assistant", "content": text}} if chats else {"text": text}
        n = body.get("n", 1)
        choices = [{**one, "index": index} for index in reversed(range(n))]
        return Reply({"choices": choices, **({"usage": {"completion_tokens": max(1, spent) * n}} if usage else {})})

    return answer


def numbered(seen: Seen) -> Reply:
    """Choices that tell their seed, as servers make it: the request's and their place."""
    n = seen.body.get("n", 1)
    choices = [{"index": i, "text": f" Seed {seen.body['seed'] + i}. ", "finish_reason": "stop"} for i in range(n)]
    return Reply({"choices": choices, "usage": {"completion_tokens": 5 * n}})


def connect(fake: Fake, model: str | None = "m", **options: Any) -> OpenAI:
    return OpenAI(fake.url, model, **{"dialect": "openai", "backoff": 0.0, "retries": 2, **options})


def draw(llm: OpenAI, count: int = 1, sampling: Sampling = ANY, **request: Any) -> Any:
    [draws] = llm.draw([Request(**{"context": CONTEXT, "count": count, "seed": 1, **request})], sampling, sentence_over)
    return draws


class TestAddresses:
    @pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://host/v1", "http:///v1", "http://host:99999/v1"])
    def test_what_is_no_address_is_an_error(self, url: str) -> None:
        with pytest.raises(LLMError, match="no address of a server"):
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
    def test_it_is_in_no_error_and_no_log(
        self, fake: Fake, waits: list[float], caplog: pytest.LogCaptureFixture, reply: Reply
    ) -> None:
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


class TestModels:
    def test_the_only_model_is_taken(self, fake: Fake) -> None:
        fake.answer = numbered
        with OpenAI(fake.url) as llm:
            draw(llm)
            assert (llm.name, repr(llm)) == ("model", f"<OpenAI model at {fake.url}>")
        assert fake.seen[0].body["model"] == "some/model"

    def test_of_several_one_must_be_named(self, fake: Fake) -> None:
        fake.models = {"data": [{"id": "one"}, {"id": "two"}]}
        fake.answer = numbered
        with pytest.raises(LLMError, match="one, two"):
            load_llm(f"openai:{fake.url}")
        llm: Any = load_llm(f"openai:{fake.url}#two", name="mine", concurrency=3)
        with llm:
            draw(llm)
            assert (llm.name, llm.callers) == ("mine", 3)
        assert fake.seen[0].body["model"] == "two"

    @pytest.mark.parametrize("models", [Reply({}, 404), {"data": []}], ids=["no list", "empty list"])
    def test_a_server_without_a_list_needs_a_name(self, fake: Fake, models: Any) -> None:
        fake.models, fake.answer = models, numbered
        with pytest.raises(LLMError, match="add #model"):
            OpenAI(fake.url)
        with OpenAI(fake.url, "m") as llm:
            assert draw(llm)[0].ended == "sentence"

    @pytest.mark.parametrize("models", [[], {"data": 3}, {"data": [3]}, {"data": [{"id": 3}]}, Reply(b"<html>")])
    def test_a_list_that_is_none_is_an_error(self, fake: Fake, waits: list[float], models: Any) -> None:
        fake.models = models
        with pytest.raises(LLMError, match="2 times in a row"):
            OpenAI(fake.url)

    @pytest.mark.parametrize(
        ("owner", "limited", "field"),
        [
            ("vllm", False, "repetition_penalty"),
            ("sglang", False, "repetition_penalty"),
            ("llamacpp", False, "repeat_penalty"),
            ("openai", True, None),
            (None, True, None),
        ],
    )
    def test_its_owner_tells_the_dialect(self, fake: Fake, owner: Any, limited: bool, field: str | None) -> None:
        fake.models = {"data": [{"id": "m", "owned_by": owner, "meta": {"n_ctx": 2048}}]}
        fake.answer = lambda seen: Reply({}, 400)
        with OpenAI(fake.url, retries=0) as llm:
            assert ("no repetition penalty" in llm.limits) is limited
            with pytest.raises(LLMError):
                draw(llm)
        body = fake.seen[0].body
        assert {name: body[name] for name in body if "penalty" in name} == ({field: 1.15} if field else {})
        assert body.get("ignore_eos", None) is (None if limited else True)
        assert body.get("repeat_last_n") == (2048 if owner == "llamacpp" else None)


class TestDraws:
    story = CONTEXT + " Then" + " on" * 40 + " it went. And it came back."

    def test_an_unknown_server_is_asked_in_steps(self, fake: Fake) -> None:
        fake.answer = teller(self.story)
        with connect(fake) as llm:
            [one] = draw(llm)
        assert (one.text, one.ended) == (" Then" + " on" * 40 + " it went. ", "sentence")
        assert [seen.body["max_tokens"] for seen in fake.seen] == [32, 32]
        assert fake.seen[1].body["prompt"] == CONTEXT + " Then" + " on" * 31
        assert fake.seen[0].body["seed"] != fake.seen[1].body["seed"]
        assert one.tokens == 32 + 15
        assert "stop" not in fake.seen[0].body

    def test_the_budget_and_the_models_own_end(self, fake: Fake) -> None:
        fake.answer = teller(self.story)
        with connect(fake) as llm:
            [cut] = draw(llm, sampling=Sampling(max_tokens=40))
            assert (cut.tokens, cut.ended) == (40, "length")
            assert cut.text == " Then" + " on" * 39
            fake.answer = teller(CONTEXT + " It ended")
            [ended] = draw(llm)
            assert (ended.text, ended.tokens, ended.ended) == (" It ended", 2, "model")

    def test_a_long_text_takes_few_rounds(self, fake: Fake) -> None:
        fake.answer = teller(CONTEXT + " word" * 900)
        with connect(fake) as llm:
            [[one]] = llm.draw([Request(CONTEXT, 1, 1)], Sampling(max_tokens=1000), never_over)
        assert (len(words_of(one.text)), one.tokens, one.ended) == (900, 900, "model")
        assert len(fake.seen) == 4

    def test_many_draws_go_in_requests_of_some(self, fake: Fake) -> None:
        fake.answer = numbered
        with connect(fake, per_request=4, concurrency=2) as llm:
            whole = draw(llm, 10)
            waves = draw(llm, 3) + draw(llm, 7, first=3)
        assert sorted(seen.body.get("n", 1) for seen in fake.seen[:3]) == [2, 4, 4]
        assert whole == waves
        seeds = [int(re.findall(r"\d+", one.text)[0]) for one in whole]
        assert seeds == list(range(seeds[0], seeds[0] + 10))
        assert {one.tokens for one in whole} == {5}

    def test_choices_are_sorted_by_their_index(self, fake: Fake) -> None:
        def answer(seen: Seen) -> Reply:
            reply = numbered(seen)
            reply.body["choices"].reverse()
            return reply

        with connect(fake) as llm:
            fake.answer = numbered
            expected = draw(llm, 5)
            fake.answer = answer
            assert draw(llm, 5) == expected

    def test_choices_that_are_missing_are_asked_for_again(self, fake: Fake) -> None:
        def answer(seen: Seen) -> Reply:
            reply = numbered(seen)
            return Reply({**reply.body, "choices": reply.body["choices"][:2]})

        with connect(fake) as llm:
            fake.answer = numbered
            expected = [one.text for one in draw(llm, 7)]
            fake.answer = answer
            assert [one.text for one in draw(llm, 7)] == expected
            before = len(fake.seen)
            draw(llm, 8)
        assert [seen.body["n"] for seen in fake.seen[before:]] == [2, 2, 2, 2]

    def test_a_server_that_takes_no_n_gets_none(self, fake: Fake) -> None:
        def answer(seen: Seen) -> Reply:
            return Reply({"error": {"message": "n must be 1"}}, 400) if "n" in seen.body else numbered(seen)

        with connect(fake) as llm:
            fake.answer = numbered
            expected = draw(llm, 5)
            fake.answer = answer
            assert draw(llm, 5) == expected
            before = len(fake.seen)
            draw(llm, 3)
        assert len(fake.seen) - before == 3

    def test_another_refusal_is_told_and_soon_forgotten(self, fake: Fake) -> None:
        fake.answer = lambda seen: Reply({"error": {"message": "no such\nmodel " + "m" * 999}}, 400)
        with connect(fake) as llm:
            with pytest.raises(LLMError, match=r"\(400\): no such model m{200,300}…$"):
                draw(llm, 8)
            fake.answer = numbered
            draw(llm, 8)
        # Once refused and once fulfilled; smaller ones of the first call may still be under way.
        assert sum(seen.body.get("n") == 8 for seen in fake.seen) == 2

    def test_an_empty_context_is_an_error(self, fake: Fake) -> None:
        with connect(fake) as llm, pytest.raises(LLMError, match="empty"):
            draw(llm, context="")
        assert not fake.seen

    @pytest.mark.parametrize(
        ("reply", "tokens", "guessed"),
        [
            ({"usage": {"completion_tokens": 40}}, [8, 32], False),
            ({"usage": {"completion_tokens": 36}}, [4, 32], False),
            ({"usage": {"completion_tokens": 32}}, [5, 32], True),  # the first choice's, as from llama.cpp
            ({"usage": {"completion_tokens": "40"}}, [5, 32], True),
            ({}, [5, 32], True),
        ],
    )
    def test_tokens_are_told_or_estimated(self, fake: Fake, reply: Any, tokens: list[int], guessed: bool) -> None:
        choices = [
            {"index": 0, "text": " Twenty letters. Or", "finish_reason": "stop"},
            {"index": 1, "text": " Forty letters is more. And so", "finish_reason": "length"},
        ]
        fake.answer = lambda seen: Reply({"choices": choices, **reply})
        with connect(fake) as llm:
            assert [one.tokens for one in draw(llm, 2)] == tokens
            assert any("estimated" in limit for limit in llm.limits) is guessed

    def test_half_a_character_is_no_text(self, fake: Fake) -> None:
        fake.answer = lambda seen: Reply(
            b'{"choices": [{"index": 0, "text": " so \\ud83d", "finish_reason": "length"}],'
            b' "usage": {"completion_tokens": 64}}'
        )
        with connect(fake) as llm:
            [one] = draw(llm, sampling=Sampling(max_tokens=2))
        assert one.text == " so "


class TestVllm:
    story = CONTEXT + " There Mr. Dr. Prof. King St. Helen went home. Then all slept."

    def test_its_fields(self, fake: Fake) -> None:
        fake.answer = teller(self.story, stop_field="stop_reason")
        with connect(fake, dialect="vllm") as llm:
            draw(llm, 3, Sampling(0.5, 0.9, 1.3, 99))
            assert llm.limits == ()
        body = fake.seen[0].body
        seed, stops = body.pop("seed"), body.pop("stop")
        assert 0 <= seed < 2**31
        assert {". ", "? ", ".\n", '." '} <= set(stops)
        assert body == {
            "model": "m", "prompt": CONTEXT, "n": 3, "max_tokens": 99, "temperature": 0.5, "top_p": 0.9,
            "repetition_penalty": 1.3, "top_k": -1, "min_p": 0.0, "ignore_eos": True, "min_tokens": 0,
        }  # fmt: skip

    @pytest.mark.parametrize("dialect", ["vllm", "sglang"])
    def test_a_false_stop_is_passed(self, fake: Fake, dialect: Any) -> None:
        fake.answer = teller(self.story, stop_field="stop_reason" if dialect == "vllm" else "matched_stop")
        with connect(fake, dialect=dialect) as llm:
            [[one]] = llm.draw([Request(CONTEXT, 1, 1)], ANY, lambda text: "home. " in text)
        assert (one.text, one.ended) == (" There Mr. Dr. Prof. King St. Helen went home. ", "sentence")
        # The blank behind "Mr." belongs to the next word, and the model had its chance to end the text before that.
        assert fake.seen[1].body["prompt"] == CONTEXT + " There Mr."
        assert fake.seen[1].body["min_tokens"] == 1
        assert [bool(seen.body["stop"]) for seen in fake.seen] == [True, True, True, False]
        # A word that was cut off was sampled, too; the last round runs to the story's end.
        assert one.tokens == 3 + 2 + 2 + 8
        assert [seen.body["max_tokens"] for seen in fake.seen] == [64, 61, 59, 57]

    def test_the_models_end_is_no_stop(self, fake: Fake) -> None:
        choice = {"index": 0, "text": " The end", "finish_reason": "stop", "matched_stop": 2, "stop_reason": None}
        fake.answer = lambda seen: Reply({"choices": [choice], "usage": {"completion_tokens": 3}})
        for dialect in ("vllm", "sglang"):
            with connect(fake, dialect=dialect) as llm:
                [one] = draw(llm, sampling=Sampling(may_end=True))
            assert (one.text, one.tokens, one.ended) == (" The end", 3, "model")
            assert fake.seen[-1].body["ignore_eos"] is False

    def test_sglang_is_asked_for_one_draw_at_a_time(self, fake: Fake) -> None:
        fake.answer = numbered
        with connect(fake, dialect="sglang") as llm:
            assert len({one.text for one in draw(llm, 4)}) == 4
        assert len(fake.seen) == 4


class TestChat:
    def test_a_fresh_answer(self, fake: Fake) -> None:
        fake.answer = teller("Air scatters light. So it goes.")
        with connect(fake) as llm:
            [one] = draw(llm, context="", turns=(Turn("system", "Be brief."), ASKED))
            [[whole]] = llm.draw([Request("", 1, 1, turns=(ASKED,))], Sampling(max_tokens=500), never_over)
        assert (one.text, one.ended, one.tokens) == ("Air scatters light. ", "sentence", 6)
        assert (whole.text, whole.ended) == ("Air scatters light. So it goes.", "model")
        assert fake.seen[0].path == "/v1/chat/completions"
        assert fake.seen[0].body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": ASKED.content},
        ]
        assert [seen.body["max_tokens"] for seen in fake.seen] == [64, 500]
        assert "chat_template_kwargs" not in fake.seen[0].body

    @pytest.mark.parametrize("dialect", ["vllm", "sglang"])
    def test_an_unfinished_turn_is_left_open(self, fake: Fake, dialect: Any) -> None:
        fake.answer = teller(
            "Air is St. Paul's way. So.", stop_field="stop_reason" if dialect == "vllm" else "matched_stop"
        )
        with connect(fake, dialect=dialect) as llm:
            over: Callable[[str], bool] = lambda text: "way. " in text  # noqa: E731
            [[one]] = llm.draw([Request("Air is", 1, 1, turns=(ASKED,))], ANY, over)
        assert one.text == " St. Paul's way. "
        assert [seen.body["messages"][-1] for seen in fake.seen] == [
            {"role": "assistant", "content": "Air is"},
            {"role": "assistant", "content": "Air is St."},
        ]
        for seen in fake.seen:
            assert seen.body["continue_final_message"] is True
            assert seen.body["add_generation_prompt"] is False

    @pytest.mark.parametrize("answer", ["blue, as it is. Ha!", "Air is blue, as it is. Ha!", " blue, as it is. Ha!"])
    def test_an_unknown_server_is_asked_to_go_on(self, fake: Fake, answer: str) -> None:
        fake.answer = teller(answer)
        with connect(fake) as llm:
            [one] = draw(llm, context="Air is", turns=(ASKED,))
            assert "an unfinished turn is continued on request, in words" in llm.limits
        assert one.text == " blue, as it is. "
        messages = fake.seen[0].body["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"] == "Air is"
        assert len(fake.seen) == 1

    def test_a_draw_that_cannot_go_on_is_cut_off(self, fake: Fake) -> None:
        fake.answer = teller("word " * 99)
        with connect(fake) as llm:
            [one] = draw(llm, context="Air is", turns=(ASKED,), sampling=Sampling(max_tokens=20))
        assert (one.tokens, one.ended, len(fake.seen)) == (20, "length", 1)

    def test_a_server_that_only_chats_is_asked_to_continue_the_text(self, fake: Fake) -> None:
        told = teller("Rain fell. It stopped.")

        def answer(seen: Seen) -> Reply:
            chats = seen.path == "/v1/chat/completions"
            return told(seen) if chats else Reply({"error": {"message": "not a completions model"}}, 404)

        fake.answer = answer
        with connect(fake) as llm:
            assert "a text is continued on request, in words" not in llm.limits
            assert [one.text for one in draw(llm, 3)] == [" Rain fell. "] * 3
            assert "a text is continued on request, in words" in llm.limits
            draw(llm)
        assert [seen.path for seen in fake.seen] == ["/v1/completions", *["/v1/chat/completions"] * 2]
        [message] = fake.seen[1].body["messages"]
        assert message["role"] == "user"
        assert message["content"].endswith(CONTEXT)
        with connect(fake, api="completions") as llm:
            with pytest.raises(LLMError, match="not a completions model"):
                draw(llm)
            with pytest.raises(LLMError, match="turns"):
                draw(llm, turns=(ASKED,))
        with connect(fake, api="chat") as llm:
            assert draw(llm)[0].text == " Rain fell. "

    def test_a_newer_name_of_the_budget_is_learnt(self, fake: Fake) -> None:
        told = teller("Rain fell. It stopped.")

        def answer(seen: Seen) -> Reply:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Reply({"error": {"message": message}}, 400) if "max_tokens" in seen.body else told(seen)

        fake.answer = answer
        with connect(fake) as llm:
            draw(llm, context="", turns=(ASKED,))
            draw(llm, context="", turns=(ASKED,))
        assert [seen.body.get("max_completion_tokens") for seen in fake.seen] == [None, 64, 64]

    @pytest.mark.parametrize(("content", "text"), [(None, ""), ("", "")])
    def test_an_answer_without_content_is_empty(self, fake: Fake, content: Any, text: str) -> None:
        choice = {"index": 0, "message": {"content": content}, "finish_reason": "content_filter"}
        fake.answer = lambda seen: Reply({"choices": [choice], "usage": {"completion_tokens": 7}})
        with connect(fake) as llm:
            [one] = draw(llm, context="", turns=(ASKED,))
        assert (one.text, one.tokens, one.ended) == (text, 7, "model")


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

        def wait(handler: BaseHTTPRequestHandler) -> None:
            done.wait(5)

        fake.raw = wait
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
        asked = [
            {},
            {},
            {},
            {"Retry-After": "7"},
            {"Retry-After": "9999"},
            {"Retry-After": later},
            {"Retry-After": "?"},
        ]
        replies = iter([Reply({}, 429, headers) for headers in asked])
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
        with connect(fake) as llm, pytest.raises(LLMError, match=r"points elsewhere \(307: http://127") as caught:
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

        def over(text: str) -> bool:
            raise ZeroDivisionError

        with connect(fake) as llm, pytest.raises(ZeroDivisionError):
            llm.draw([Request(CONTEXT, 2, 1)], ANY, over)


class TestLlamaCppDialect:
    """What a real server does not do when asked."""

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tokens": ["a"]},
            {"tokens": None},
            {"content": None},
            {"stop_type": 1},
            {"stopping_word": None},
            {"index": "x"},
        ],
    )
    def test_wrong_shapes_are_tried_again(self, fake: Fake, waits: list[float], wrong: dict[str, Any]) -> None:
        right = {"index": 0, "content": " So", "tokens": [5], "stop_type": "word", "stopping_word": ". "}
        replies = iter([Reply({**right, **wrong})])
        fake.answer = lambda seen: next(replies, None) or Reply(right)
        with connect(fake, dialect="llama.cpp") as llm:
            [one] = draw(llm)
        assert (one.text, one.tokens, len(fake.seen)) == (" So. ", 1, 2)
        assert fake.seen[0].path == "/completion"

    def test_an_empty_list_of_draws_is_tried_again(self, fake: Fake, waits: list[float]) -> None:
        fake.answer = lambda seen: Reply([])
        with connect(fake, dialect="llama.cpp") as llm, pytest.raises(LLMError, match="no draws"):
            draw(llm, 2)

    def test_a_proxy_that_hides_it_is_told(self, fake: Fake) -> None:
        fake.answer = lambda seen: Reply({}, 404)
        with connect(fake, dialect="llama.cpp") as llm, pytest.raises(LLMError, match="dialect='openai'"):
            draw(llm)


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
            assert llm.callers == 3
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

    def test_an_address_that_fails_leaves_no_thread(self, fake: Fake) -> None:
        before = set(threading.enumerate())
        fake.models = Reply({}, 401)
        with pytest.raises(LLMError):
            OpenAI(fake.url)
        assert not [thread for thread in set(threading.enumerate()) - before if "asyncio" in repr(thread._target)]  # type: ignore[attr-defined]


GREEDY: dict[str, Any] = {"temperature": 0.01, "top_p": 0.01}


@pytest.mark.weights
class TestRealServer:
    def test_it_is_recognised(self, server: str) -> None:
        llm: Any = load_llm(f"openai:{server}")
        with llm:
            assert isinstance(llm._dialect, _dialects.LlamaCpp)
            assert llm._dialect._context == 512
            assert llm.name.endswith(".gguf")

    def test_a_wrong_key(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALIMARK_API_KEY", KEY)
        with pytest.raises(LLMError, match=r"401\); set ALIMARK_API_KEY") as caught:
            load_llm(f"openai:{server}")
        assert KEY not in str(caught.value)

    def test_more_draws_than_slots(self, server: str) -> None:
        with OpenAI(server) as llm:
            draws = draw(llm, 9, Sampling(max_tokens=4))
            assert len({one.text for one in draws}) > 4
            assert 1 < llm._per_request <= 4

    def test_the_penalty_spans_the_prompt(self, served: Any) -> None:
        context = "one two three four five one two three four five one two three four five one two"
        free, held = (
            draw(served, 2, Sampling(max_tokens=6, repetition_penalty=penalty, **GREEDY), context=context)
            for penalty in (1.0, 10.0)
        )
        assert {one.text for one in free} == {" three four five one two three"}
        assert {word for one in held for word in one.text.split()}.isdisjoint({"one", "two", "three", "four", "five"})

    def test_going_on_after_an_abbreviation_changes_no_choice(
        self, served: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        context = "He met Mrs. John, he met Mrs. John, he met Mrs. John, he met"
        sampling = Sampling(max_tokens=12, repetition_penalty=1.0, **GREEDY)
        [[stopped]] = served.draw([Request(context, 1, 1)], sampling, never_over)
        monkeypatch.setattr(_dialects, "WARY_STOPS", [])
        [[free]] = served.draw([Request(context, 1, 1)], sampling, never_over)
        assert stopped == free
        assert free.text.startswith(" Mrs. John")
        assert free.tokens == 12

    def test_a_model_that_would_end_goes_on_unless_it_may(self, served: Any) -> None:
        turns = (Turn("user", "Say hello."),)
        for may_end, ended in ((True, "model"), (False, "length")):
            sampling = Sampling(max_tokens=12, repetition_penalty=1.0, may_end=may_end, **GREEDY)
            [one] = draw(served, 1, sampling, turns=turns, context="Hello! How can I help you today?")
            assert one.ended == ended

    def test_a_context_nearly_full(self, served: Any) -> None:
        with pytest.raises(ContextFull):
            served.draw([Request("word " * 400, 1, 1)], Sampling(max_tokens=200), never_over)

    def test_a_whole_answer(self, served: Any) -> None:
        request = Request("", 1, 1, turns=(Turn("user", "Write four short sentences about dogs."),))
        [[one]] = served.draw([request], Sampling(max_tokens=300, may_end=True), never_over)
        assert one.ended == "model"
        assert len(re.findall(r"[.!?](?:\s|$)", one.text)) >= 3

    def test_a_chat_in_words(self, server: str) -> None:
        for dialect in ("openai", "llama.cpp"):
            with OpenAI(server, dialect=dialect, api="chat", model="m") as llm:
                draws = draw(llm, 4, Sampling(max_tokens=30), context="The council met to talk about the library.")
                assert any(one.text for one in draws)
                assert all(one.text[:1] in {"", " "} for one in draws)
                assert "a text is continued on request, in words" in llm.limits
