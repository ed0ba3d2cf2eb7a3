"""Generation by the stand-ins: the right candidate, the same text from the same seed, and a model that misbehaves."""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest

from alimark import AliMark, Generation, Key, MarkedSentence, Sampling
from alimark.core.frozen.projecting import to_bits
from alimark.core.frozen.text.splitting import LONG_SENTENCE, LONGEST_SENTENCE, splitter
from alimark.core.generation.api import GenerationSettings
from alimark.core.keys.projection import project
from alimark.core.llm.base import LLM, Draw, Request, StopCondition
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder, StandInLLM
from fixed_texts import generate
from watched import Told

EMBEDDER = StandInEmbedder()
# Fixed secrets: a random one that happens to lie along what all sentences share would fail a test once in a while.
KEYS = {
    m: Key.generate(secret=bytes(range(32)), embedder=EMBEDDER, decision="hard", block_size=m) for m in (1, 2, 8, 16)
}
PROMPT = "It was a long day in the harbour."


def write(llm: object = None, *, key: Key | None = None, seed: int = 1, **options: object) -> Generation:
    chosen = GenerationSettings(**({"sentences": 6, "candidates": 24} | options))  # type: ignore[arg-type]
    return generate(PROMPT, key or KEYS[8], EMBEDDER, llm or StandInLLM(), chosen, seed=seed)  # type: ignore[arg-type]


def fixed(texts: Sequence[str]) -> LLM:
    """A model that draws these texts in this order."""
    return Told(lambda _, number: Draw(texts[number % len(texts)], 5, "sentence"))


def test_counts_of_matching_bits_are_true_and_high() -> None:
    key = KEYS[8]
    generation = write(key=key, candidates=64)
    bits = to_bits(project(EMBEDDER.embed(generation.sentences), key)).tolist()
    agreed = [8 - (a ^ b).bit_count() for a, b in zip(bits, key.blocks(6).tolist(), strict=True)]
    assert list(generation.matches) == agreed
    assert sum(agreed) / len(agreed) > 5.5  # chance is 4
    assert generation.ended == "complete"
    assert generation.surviving == len(generation.sentences) == 6
    assert splitter().units(generation.text) == list(generation.sentences)


def test_same_seed_same_text_whatever_the_wave() -> None:
    key = KEYS[8]
    texts = {write(key=key, wave=wave, candidates=32).text for wave in (1, 7, 16, 32, 100)}
    assert len(texts) == 1
    assert write(key=key, seed=2, candidates=32).text not in texts


def test_sampling_stops_at_the_first_full_match() -> None:
    key = KEYS[1]
    generation = write(key=key, candidates=64, wave=1)
    assert set(generation.matches) == {1}
    assert generation.candidates < 6 * 10


def test_without_a_full_match_the_best_are_drawn_at_random_and_repeats_count() -> None:
    key = KEYS[16]
    pairs = product(("cat", "dog", "king"), ("sea", "door"))
    texts = [f" The {word} stood by the {place} for hours. " for word, place in pairs]
    block = int(key.blocks(1)[0])
    bits = to_bits(project(EMBEDDER.embed([t.strip() for t in texts]), key)).tolist()
    count = {t: 16 - (b ^ block).bit_count() for t, b in zip(texts, bits, strict=True)}
    best = [t for t in texts if count[t] == max(count.values())]
    other = next(t for t in texts if t not in best)
    tied = other.replace("hours", "hours and hours")  # any other text: forced to tie by repeating the best one
    llm = fixed([best[0], best[0], best[0], other, tied])
    chosen = Counter(write(llm, key=key, seed=s, sentences=1, candidates=5).text for s in range(20))
    assert set(chosen) <= {t.strip() for t in (*best, tied)}


def test_a_sentence_drawn_twice_counts_twice() -> None:
    """Two sentences with equally many matching bits, one drawn three times as often."""
    key = KEYS[2]
    block = int(key.blocks(1)[0])
    pool: dict[int, str] = {}
    for i in range(400):
        text = f"Number {i} came to the old house by the river."
        matches = 2 - (int(to_bits(project(EMBEDDER.embed([text]), key))[0]) ^ block).bit_count()
        if matches == 1:
            pool[len(pool)] = text
        if len(pool) == 2:
            break
    llm = fixed([f" {pool[0]} ", f" {pool[0]} ", f" {pool[0]} ", f" {pool[1]} "])
    chosen = Counter(write(llm, key=key, seed=s, sentences=1, candidates=4).text for s in range(400))
    assert 0.66 < chosen[pool[0]] / 400 < 0.84


