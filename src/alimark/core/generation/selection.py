"""Selection rules: what a scheme adds to the loop. A rule rates candidates and says when sampling may stop.

The rules of the schemes lie beside them; `UnmarkedRule` is the rule of plain text.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.frozen.text.splitting import Splitter
from alimark.core.frozen.text.units import with_full_stop
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.key import Key
from alimark.core.llm.base import Message


class TextOrigin:
    """Tells a selection rule which text it is made for. Prompts are split only where a rule asks for their sentences.

    Args:
        id: An id that no other text under the key has, made from its seed and prompt.
        prompt: What is continued.
        turns: The chat that is answered, instead of a prompt.
        cutter: The key's splitter.

    Example:
        >>> from alimark.core.frozen.text.splitting import splitter
        >>> origin = TextOrigin("1/prompt", "It was late. The lamp burned. Nobody", (), splitter())
        >>> origin.first_message, origin.written
        ('It was late.', 2)
    """

    def __init__(self, id: str, prompt: str, turns: Sequence[Message], cutter: Splitter) -> None:
        self.id = id
        self._prompt, self._turns, self._cutter = prompt, turns, cutter

    @cached_property
    def first_message(self) -> str:
        """What all requests of a conversation have in common: a chat up to the first question, or the first sentence."""
        if not self._turns:
            return next(iter(self._cutter.units(self._prompt)), "")
        roles = [turn.role for turn in self._turns]
        first = roles.index("user") if "user" in roles else 0
        return "\n".join(turn.content for turn in self._turns[: first + 1])

    @cached_property
    def written(self) -> int:
        """The number of finished sentences before the new text: those of the answers in a chat, or of the whole prompt.

        A prompt does not tell which of its sentences were written under the key, so all of them count. A sentence that breaks
        off is not counted: the new text continues it, and both parts get the same block.
        """
        answers = (turn.content for turn in self._turns if turn.role == "assistant")
        text = (" ".join(answers) if self._turns else self._prompt).rstrip()
        count = len(self._cutter.units(text))
        return max(0, count - (with_full_stop(text) != text))


class Weight(NamedTuple):
    """How well a candidate meets the rule."""

    matches: int  # how much of the mark it carries, of `Rule.size` at most
    worth: float
    """The number that candidates are compared by: the highest is taken, a random one of several with the same."""
    met: bool  # whether it meets the rule in full, so that no better candidate needs to be sampled


class Rule(Protocol):
    """The rule of one text under one key. It knows the sentences that were chosen before, and never the prompt."""

    scheme: str
    size: int  # the most that a sentence can match
    embeds: bool  # whether candidates have to be embedded
    stops: bool
    """Whether the first candidate that meets the rule is taken. If not, all candidates are sampled and the best is taken."""
    strict: bool  # whether a sentence that does not meet the rule is counted and reported as a failure

    def wave(self, settings: GenerationSettings) -> int:
        """How many candidates to sample together."""

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        """Reduces embeddings to what the rule needs of them, such as projections; one row for each embedding."""

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        """Rates all candidates for the next sentence, in the order they were drawn; a sentence drawn twice is there twice."""

    def chose(self, seen: Floats) -> None:
        """Takes note of the sentence that was appended."""


@runtime_checkable
class TextRule(Rule, Protocol):
    """A rule that also reads the candidates' texts, such as one that filters repeated words."""

    def weigh_texts(self, seen: Floats, units: Sequence[str]) -> Sequence[Weight]:
        """Rates all candidates as `weigh` does; `units` are their texts. It is called instead of `weigh`."""

    def chose_text(self, seen: Floats, unit: str) -> None:
        """Takes note of the sentence that was appended, and of its text. It is called instead of `chose`."""


@runtime_checkable
class AdaptiveRule(Rule, Protocol):
    """A rule that samples more candidates for one sentence than for another, `settings.candidates` on average."""

    def most(self, settings: GenerationSettings, spent: int) -> int:
        """The most candidates for this sentence, after so many were spent on the text's sentences before it."""

    def enough(self, worths: Sequence[float]) -> bool:
        """Whether the best of these candidates is taken, so that no further wave is sampled."""


@runtime_checkable
class DirectedRule(Rule, Protocol):
    """A rule whose worth grows along one direction of the embedding space, towards which a model can be steered."""

    def direction(self) -> Floats:
        """The direction of the next sentence, in the coordinates of the table of the key's embedder."""


RuleFactory = Callable[[Key, GenerationSettings, TextOrigin], Rule]
"""Makes the rule of one text from its key, the settings, and what the text continues.

`alimark.core.schemes.registry.rule_for` is the factory for keys of any scheme."""


class UnmarkedRule:
    """The rule of plain text: the first candidate without a flaw is taken."""

    scheme, size, embeds, stops, strict = "unmarked", 0, False, True, False

    def wave(self, settings: GenerationSettings) -> int:
        return 1

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        return np.empty((len(vectors), 0))

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        return [Weight(0, 0.0, True)] * len(seen)

    def chose(self, seen: Floats) -> None:
        pass
