"""The HTTP adapter: which model it takes, what it asks servers of each kind for, and what it makes of the answers."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx")

from stories import ANY, ASKED, CONTEXT, connect, draw, never_over, numbered, teller, words_of

from alimark.core.llm import load_llm
from alimark.core.llm.base import Message, Request, Sampling, TakesBias
from alimark.core.llm.openai import OpenAI
from alimark.errors import LLMError
from fake_server import Fake, Reply, Seen


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
            assert (llm.name, llm.max_concurrency) == ("mine", 3)
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
            assert ("no repetition penalty, top-k or min-p" in llm.limits) is limited
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

    def test_choices_are_sorted_by_index_and_those_that_are_missing_are_asked_for_again(self, fake: Fake) -> None:
        def answer(seen: Seen) -> Reply:
            reply = numbered(seen)
            return Reply({**reply.body, "choices": reply.body["choices"][1::-1]})

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


class TestChat:
    def test_a_fresh_answer(self, fake: Fake) -> None:
        fake.answer = teller("Air scatters light. So it goes.")
        with connect(fake) as llm:
            [one] = draw(llm, context="", messages=(Message("system", "Be brief."), ASKED))
            [[whole]] = llm.draw([Request("", 1, 1, messages=(ASKED,))], Sampling(max_tokens=500), never_over)
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
        field = "stop_reason" if dialect == "vllm" else "matched_stop"
        fake.answer = teller("Air is St. Paul's way. So.", stop_field=field)
        with connect(fake, dialect=dialect) as llm:
            over: Callable[[str], bool] = lambda text: "way. " in text  # noqa: E731
            [[one]] = llm.draw([Request("Air is", 1, 1, messages=(ASKED,))], ANY, over)
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
            [one] = draw(llm, context="Air is", messages=(ASKED,))
            assert "an unfinished turn is continued on request, in words" in llm.limits
        assert one.text == " blue, as it is. "
        messages = fake.seen[0].body["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"] == "Air is"
        assert len(fake.seen) == 1

    def test_a_draw_that_cannot_go_on_is_cut_off(self, fake: Fake) -> None:
        fake.answer = teller("word " * 99)
        with connect(fake) as llm:
            [one] = draw(llm, context="Air is", messages=(ASKED,), sampling=Sampling(max_tokens=20))
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
            with pytest.raises(LLMError, match="messages"):
                draw(llm, messages=(ASKED,))
        with connect(fake, api="chat") as llm:
            assert draw(llm)[0].text == " Rain fell. "

    def test_a_newer_name_of_the_budget_is_learnt(self, fake: Fake) -> None:
        told = teller("Rain fell. It stopped.")

        def answer(seen: Seen) -> Reply:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return Reply({"error": {"message": message}}, 400) if "max_tokens" in seen.body else told(seen)

        fake.answer = answer
        with connect(fake) as llm:
            draw(llm, context="", messages=(ASKED,))
            draw(llm, context="", messages=(ASKED,))
        assert [seen.body.get("max_completion_tokens") for seen in fake.seen] == [None, 64, 64]

    @pytest.mark.parametrize("content", [None, ""])
    def test_an_answer_without_content_is_empty(self, fake: Fake, content: Any) -> None:
        choice = {"index": 0, "message": {"content": content}, "finish_reason": "content_filter"}
        fake.answer = lambda seen: Reply({"choices": [choice], "usage": {"completion_tokens": 7}})
        with connect(fake) as llm:
            [one] = draw(llm, context="", messages=(ASKED,))
        assert (one.text, one.tokens, one.ended) == ("", 7, "model")


# Servers of one kind: vLLM, SGLang, llama.cpp


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


class TestBias:
    biased = Request(CONTEXT, 1, 1, bias=np.array([0, 0.25, 0, -1.5], np.float32))

    @pytest.mark.parametrize(("dialect", "field"), [("vllm", "prompt"), ("sglang", "prompt"), ("llama.cpp", "content")])
    def test_a_trusted_server_gets_it(self, fake: Fake, dialect: Any, field: str) -> None:
        llama = {"index": 0, "content": " So", "tokens": [5], "stop_type": "word", "stopping_word": ". "}
        tell = teller(CONTEXT + " So. ")
        fake.answer = lambda seen: Reply({"tokens": [7, 8]}) if "tokenize" in seen.path else tell(seen)
        if dialect == "llama.cpp":
            fake.answer = lambda seen: Reply({"tokens": [7, 8]} if "tokenize" in seen.path else llama)
        with connect(fake, dialect=dialect, trusted=True) as llm:
            assert isinstance(llm, TakesBias)
            assert llm.bias_stays_here
            assert llm.encode("a\nb") == [7, 8]
            llm.draw([self.biased], ANY, lambda text: True)
        assert fake.seen[0].path == "/tokenize"
        assert fake.seen[0].body[field] == "a\nb"
        sent = fake.seen[1].body["logit_bias"]
        assert {int(token): value for token, value in dict(sent).items()} == {1: 0.25, 3: -1.5}

    @pytest.mark.parametrize(("dialect", "trusted"), [("vllm", False), ("llama.cpp", False), ("openai", True)])
    def test_no_other_server_does(self, fake: Fake, dialect: Any, trusted: bool) -> None:
        llama = {"index": 0, "content": " So", "tokens": [5], "stop_type": "word", "stopping_word": ". "}
        fake.answer = (lambda seen: Reply(llama)) if dialect == "llama.cpp" else teller(CONTEXT + " So. ")
        with connect(fake, dialect=dialect, trusted=trusted) as llm:
            assert not llm.bias_stays_here
            llm.draw([self.biased], ANY, lambda text: True)
        assert "logit_bias" not in fake.seen[0].body

    def test_a_name_says_that_a_server_is_trusted(self, fake: Fake) -> None:
        fake.models = {"data": [{"id": "some/model", "owned_by": "vllm"}]}
        for engine, trusted in (("trusted", True), ("openai", False)):
            llm = load_llm(f"{engine}:{fake.url}")
            assert isinstance(llm, OpenAI)
            assert llm.bias_stays_here is trusted
            llm.close()


class TestLlamaCppDialect:
    """What a real server does not do when asked."""

    @pytest.mark.parametrize(
        ("field", "wrong"),
        [
            ("tokens", ["a"]),
            ("tokens", None),
            ("content", None),
            ("stop_type", 1),
            ("stopping_word", None),
            ("index", "x"),
        ],
    )
    def test_wrong_shapes_are_tried_again(self, fake: Fake, waits: list[float], field: str, wrong: object) -> None:
        right = {"index": 0, "content": " So", "tokens": [5], "stop_type": "word", "stopping_word": ". "}
        replies = iter([Reply({**right, field: wrong})])
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
