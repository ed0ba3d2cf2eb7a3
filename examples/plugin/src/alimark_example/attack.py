"""An attack: the words of a text in capitals."""

from dataclasses import dataclass
from random import Random

from alimark.lab.attacks.base import TextAttack, setting


@dataclass(frozen=True)
class Shout(TextAttack):
    """Writes a share of the words in capitals."""

    name = "shout"

    rate: float = setting(1.0, "Share of the words that are written in capitals.")

    def rewrite(self, text: str, random: Random) -> str:
        """Returns the text with some words in capitals."""
        return " ".join(word.upper() if random.random() < self.rate else word for word in text.split(" "))
