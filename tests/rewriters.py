"""A stand-in for the chat model that rewrites sentences, and texts for it."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from alimark import Key, Rewriting, Sampling
from alimark.core.llm.base import LLM, Draw, DrawEnded, Request, StopCondition
from alimark.core.rewriting.settings import RewriteSettings
from alimark.testing import StandInEmbedder
from fixed_texts import rewrite

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(5, 37)))

STORY = (
    "The old sailor sold his boat to a young doctor from the city in the spring of 1987. Nobody in the village had expected "
    "such a thing from a man who loved the water more than bread. He moved into a small house behind the church and planted "
    "beans beside the garden. Every morning he walked down to the harbour and counted the ships that were coming home. "
    "The doctor named the boat Maria and painted it green with a narrow white line around it. In the second winter a storm "
    "tore the boat loose and carried it far beyond the northern rocks. The sailor found it there after three days of "
    "searching with two of his neighbours. Not a single plank was broken, although the mast had disappeared for good. He "
    "repaired what could be repaired and refused to take any money for the work. From that day the two men were often seen "
    "together on the quiet evenings of the summer. They spoke about weather, engines, and the strange habits of fish in deep "
    "water. When the sailor died at last, the doctor gave the boat back to the sea."
)
PAGE = """# A short guide to bread

Bread needs little more than flour, water, salt and a fair amount of patience.  It also needs an oven that gets hot enough.

- Mix the flour with the water and wait for half an hour before you go on
- Add the salt only when the dough has become smooth and quiet
  1. Turn the dough over on itself every 30 minutes for two hours

```python
def bake(dough):  # This is a comment. It stays.
    return dough.after(40, "minutes")
```

Then bake.

> Let the loaf cool down on a rack, because hot bread cannot be cut well.
"""
WORDS = (
    "harbour candle window forest engine letter silver mountain basket music garden winter paper stone lantern".split()
)


def reworded(sentence: str, chance: random.Random) -> str:
    """Three words of it replaced."""
    words = sentence.split()
    free = [i for i, word in enumerate(words) if word.isalpha() and word.islower() and len(word) > 2]
    for i in chance.sample(free, min(3, len(free))):
        words[i] = chance.choice(WORDS)
    return " ".join(words)


def shown_in(request: Request) -> str:
    """The sentence that a request is about."""
    return request.messages[-1].content.rsplit("\n\n", 1)[1]


class Rewriter(LLM):
    """Answers with what `answer` makes of the sentence it is shown; `fails` makes it fail on some of them."""

    name = "rewriter"
    max_concurrency, preferred_batch = 1, 1

    def __init__(
        self,
        answer: Callable[[str, random.Random], str] = reworded,
        *,
        fails: Callable[[str], Exception | None] = lambda _: None,
        ended: DrawEnded = "model",
        max_concurrency: int = 1,
        preferred_batch: int = 1,
    ) -> None:
        self.answer, self.fails, self.ended = answer, fails, ended
        self.max_concurrency, self.preferred_batch = max_concurrency, preferred_batch
        self.asked: list[Request] = []

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        self.asked += requests
        answers = []
        for request in requests:
            sentence = shown_in(request)
            if error := self.fails(sentence):
                raise error
            draws = []
            for number in range(request.first, request.first + request.count):
                text = self.answer(sentence, random.Random(f"{request.seed} {number} {sentence}"))
                draws.append(Draw(text, len(text.split()), "sentence" if over(text) else self.ended))
            answers.append(draws)
        return answers


def marked(llm: LLM | None = None, text: str = STORY, *, seed: int = 1, **options: Any) -> Rewriting:
    return rewrite(text, KEY, EMBEDDER, llm or Rewriter(), RewriteSettings(**options), seed=seed)
