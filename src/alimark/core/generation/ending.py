"""Where a text has to end whatever the model would write: before a stop sequence, or after a number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alimark.core.generation.results import Ended


@dataclass(frozen=True)
class Ending:
    """The stop sequences and the token limit of a text.

    Args:
        stops: The text ends before the first of these strings and holds none of them.
        max_tokens: The most tokens of the text.
        count: Counts the tokens of a text; needed with `max_tokens`.

    Example:
        >>> ending = Ending(stops=("END",), max_tokens=4, count=lambda text: len(text.split()))
        >>> ending.cut("One two. END three.")
        (9, 'stop sequence')
        >>> ending.cut("One two three four five.")
        (19, 'token limit')
        >>> ending.sendable("One two. E")
        'One two. '
    """

    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    count: Callable[[str], int] = len

    def stop_in(self, text: str, start: int = 0) -> int | None:
        """Returns the position of the first stop sequence that ends behind `start`; it may begin before."""
        places = (text.find(stop, max(0, start - len(stop) + 1)) for stop in self.stops)
        return min((place for place in places if place >= 0), default=None)

    def cut(self, text: str) -> tuple[int, Ended] | None:
        """Returns the length that a text must be cut to and the reason, or None where it may go on."""
        place = self.stop_in(text)
        whole = text if place is None else text[:place]
        if self.max_tokens is not None and (tokens := self.count(whole)) >= self.max_tokens:
            length = len(whole) if tokens == self.max_tokens else self._longest(whole, self.max_tokens)
            if length < len(whole) or place is None:
                return length, "token limit"
        return None if place is None else (place, "stop sequence")

    def _longest(self, text: str, most: int) -> int:
        """Returns the length of the longest beginning of a text that has at most so many tokens."""
        fits, over = 0, len(text)
        while over - fits > 1:
            middle = (fits + over) // 2
            if self.count(text[:middle]) <= most:
                fits = middle
            else:
                over = middle
        return fits

    def sendable(self, text: str) -> str:
        """Returns a text without what may turn out to be the beginning of a stop sequence at its end."""
        held = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(held, default=0)]
