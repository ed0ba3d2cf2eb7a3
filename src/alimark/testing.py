"""A language model and an embedder for tests: fast, deterministic, and without weights.

They serve tests of programs that use alimark, and alimark's own tests and examples. `StandInLLM` generates random English
sentences, and can imitate faults of real models. `StandInEmbedder` hashes words and letters, so that similar texts have similar
vectors.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from alimark.core.llm.base import Draw, Request, Sampling, StopCondition
from alimark.errors import ContextFull

_WORDS = {
    "who": "the teacher|a young doctor|her brother|the old sailor|Mrs. Brown|Dr. Smith|the mayor|a stranger"
    "|the team|our neighbour|the painter|J. R. Miller|some students|the captain|the engineer|Maria|a visitor",
    "did": "found|forgot|described|painted|sold|repaired|refused|remembered|carried|studied|lost|measured|hid"
    "|opened|followed|watched|wanted",
    "what": "a letter|the red house|an old map|the bridge|two horses|a strange machine|the evidence|the piano"
    "|a garden|some bread|every window|3.5 million dollars|the U.S. flag|his notebook|a question",
    "where": "near the river|in the city|behind the church|at school|on the hill|by the sea|under the stairs"
    "|across the border|in a quiet valley|at home|inside the museum|beside the road",
    "when": "in the morning|last winter|after the storm|for years|at 5 p.m. that day|before dinner|on Friday"
    "|too late|during the war|every summer|without warning",
    "why": "because nobody else would|although it was raining|to please the crowd|while the children slept"
    "|so that it could be sold|and said nothing|but never spoke of it|as the law demands",
    "how": "slowly|with great care|in secret|for the first time|against all advice|cheerfully|by hand|alone",
}
_CHOICES = {slot: words.split("|") for slot, words in _WORDS.items()}
_TEMPLATES = (
    "{who} {did} {what} {where}.",
    "{when}, {who} {did} {what} {why}.",
    "{who} {how} {did} {what} {when}.",
    "{where}, {who} {did} {what}, {why}.",
    "did {who} really find {what} {where} {when}?",
    '"{who} {did} {what} {when}," {who} said {how}.',
    '"{who} {did} {what}!" (They were {where} {when}.)',
    "{who} and {who} {did} {what} {where} {why}!",
    "it was {who} who {how} {did} {what} {when}.",
)
_MARK = re.compile(r"[.!?]")


@dataclass(eq=False)
class StandInLLM:
    """A language model without weights that generates random sentences, and can imitate faults of real models.

    A draw depends on the context, the seed and the number of the draw only.

    Args:
        seed: Another seed gives other sentences.
        name: The name of the model.
        ends_after: The model ends the text once the context holds this many sentence ends.
        ends: The share of draws that end the text, where the model may end it.
        blanks: The share of draws that are white space.
        repeats: The share of draws that are all the same.
        endless: Whether no sentence ever ends, so that every draw reaches `max_tokens`.
        context_characters: The length of the longest context; for a longer one `draw` raises ContextFull.
        interrupt_at: The number of the call, counted from 1, at which `draw` raises KeyboardInterrupt.
        max_concurrency: The property of this name of the LLM protocol.
        preferred_batch: The property of this name of the LLM protocol.

    Example:
        >>> from alimark.core.llm.base import Request, Sampling
        >>> llm = StandInLLM()
        >>> [[draw]] = llm.draw([Request("A story. ", 1, seed=9)], Sampling(), lambda text: text.endswith(". "))
        >>> draw.text
        'The painter hid a letter on the hill. '
        >>> draw.ended
        'sentence'
    """

    seed: int = 0
    _: KW_ONLY
    name: str = "stand-in"
    ends_after: int | None = None
    ends: float = 0.0
    blanks: float = 0.0
    repeats: float = 0.0
    endless: bool = False
    context_characters: int | None = None
    interrupt_at: int | None = None
    max_concurrency: int = 1
    preferred_batch: int = 4
    limits: tuple[str, ...] = field(default=(), init=False)
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.single_draw_batching = self.max_concurrency, self.preferred_batch

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Generates the draws of each request."""
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        for request in requests:
            if self.context_characters is not None and len(request.context) > self.context_characters:
                raise ContextFull(f"the stand-in reads at most {self.context_characters} characters")
        return [
            [self._one(request, request.first + i, sampling, stop) for i in range(request.count)]
            for request in requests
        ]

    def count_tokens(self, request: Request) -> int:
        """The number of tokens of a request; each word is a token, as in the draws."""
        return len(" ".join([*(message.content for message in request.messages), request.context]).split())

    def _one(self, request: Request, number: int, sampling: Sampling, stop: StopCondition) -> Draw:
        chat = "".join(f"{message.role}: {message.content}\n" for message in request.messages)
        label = f"{self.seed} {request.seed} {number} {chat}{request.context}"
        chance = random.Random(label.encode("utf-8", "surrogatepass"))  # a prompt may hold half a surrogate pair
        ends = len(re.findall(r"[.!?]\W*\s", request.context + " "))
        if self.ends_after is not None and ends >= self.ends_after:
            return Draw("", 1, "model")
        kind = chance.random()
        if kind < self.blanks:
            return Draw(" \n\n", 1, "model")
        if sampling.may_end and kind >= 1 - self.ends:
            return Draw("", 1, "model")
        if kind < self.blanks + self.repeats:
            chance = random.Random(self.seed)
        text = "" if request.context[-1:].isspace() else " "
        tokens, marked = 0, False
        for token in self._tokens(chance):
            text, tokens = text + token, tokens + 1
            marked = marked or bool(_MARK.search(token))
            if marked and stop(text):
                return Draw(text, tokens, "sentence")
            if tokens == sampling.max_tokens:
                break
        return Draw(text, tokens, "length")

    def _tokens(self, chance: random.Random) -> Iterator[str]:
        while True:
            sentence = _sentence(chance) + " "
            yield from re.findall(r"\S+\s*", _MARK.sub(",", sentence) if self.endless else sentence)


