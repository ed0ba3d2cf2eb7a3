"""What a new text continues: the first message of its conversation, and how many sentences that has already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from alimark.core.frozen.text.splitting import Splitter
from alimark.core.frozen.text.units import with_full_stop
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
