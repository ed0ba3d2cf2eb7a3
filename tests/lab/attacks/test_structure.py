"""The structure attacks change exactly the sentences that they should, for any text, rate and seed."""

import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.errors import AttackError
from alimark.lab.attacks import Target, load_attack
from alimark.lab.attacks.structure import CopyPaste, Delete, Insert, Merge, Reorder, Split, Truncate, number_to_change

CUT = splitter(DEFAULT_SPLITTER)
SUBJECTS = ("The mayor", "An old sailor", "Her brother", "The team", "A visitor", "Some students", "The doctor")
VERBS = ("painted", "carried", "found", "described", "opened", "followed", "repaired")
THINGS = ("a letter", "two horses", "the red house", "an old map", "every window", "the piano", "some bread")


def sentence(number: int) -> str:
    a, b, c = number % 7, number // 7 % 7, number // 49 % 7
    return f"{SUBJECTS[a]} {VERBS[b]} {THINGS[c]} in room {number}."


texts = st.lists(st.integers(0, 10_000).map(sentence), min_size=1, max_size=30, unique=True)
rates = st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5])
seeds = st.integers(0, 2**48)


def foreign(number: int, count: int) -> str:
    """A text of other sentences."""
    return " ".join(f"Nobody {VERBS[number % 7]} {THINGS[j % 7]} of number {number}{j} again." for j in range(count))


POOL = tuple(foreign(i, 6) for i in range(20))


def sentences(text: str) -> list[str]:
    return [text[a:b] for a, b in CUT.spans(text)]


def is_kept_in_order(some: list[str], others: list[str]) -> bool:
    rest = iter(others)
    return all(one in rest for one in some)


def test_the_number_touched_is_rounded_half_up() -> None:
    assert [number_to_change(rate, 12) for rate in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 1)] == [0, 1, 2, 4, 5, 6, 12]
    assert [number_to_change(0.5, n) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]


@given(texts, rates, seeds)
def test_delete(some: list[str], rate: float, seed: int) -> None:
    k = math.floor(rate * len(some) + 0.5)
    assume(k < len(some))
    left = sentences(Delete(rate)(" ".join(some), seed))
    assert len(left) == len(some) - k
    assert is_kept_in_order(left, some)


@given(texts, rates, seeds)
def test_insert(some: list[str], rate: float, seed: int) -> None:
    k = math.floor(rate * len(some) + 0.5)
    made = sentences(Insert(rate, pool=POOL)(" ".join(some), seed))
    new = [one for one in made if one not in some]
    assert len(made) == len(some) + k
    assert [one for one in made if one in some] == some
    assert len(set(new)) == k
    assert all(any(one in text for text in POOL) for one in new)


@given(texts, rates, seeds)
def test_reorder(some: list[str], rate: float, seed: int) -> None:
    assume(len(some) >= 2)
    k = max(2, math.floor(rate * len(some) + 0.5))
    made = sentences(Reorder(rate)(" ".join(some), seed))
    assert Counter(made) == Counter(some)
    assert sum(one != other for one, other in zip(made, some, strict=True)) == k


@given(texts, rates, seeds)
def test_the_papers_public_code_rounds_down_inserts_marks_and_may_leave_an_order(
    some: list[str], rate: float, seed: int
) -> None:
    k, text = int(rate * len(some)), " ".join(some)
    assume(k < len(some))
    kept = load_attack("delete", rate=rate, preset="paper")(text, seed)
    assert len(sentences(kept)) == len(some) - k
    inserted = load_attack("insert", rate=rate, preset="paper")(text, seed)  # without a pool
    assert re.sub(r"  [.?!](?= |$)", "", inserted) == text
    assert len(inserted) == len(text) + 3 * k
    assert inserted.startswith(some[0])
    assert not re.match(r"  [.?!]", inserted[len(some[0]) :])
    if len(some) > 1:
        reordered = sentences(load_attack("reorder", rate=rate, preset="paper")(text, seed))
        assert Counter(reordered) == Counter(some)
        assert sum(one != other for one, other in zip(reordered, some, strict=True)) <= k
    if k < 2 <= len(some):
        assert reordered == some


