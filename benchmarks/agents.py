"""What agents ask of the service, by the official client and by LangChain, on a real model: seconds, and what is marked.

    python benchmarks/agents.py --llm qwen2.5-coder-0.5b --strength light

Each request is sent as an agent would send it: a temperature of 0 twice, tools with every `tool_choice`, JSON,
`max_completion_tokens`, and loops that call a tool and go on with its result. A line says what came back.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from openai import OpenAI

from local_service import Running, add_options, running_service

ASK = [{"role": "user", "content": "What is the weather in Paris? Then say in three sentences what to wear."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS},
    }
]
WEATHER = {"temperature": 21, "sky": "clear"}
NAMED = {"type": "function", "function": {"name": "weather"}}

REQUESTS: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0, "max_tokens": 60},
    "max_completion_tokens": {"max_completion_tokens": 40},
    "tools": {"tools": TOOLS, "max_tokens": 60},
    "tool_choice required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60},
    "tool_choice by name": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60, "stream": True},
    "tool_choice none": {"tools": TOOLS, "tool_choice": "none", "max_tokens": 40},
    "JSON mode": {"response_format": {"type": "json_object"}, "max_tokens": 60},
    "JSON mode, streamed": {"response_format": {"type": "json_object"}, "max_tokens": 60, "stream": True},
}  # fmt: skip


def answers(client: Any, model: str) -> Iterator[str]:
    """Sends each request and describes the answer."""
    for name, options in REQUESTS.items():
        started = time.perf_counter()
        answer: Any = client.chat.completions.create(model=model, messages=ASK, **options)
        if options.get("stream"):
            chunks = list(answer)
            calls = any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
            text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
            mark = chunks[-1].alimark
        else:
            message = answer.choices[0].message
            calls, text, mark = bool(message.tool_calls), message.content or "", answer.alimark
        kind = "a call" if calls else "JSON" if text.lstrip().startswith("{") else "prose"
        seconds = time.perf_counter() - started
        yield f"| {name} | {seconds:.1f} | {kind} | {mark['marked']} | {mark['words']} | {mark['words_marked']} |"
    first, again = (_zero(client, model) for _ in range(2))
    yield f"\nThe same request at temperature 0 gets the same answer: {first == again}."


def _zero(client: Any, model: str) -> str:
    answer: Any = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=60)
    return str(answer.choices[0].message.content)


def plain_loop(client: Any, model: str) -> str:
    """A loop as openai-agents runs it: calls until the model answers in prose."""
    messages: list[Any] = list(ASK)
    for turn in range(4):
        choice = "required" if not turn else "auto"
        answer: Any = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=80
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return f"{turn} calls, then prose: marked {answer.alimark['marked']}, found {answer.alimark['found']}"
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": json.dumps(WEATHER)} for call in message.tool_calls
        ]
    return "4 calls and no prose: the model called the tool each time"


def langchain_loop(url: str, token: str, model: str) -> str:
    """The same with LangChain."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {"base_url": url, "api_key": token, "model": model, "max_tokens": 80, "temperature": 0}
    chat: Any = ChatOpenAI(**options)
    messages: list[Any] = [HumanMessage(str(ASK[0]["content"]))]
    for turn in range(4):
        answer = chat.bind_tools(TOOLS, tool_choice="required" if not turn else "auto").invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return f"{turn} calls, then {len(answer.text.split())} words of prose"
        messages += [ToolMessage(json.dumps(WEATHER), tool_call_id=call["id"]) for call in answer.tool_calls]
    return "4 calls and no prose: the model called the tool each time"


def run(running: Running) -> None:
    token = running.client.headers["authorization"].removeprefix("Bearer ")
    url = f"{running.client.base_url}".rstrip("/") + "/v1"
    with OpenAI(base_url=url, api_key=token, max_retries=0, timeout=600) as client:
        print(
            "| request | seconds | answer | marked | words | of these marked |\n| --- | ---: | --- | --- | --- | --- |"
        )
        for line in answers(client, running.llm.name):
            print(line, flush=True)
        loops: dict[str, Callable[[], str]] = {
            "openai": lambda: plain_loop(client, running.llm.name),
            "LangChain": lambda: langchain_loop(url, token, running.llm.name),
        }
        for name, loop in loops.items():
            print(f"Loop with {name}: {loop()}.", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    with running_service(parser.parse_args()) as running:
        run(running)


if __name__ == "__main__":
    main()
