"""What tests pass as `over`, answers for the server that does as it is told, and how tests of the HTTP adapter ask it."""

import re
from typing import Any

from alimark.core.llm.base import Message, Request, Sampling
from alimark.core.llm.openai import OpenAI
from fake_server import Answer, Fake, Reply, Seen

CONTEXT = "It was late."
ASKED = Message("user", "Why is the sky blue?")
ANY = Sampling(max_tokens=64)


def sentence_over(text: str) -> bool:
    """A plain reading of what callers pass: a mark and white space, or a blank line, behind a first word."""
    return re.search(r"(?<!Dr)(?<!Mrs)[.!?…][\"'”’)]*[ \n]|\n\n", text.lstrip()) is not None


def never_over(text: str) -> bool:
    return False


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
