"""What a detection means, in sentences for people who have no statistics."""

from collections.abc import Sequence

NOT_HUMAN = "That does not mean that a person wrote the text."


def counted(count: int, what: str) -> str:
    """A number of things, such as "1 sentence" and "1,204 sentences"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def how_often(p_value: float, *, at_most: bool = False) -> str:
    """How often chance gives what a p-value stands for; `at_most` where it is only an upper bound.

    Example:
        >>> how_often(0.0123), how_often(0.287), how_often(1 / 1001, at_most=True)
        ('about once in 81', 'about 3 times in 10', 'at most once in 1,000')
    """
    if p_value > 0.15:
        return "nearly always" if p_value > 0.95 else f"about {max(2, round(10 * p_value))} times in 10"
    once = float(f"{1 / max(p_value, 1e-300):.2g}")
    return f"{'at most' if at_most else 'about'} once in {once:,.0f}"


def statement(
    verdict: str, p_value: float, *, at_most: bool = False, keys_tried: int = 1, key_id: str = "",
    passages: Sequence[tuple[int, int]] = (), length: str = "",
) -> str:  # fmt: skip
    """What a verdict says, in one or two sentences.

    Args:
        verdict: "found", "not found", "too short to tell" or "undecided".
        p_value: The p-value, corrected for everything that was tried.
        at_most: Whether the p-value is only an upper bound.
        keys_tried: The number of keys that were tried.
        key_id: The likeliest key, which is named where several were tried.
        passages: The first and the last sentence of each marked passage; none where the whole text is meant.
        length: How many sentences a text that is too short has and needs.
    """
    often = how_often(p_value, at_most=at_most)
    whose = "this key" if keys_tried == 1 else f"the key {key_id}, one of {keys_tried:,} that were tried,"
    if verdict == "found":
        parts = " and ".join(f"{first} to {last}" for first, last in passages)
        where = f"a part of the text, in the sentences {parts}" if parts else "the text"
        return f"The mark of {whose} is in {where}. By chance a text would look like this {often}."
    if verdict == "not found":
        what = "this key was not found" if keys_tried == 1 else f"none of the {keys_tried:,} keys was found"
        return f"The mark of {what}: by chance a text would look like this {often}. {NOT_HUMAN}"
    tried = "this key" if keys_tried == 1 else f"one of the {keys_tried:,} keys"
    if verdict == "too short to tell":
        return f"The text is too short to tell whether it carries the mark of {tried}: {length}."
    return f"Whether the text carries the mark of {tried} is undecided: by chance a text would look like this {often}."
