"""What the HTTP adapter says to servers of one kind: vLLM, SGLang, llama.cpp."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx")

from stories import ANY, CONTEXT, connect, draw, numbered, teller

from alimark.core.llm.base import Request, Sampling
from alimark.errors import LLMError
from fake_server import Fake, Reply, fake, waits

__all__ = ["fake", "waits"]  # fixtures, used by name


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