@pytest.mark.parametrize(
    ("llm", "ended", "sentences"),
    [
        (StandInLLM(ends_after=5), "model ended", 2),  # abbreviations count as ends, too
        (StandInLLM(blanks=1.0), "model ended", 0),
        (StandInLLM(repeats=1.0), "model repeats itself", 1),
        (StandInLLM(context_characters=150), "context full", 2),
        (fixed([""]), "model ended", 0),
        (fixed(["?! ... "]), "model ended", 0),
    ],
)
def test_a_model_that_gives_no_more_ends_the_text(llm: object, ended: str, sentences: int) -> None:
    generation = write(llm)
    assert generation.ended == ended
    assert abs(len(generation.sentences) - sentences) <= 1 + sentences // 4
    assert len(generation.matches) == len(generation.sentences)


def test_an_endless_sentence_is_marked_clause_by_clause() -> None:
    generation = write(StandInLLM(endless=True), sentences=3, candidates=4)
    assert "unfinished" not in generation.rejected
    assert all(LONG_SENTENCE <= len(sentence.split()) <= LONGEST_SENTENCE for sentence in generation.sentences)
    assert generation.surviving == 3


def test_a_sentence_without_end_is_cut_and_closed() -> None:
    generation = write(StandInLLM(endless=True), sentences=2, candidates=4, sampling=Sampling(max_tokens=40))
    assert generation.ended == "complete"
    assert generation.rejected["unfinished"] == 8
    assert all(sentence.endswith(".") for sentence in generation.sentences)


def test_equally_good_sentences_without_end_are_drawn_at_random() -> None:
    """As in the paper's algorithm 1, also where no candidate is a whole sentence: the first of equals has no advantage."""
    key = KEYS[2]
    block = int(key.blocks(1)[0])
    beginnings = [f"Number {i} came to the old house by the river and" for i in range(40)]
    bits = to_bits(project(EMBEDDER.embed([f"{beginning}." for beginning in beginnings]), key)).tolist()
    tied = [beginning for beginning, b in zip(beginnings, bits, strict=True) if (b ^ block).bit_count() == 1][:2]
    llm = Told(lambda _, number: Draw(f" {tied[number]}", 128, "length"))
    texts = Counter(write(llm, key=key, seed=s, sentences=1, candidates=2).text for s in range(100))
    assert len(texts) == 2
    assert min(texts.values()) > 25


def test_flawed_candidates_are_counted_and_avoided() -> None:
    def parrot(request: Request, number: int) -> Draw:
        """Three draws of four are blank or say the same, and the text begins with that."""
        same = " The same thing again. "
        texts = (" ", same, f" It is now {len(request.context)} hours. ", same)
        return Draw(texts[number % 4 if "again" in request.context else 1], 3, "sentence")

    generation = write(Told(parrot), candidates=16)
    assert generation.ended == "complete"
    assert generation.rejected == {"blank": 5 * 4, "repeat": 5 * 8}
    assert len(set(generation.sentences)) == 6


def test_too_few_draws_is_an_error() -> None:
    class Short(StandInLLM):
        def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
            return [super().draw(requests, sampling, stop)[0][:-1]]

    with pytest.raises(AlimarkError, match="23 answers where 24"):
        write(Short())


def test_progress_streams_the_text() -> None:
    pieces: list[MarkedSentence] = []
    mark = AliMark(Key.generate(embedder=EMBEDDER, decision="hard"), embedder=EMBEDDER)
    generation = mark.generate(PROMPT, StandInLLM(), sentences=5, candidates=8, seed=3, progress=pieces.append)
    assert "".join(piece.piece for piece in pieces) == generation.text
    assert [piece.number for piece in pieces] == [1, 2, 3, 4, 5]
    assert pieces[-1].tokens == generation.tokens


@pytest.mark.parametrize(
    "wrong", [{"sentences": 0}, {"candidates": 0}, {"sentences": 10**6}, {"wave": 0}, {"first_candidates": 0}]
)
def test_settings_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(AlimarkError):
        GenerationSettings(**wrong)  # type: ignore[arg-type]


def test_interruption_comes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        write(StandInLLM(interrupt_at=2))
