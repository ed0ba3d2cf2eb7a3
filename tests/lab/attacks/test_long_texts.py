"""Attacks without a model on long texts, sentences and words and large pools: time and memory grow with the length only."""

import hashlib
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random

import pytest

from alimark.core.frozen.text.splitting import Piece
from alimark.lab.attacks import SettingValue, Target, load_attack, structure
from alimark.lab.attacks.base import attacked_id
from alimark.lab.attacks.structure import Insert, Split
from alimark.lab.attacks.words import Typos

THINGS = ("horse", "letter", "window", "garden", "piano")


def text(count: int, first: int = 0) -> str:
    """A text of numbered sentences, in paragraphs of nine."""
    return " ".join(
        f"The mayor of town {first + i} painted the {THINGS[i % 5]}, but he never sold it." + "\n\n" * (i % 9 == 8)
        for i in range(count)
    )


POOL = (*(text(40, 1000 * number) for number in range(1, 6)), text(30))


@pytest.mark.parametrize(
    ("name", "settings", "digest"),
    [
        ("insert", {"pool": POOL}, "6ad1a4de22e7fe1f"),
        ("insert", {"pool": POOL, "rate": 0.9}, "ebb00f0c9659e665"),
        ("merge", {}, "55c102b14bdff098"),
        ("merge", {"rate": 0.5}, "b78e6b4f0a8fefd0"),
        ("typos", {"rate": 0.5}, "67b5dfdd752139ef"),
    ],
)
def test_a_seed_gives_the_text_that_it_gave(name: str, settings: dict[str, SettingValue], digest: str) -> None:
    attack = load_attack(name, **settings)
    results = hashlib.sha256()
    for count in (1, 2, 7, 30, 120, 300):
        for seed in range(8):
            [(_, attacked)] = attack.run([Target(text(count), seed)])
            results.update(repr(attacked).encode())
    assert results.hexdigest()[:16] == digest


def cpu_seconds(call: Callable[[], object]) -> float:
    """The least CPU time of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("own", [False, True])
def test_inserting_takes_linear_time(own: bool) -> None:
    """Four times the sentences may take eight times as long on a busy machine; quadratic work takes sixteen times as long."""

    def insert(count: int) -> Callable[[], object]:
        sentences = [Piece(" ", f"The house number {i} was sold.") for i in range(count)]
        attack = Insert(pool=("So it was.",))
        others = [f"The boat number {i} was lost." for i in range(count)]
        pool = [body for pair in zip((piece.body for piece in sentences), others, strict=True) for body in pair]
        object.__setattr__(attack, "_pool_sentences", pool if own else others)
        return lambda: attack._change(sentences, "", count // 2, Random(1))

    assert cpu_seconds(insert(12_000)) < 8 * cpu_seconds(insert(3_000))


@pytest.mark.parametrize("name", ["insert", "copy-paste"])
def test_a_pool_is_hashed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    digest = structure.pool_digest

    def counted(pool: Sequence[str]) -> str:
        hashed.append(len(pool))
        return digest(pool)

    monkeypatch.setattr(structure, "pool_digest", counted)
    attack = load_attack(name, pool=POOL)
    assert {attacked_id(attack, str(number)) for number in range(9)} == {f"{number}/{name}@0.3" for number in range(9)}
    assert attack.settings["pool"] == digest(POOL)
    assert hashed == [len(POOL)]


@pytest.mark.parametrize("count", [6_000, 20_000])
def test_pairs_of_a_long_text(count: int) -> None:
    """Chosen pairs do not overlap and are spread over the whole text."""
    chosen = structure._disjoint(range(20_000), count, Random(1))
    assert not any(pair + 1 in chosen for pair in chosen)
    assert len(chosen) == min(count, len(chosen)) >= min(count, 10_000) - 1
    quarters = [sum(start <= pair < start + 5_000 for pair in chosen) for start in range(0, 20_000, 5_000)]
    assert max(quarters) - min(quarters) <= 300


def test_a_sentence_with_many_clauses_is_tried_at_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(structure, "_checked", lambda first, second: tried.append(first))
    clauses = "He was there in the house, and he saw it; they were with him, but she was not, " * 400
    [(_, attacked)] = Split(1.0).run([Target(clauses + "and so it went.", 1)])
    assert attacked.error == "no sentence can be split"
    assert 0 < len(tried) < 100


def test_a_typo_in_a_long_word_takes_little_memory() -> None:
    """One variant of the word is made, and not every one."""
    long = "The " + "qwertyuiop" * 400 + " was said to him once again and again."
    Typos(1.0)(long)
    tracemalloc.start()
    try:
        assert Typos(1.0)(long) != long
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