def _sentence(chance: random.Random) -> str:
    text = re.sub(r"\{(\w+)\}", lambda slot: chance.choice(_CHOICES[slot[1]]), chance.choice(_TEMPLATES))
    start = 1 if text.startswith('"') else 0
    return text[:start] + text[start].upper() + text[start + 1 :]


class StandInEmbedder:
    """An embedder without weights: unit vectors of hashed words and letter triples, similar for texts that share many.

    Args:
        dimension: The number of dimensions of the vectors.
        name: The name of the embedder.

    Example:
        >>> embedder = StandInEmbedder()
        >>> cat, kitten, law = embedder.embed(["The cat slept.", "The cat slept well.", "Parliament passed a bill."])
        >>> bool(cat @ kitten > cat @ law)
        True
    """

    backend = "stand-in"
    languages: frozenset[str] = frozenset()

    def __init__(self, dimension: int = 64, name: str = "stand-in") -> None:
        self.name = name
        self.dimension = dimension
        self.fingerprint = f"sha256:{hashlib.sha256(f'stand-in {dimension}'.encode()).hexdigest()}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of the texts, one row each."""
        vectors = np.array([self._vector(text) for text in texts], dtype=np.float32)
        return vectors.reshape(len(texts), self.dimension)

    def _vector(self, text: str) -> NDArray[np.float64]:
        words = re.findall(r"\w+", text.lower())
        features = [*words, *(f" {word} "[i : i + 3] for word in words for i in range(len(word)))]
        # A text without words gets a vector too, so that no row is zero.
        total = np.sum([_direction(feature, self.dimension) for feature in features or [f"\0{text}"]], axis=0)
        unit: NDArray[np.float64] = total / np.linalg.norm(total)
        return unit


@lru_cache(maxsize=1 << 14)
def _direction(feature: str, dimension: int) -> NDArray[np.float64]:
    """A fixed direction for a feature. Each coordinate is the sum of eight hashed bytes minus its mean: roughly normal."""
    stream = hashlib.shake_256(feature.encode("utf-8", "surrogatepass")).digest(8 * dimension)
    sums = np.frombuffer(stream, dtype=np.uint8).reshape(dimension, 8).sum(axis=1, dtype=np.float64)
    return np.asarray(sums - 8 * 127.5)