@given(texts, rates, seeds)
def test_merge(some: list[str], rate: float, seed: int) -> None:
    k = min(math.floor(rate * len(some) + 0.5), len(some) // 2)
    assume(len(some) > 1)
    made = sentences(Merge(rate)(" ".join(some), seed))
    assert len(made) == len(some) - k
    merged = [one for one in made if one not in some]
    assert len(merged) == k
    for one in merged:  # both of its sentences are in it, the first without its mark
        [first] = [i for i, other in enumerate(some) if re.match(re.escape(other[:-1]) + "[,;]", one)]
        assert one.lower().endswith(some[first + 1].lower())
        assert one[len(some[first]) - 1 : len(some[first])] in ",;"


@given(texts, rates, seeds)
def test_split(some: list[str], rate: float, seed: int) -> None:
    k = math.floor(rate * len(some) + 0.5)
    made = sentences(Split(rate)(" ".join(some), seed))
    assert len(made) == len(some) + k
    assert sum(one in made for one in some) == len(some) - k


@given(texts, rates, seeds, st.sampled_from(["end", "start", "both"]))
def test_truncate(some: list[str], rate: float, seed: int, side: str) -> None:
    k = math.floor(rate * len(some) + 0.5)
    assume(k < len(some))
    made = sentences(load_attack("truncate", rate=rate, side=side)(" ".join(some), seed))
    start = {"end": 0, "start": k, "both": k // 2}[side]
    assert made == some[start : start + len(some) - k]


@given(texts, rates, seeds, st.integers(1, 4))
def test_copy_paste(some: list[str], rate: float, seed: int, runs: int) -> None:
    k = max(1, math.floor(rate * len(some) + 0.5))
    human = [foreign(i, 40) for i in (1, 2)]
    made = sentences(CopyPaste(rate, runs, human)(" ".join(some), seed))
    marked = [one in some for one in made]
    assert len(made) == len(some)
    assert sum(marked) == k
    first = some.index(made[marked.index(True)])
    assert [one for one in made if one in some] == some[first : first + k]
    own = [one for one in made if one not in some]
    assert any(" ".join(own) in text for text in human)
    starts = sum(here and not before for before, here in zip([False, *marked], marked, strict=False))
    assert starts == min(runs, k, len(some) - k + 1)


@given(st.text(), rates, seeds, st.sampled_from(["delete", "reorder", "merge", "split", "truncate", "insert"]))
def test_any_text_is_rewritten_or_refused(text: str, rate: float, seed: int, name: str) -> None:
    attack = load_attack(name, rate=rate, **({"pool": POOL} if name == "insert" else {}))
    [(_, made)] = attack.run([Target(text, seed)])
    assert bool(made.text) != made.failed


def test_orders_without_fixed_places_are_all_reached() -> None:
    text = " ".join(sentence(i) for i in range(4))
    reached = {tuple(sentences(Reorder(1.0)(text, seed))) for seed in range(300)}
    assert len(reached) == 9  # the derangements of four


LAYOUT = """# A title

The mayor painted a letter in the hall. Her brother carried two horses up the hill.

- The team found an old map by chance.
- A visitor opened every window at night.

```
x = 1.  # Not a sentence. Nor is this.
```

Some students repaired the piano in spring. The doctor followed the red house keeper home."""


@pytest.mark.parametrize("attack", [Delete(0.4), Insert(0.4, pool=POOL), Reorder(0.4), Merge(0.2), Split(0.4)])
def test_layout_and_code_stay(attack: Delete | Insert | Reorder | Merge | Split) -> None:
    for seed in range(30):
        made = attack(LAYOUT, seed)
        assert "```\nx = 1.  # Not a sentence. Nor is this.\n```" in made
        assert not made.startswith((" ", "\n"))
        assert "\n\n" in made


def test_a_paragraph_that_loses_its_first_sentence_stays_one() -> None:
    text = "The first one is here. The second one is here.\n\nThe third one is here. The fourth one is here."
    made = {Delete(0.25)(text, seed) for seed in range(50)}
    assert made == {
        "The second one is here.\n\nThe third one is here. The fourth one is here.",
        "The first one is here.\n\nThe third one is here. The fourth one is here.",
        "The first one is here. The second one is here.\n\nThe fourth one is here.",
        "The first one is here. The second one is here.\n\nThe third one is here.",
    }


@pytest.mark.parametrize(
    ("sentence", "halves"),
    [
        ("He left the house early, and she stayed at home.", ("He left the house early.", "She stayed at home.")),
        ("He wanted to leave early, but the train was late.", ("He wanted to leave early.", "However, the train was late.")),
        ("They closed the road because the bridge had fallen.",
         ("They closed the road.", "This is because the bridge had fallen.")),
        ("She found a letter, which was written in green ink.", ("She found a letter.", "This was written in green ink.")),
        ("When the sun came up, the boats left the harbour.",
         ("The sun came up.", "At that time, the boats left the harbour.")),
        ("Although it was raining, Maria walked home.", ("It was raining.", "Nevertheless, Maria walked home.")),
        ("The boy hid the money under the old oak tree.", ("The boy hid the money.", "This was under the old oak tree.")),
    ],
)  # fmt: skip
def test_splits_are_sentences(sentence: str, halves: tuple[str, str]) -> None:
    assert Split(1.0)(sentence) == " ".join(halves)


def test_merges_take_care() -> None:
    made = Merge(0.5)("Where is it? The key is here.\n\nAnother paragraph begins now. Mr. Smith came home.", 1)
    assert made.count("?") == 1
    with pytest.raises(AttackError, match="can be merged"):
        Merge(0.5)("Where is it? Who has it?")
    made = Merge(0.5)("The road was closed. However, nobody told Maria.")
    assert made == "The road was closed; however, nobody told Maria."
    assert "Maria" in Merge(0.5)("The road was closed. Maria stayed at home.", 3)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_wrong_rates(rate: float) -> None:
    with pytest.raises(AttackError, match="between 0 and 1"):
        Delete(rate)


def test_what_cannot_be() -> None:
    for attack, why in (
        (Delete(1.0), "nothing would be left"),
        (Reorder(0.5), "one sentence"),
        (Insert(1.0, pool=()), "larger pool"),
        (CopyPaste(0.5, 1, ()), "no human text"),
        (Split(1.0), "no sentence can be split"),
    ):
        with pytest.raises(AttackError, match=why):
            attack("One sentence stands here.")
    with pytest.raises(AttackError, match="no sentence"):
        Delete(0.5)(" \n ")
    with pytest.raises(AttackError, match="end, start or both"):
        Truncate(0.5, "middle")  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="no attack is named"):
        load_attack("nosuch")
    with pytest.raises(AttackError, match="settings"):
        load_attack("delete", ratio=0.5)


def test_a_text_of_the_pool_gives_itself_nothing() -> None:
    own = " ".join(sentence(i) for i in range(6))
    other = " ".join(sentence(i) for i in range(100, 106))
    made = sentences(Insert(0.5, pool=(own, other))(own, 5))
    assert len(set(made)) == 9


@pytest.mark.parametrize("name", ["insert", "copy-paste"])
@pytest.mark.parametrize("pool", ["One text. It is no pool.", None, ["A text.", 2]])
def test_a_pool_is_a_list_of_texts(name: str, pool: Any) -> None:
    """Of a single text every character would be a text of the pool."""
    with pytest.raises(AttackError, match="pool must be a list of texts"):
        load_attack(name, pool=pool)


def test_pools_are_told_apart_in_the_settings() -> None:
    assert Insert(0.5, pool=("a", "b")).settings != Insert(0.5, pool=("a", "c")).settings
    assert set(Insert(0.5, pool=("a",)).settings) == {"rate", "preset", "pool"}
