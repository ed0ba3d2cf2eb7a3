"""A service on stand-in models, which need no weights. As a program, it runs until it is stopped.

python stand_ins.py DATA PORT [name=value ...]
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.serve.service import Service
from alimark.serve.settings import Settings
from alimark.testing import StandInEmbedder, StandInLLM


class SlowLLM(StandInLLM):
    """A language model that pauses in every call."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self._pause = pause

    def draw(self, requests: Any, sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        time.sleep(self._pause)
        return super().draw(requests, sampling, stop)


class EchoLLM(StandInLLM):
    """A chat model that rewrites a sentence by putting a word in front."""

    def draw(self, requests: Any, sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        return [[self._rewrite(request, i) for i in range(request.count)] for request in requests]

    def _rewrite(self, request: Request, number: int) -> Draw:
        words = "Indeed Surely Clearly Truly Certainly Plainly Really Verily".split()
        sentence = request.messages[-1].content.rpartition("\n\n")[2]
        return Draw(f"{words[(number + request.seed) % 8]}, {sentence[0].lower()}{sentence[1:]}", 9, "model")


def stand_in_service(data: Path, *, pause: float = 0.0, writer: LLM | None = None, **settings: Any) -> Service:
    """Returns a service with few candidates, which is fast; the watermark in twelve sentences is still found."""
    defaults: dict[str, Any] = {"candidates": 24, "embedder": "stand-in", "llm": "stand-in", "rewrite_llm": "echo"}
    llms: dict[str, LLM] = {"stand-in": writer or (SlowLLM(pause) if pause else StandInLLM()), "echo": EchoLLM()}
    return Service(
        Settings(data=data, **defaults | settings), llm=llms.__getitem__, embedder=lambda _: StandInEmbedder()
    )


def main() -> None:
    from alimark.serve.app import run

    given: dict[str, str] = dict(word.split("=", 1) for word in sys.argv[3:])
    settings: dict[str, Any] = {
        name: value if name == "database" else json.loads(value) for name, value in given.items()
    }
    lives = settings.pop("lives", 1)
    for life in range(lives):
        # All lives but the last are child processes, so that a killed one is replaced at once, with its libraries loaded.
        child = os.fork() if life < lives - 1 else 0
        if child:
            Path(sys.argv[1], "pid").write_text(str(child))
            os.waitpid(child, 0)
            continue
        if lives > 1:
            Path(sys.argv[1], "pid").write_text(str(os.getpid()))
        run(stand_in_service(Path(sys.argv[1]), port=int(sys.argv[2]), **settings))
        return


if __name__ == "__main__":
    main()
