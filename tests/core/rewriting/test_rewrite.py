"""Rewriting a text to mark it, with a stand-in for the chat model: what may change, what stays, and what is reported."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key, Rewriting, Sampling
from alimark.core.frozen.projecting import to_bits
from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import without_marker
from alimark.core.keys.projection import project
from alimark.core.llm.base import Draw, Request, StopCondition
from alimark.core.rewriting.api import rewrite_many
from alimark.core.rewriting.candidates import Known, fixed_parts, judge
from alimark.core.rewriting.settings import WAYS, Original, RewriteSettings
from alimark.errors import AlimarkError, ContextFull, LLMError, TextError
from fixed_texts import rewrite
from rewriters import EMBEDDER, KEY, PAGE, STORY, WORDS, Rewriter, marked, reworded, shown_in


def test_the_mark_is_found_and_was_not_there_before() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    rewriting = marked(candidates=32)
    assert mark.detect(STORY).p_value > 0.05
    assert mark.detect(rewriting.text).verdict() == "found"
    assert rewriting.surviving == len(rewriting.sentences) == 12
    assert tuple(splitter().units(rewriting.text)) == rewriting.sentences


def test_matches_and_cosines_are_those_of_the_text() -> None:
    rewriting = marked()
    before, after = EMBEDDER.embed(splitter().units(STORY)), EMBEDDER.embed(splitter().units(rewriting.text))
    blocks = KEY.blocks(12).tolist()
    for vectors, matches in (
        (before, [sentence.matches_before for sentence in rewriting.rewritten]),
        (after, list(rewriting.matches)),
    ):
        bits = to_bits(project(vectors, KEY)).tolist()
        assert matches == [8 - (a ^ b).bit_count() for a, b in zip(bits, blocks, strict=True)]
    assert rewriting.cosines == pytest.approx((before * after).sum(axis=1), abs=1e-5)
    assert sum(rewriting.matches) > sum(sentence.matches_before for sentence in rewriting.rewritten)
    assert [sentence.before for sentence in rewriting.rewritten] == splitter().units(STORY)


def test_bits_are_given_up_where_the_text_would_move_too_far() -> None:
    bounds = [-1.0, 0.85, 0.9, 0.95, 1.0]
    texts = [marked(closeness=0.5, mean_closeness=bound) for bound in bounds]
    assert all(np.mean(rewriting.cosines) >= bound for rewriting, bound in zip(texts, bounds, strict=True))
    bits = [sum(rewriting.matches) for rewriting in texts]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > bits[2] > bits[-1]
    assert texts[-1].text == STORY
    assert {sentence.outcome for sentence in texts[-1].rewritten} == {"best as it was"}


def skeleton(text: str) -> str:
    """The text without its sentences."""
    kept, at = "", 0
    for a, b in splitter().spans(text):
        kept, at = kept + text[at : b - len(without_marker(text[a:b]))] + "\0", b
    return kept + text[at:]


@pytest.mark.parametrize(
    "text", [PAGE, PAGE.replace("\n", "\r\n"), f"\n\n  {STORY}\t\n\n", STORY[: STORY.index(" Nobody")]]
)
def test_layout_is_kept_to_the_letter(text: str) -> None:
    rewriting = marked(text=text, candidates=32, closeness=0.3, mean_closeness=0.3)
    assert rewriting.text != text
    assert skeleton(rewriting.text) == skeleton(text)


def test_code_headings_and_short_sentences_stay() -> None:
    llm = Rewriter()
    rewriting = marked(llm, PAGE, candidates=32, closeness=0.3, mean_closeness=0.3)
    assert PAGE[PAGE.index("```python") : PAGE.rindex("```")] in rewriting.text
    outcomes = {sentence.before: sentence.outcome for sentence in rewriting.rewritten}
    assert outcomes["A short guide to bread."] == "heading"
    assert outcomes["Then bake."] == "too short"
    assert rewriting.left_alone == (1, 7)
    assert len(rewriting.rewritten) == len(splitter().units(PAGE)) == 8  # a block each, also those that stay
    shown = {shown_in(request) for request in llm.asked}
    assert "Let the loaf cool down on a rack, because hot bread cannot be cut well." in shown
    assert not any("bake(dough)" in turn.content for request in llm.asked for turn in request.messages)
    item = next(line for line in rewriting.text.splitlines() if line.startswith("- Mix"))
    assert not item.endswith(".")  # as it was


def test_every_sentence_is_asked_for_in_several_ways_alone_or_in_context() -> None:
    llm = Rewriter()
    rewriting = marked(llm, candidates=10, waves=1)
    assert rewriting.candidates == 120
    assert [request.count for request in llm.asked[: len(WAYS)]] == [3, 3, 2, 2]
    assert len({request.seed for request in llm.asked}) == 12 * len(WAYS)
    assert shown_in(llm.asked[0]) == STORY[: STORY.index(" Nobody")]
    assert "Nobody" not in llm.asked[0].messages[-1].content
    assert marked(candidates=2).candidates == 24
    llm = Rewriter()
    marked(llm, candidates=4, context=True, waves=1)
    second = llm.asked[len(WAYS)].messages[-1].content
    assert "spring of 1987. Nobody" in second
    assert "planted beans" in second
    assert shown_in(llm.asked[len(WAYS)]).startswith("Nobody")


def test_a_later_wave_rewrites_the_best_so_far_and_nothing_that_is_perfect() -> None:
    llm = Rewriter()
    rewriting = marked(llm, candidates=16, waves=2)
    first = [request for request in llm.asked if any(way in request.messages[-1].content for way in WAYS[:2])]
    second = [request for request in llm.asked if any(way in request.messages[-1].content for way in WAYS[2:])]
    assert {shown_in(request) for request in first} == set(splitter().units(STORY))
    assert len(first) == 24
    shown = {shown_in(request) for request in second}
    assert shown - set(splitter().units(STORY))
    alone = marked(candidates=16, waves=1)
    perfect = 12 - len(second) // 2
    assert rewriting.candidates == 16 * 12 - 8 * perfect
    assert rewriting.embedded <= rewriting.candidates + 12  # none twice
    assert min(rewriting.cosines) >= 0.62
    assert rewriting.text != alone.text


@pytest.mark.parametrize("waves", [1, 2, 3, 4])
def test_waves_share_the_rewrites(waves: int) -> None:
    ways = RewriteSettings(candidates=10, waves=waves).waves_of_ways
    assert len(ways) == waves
    assert [share for wave in ways for share in wave] == [(0, 3), (1, 3), (2, 2), (3, 2)]
    assert marked(candidates=1, waves=waves).candidates == 12


def test_same_seed_same_text_however_the_model_is_asked() -> None:
    rewriting = marked(seed=7)
    for callers, together in ((1, 5), (4, 1), (3, 7)):
        assert marked(Rewriter(max_concurrency=callers, preferred_batch=together), seed=7).text == rewriting.text
    assert marked(seed=8).text != rewriting.text
    assert marked(seed=rewriting.seed).text == rewriting.text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda s, _: s, "unchanged"),
        (lambda s, _: f'"{s}"', "unchanged"),
        (lambda s, _: " ", "blank"),
        (lambda s, c: "Sure! " + reworded(s, c), "chatter"),
        (lambda s, c: "Here is the rewritten sentence: " + reworded(s, c), "chatter"),
        (lambda s, c: "Here's a version:\n\n" + reworded(s, c), "chatter"),
        (lambda s, c: "Rewritten: " + reworded(s, c), "chatter"),
        (lambda s, c: reworded(s, c)[:-1] + " (rephrased for clarity).", "chatter"),
        (lambda s, c: "I'm sorry, but I can't help with that.", "refusal"),
        (lambda s, c: "As an AI language model, I have no boat.", "refusal"),
        (lambda s, c: reworded(s, c) + " He never came back to it.", "sentences"),
        (lambda s, c: reworded(s, c)[:-1] + ", was it not?", "mark"),
        (lambda s, c: reworded(s, c).replace(" ", " `", 1), "markup"),
        (lambda s, c: reworded(s, c) + "<|im_end|>", "markup"),
        (lambda s, c: "On and on and on and on and on and on and on and on and on and on and on and on it went.", "degenerate"),
        (lambda s, c: "The boat.", "length"),
        (lambda s, c: reworded(s, c)[:-1] + f" in {c.randrange(2000, 3000)}.", "numbers"),
        (lambda s, c: reworded(s, c)[:-1] + " with Harold Finch.", "names"),
        (lambda s, c: "老水手把船卖给了一位年轻的医生，然后搬进了教堂后面的一间小屋里，并在南墙边种下了豆子。", "language"),
    ],
)  # fmt: skip
def test_what_cannot_stand_for_a_sentence_is_not_taken(answer: Callable[[str, random.Random], str], why: str) -> None:
    rewriting = marked(Rewriter(answer), candidates=4)
    assert rewriting.text == STORY
    assert rewriting.rejected[why] >= 36  # of 48: some sentences have a flaw before it
    assert rewriting.left_alone == tuple(range(1, 13))
    assert {sentence.outcome for sentence in rewriting.rewritten} == {"no rewrite fits"}
    assert set(rewriting.cosines) == {1.0}


def test_an_answer_cut_off_is_not_taken() -> None:
    assert marked(Rewriter(ended="length"), candidates=4).rejected == {"unfinished": 48}


def verdict(answer: str, original: str, *, known: Known | None = None) -> str:
    return judge(Draw(answer, 1, "model"), original, splitter(), known)[1]


def test_numbers_code_and_addresses_are_kept() -> None:
    original = "In 1987 it cost 3.5 million, says https://example.org/boats, and `pip` is free."
    kept = "Says https://example.org/boats: it was 3.5 million in 1987, while `pip` costs nothing."
    assert verdict(kept, original) == ""
    for lost in ("1987", "3.5", "https://example.org/boats", "`pip`"):
        assert verdict(kept.replace(lost, "something"), original) == "numbers"
    assert verdict("In four days the ship had two captains.", "The ship had two captains in four days.") == ""
    assert verdict("In five days the ship had two captains.", "The ship had two captains in four days.") == "numbers"
    assert (
        verdict("The ship had more than one captain in four days.", "The ship had two captains in four days.")
        == "numbers"
    )


def test_names_are_kept_and_not_invented() -> None:
    original = "The boat was sold by Maria Brown to the mayor of Dover."
    known = Known.of([original, "Only then did Peter speak."])
    assert verdict("To the mayor of Dover the boat was sold, by Maria Brown.", original, known=known) == ""
    assert verdict("Maria Brown had the mayor of Dover buy her boat from Peter.", original, known=known) == ""
    assert verdict("A woman sold the boat to the mayor of Dover.", original, known=known) == "names"
    assert verdict("Maria Brown sold it to the mayor of Dover, Sir Edmund.", original, known=known) == "names"
    assert verdict("A woman sold the boat to the mayor of a town.", original) == ""  # where names cannot be told
    assert verdict("He said so.", "Peter said that.", known=known) == "names"
    assert verdict("It was Mr. Hale who said that.", "Peter said so to him.", known=known) == "names"


def test_the_model_is_told_what_must_stay() -> None:
    units = ["In 1987 Queen Anne paid Peter O'Neil 3.5 million for seven ships, he said.", "Peter was glad of `it`."]
    known = Known.of([*units, "Only then did Peter speak."])
    assert fixed_parts(units[0], known) == ["Queen Anne", "Peter O'Neil", "1987", "3.5", "million", "seven"]
    assert fixed_parts(units[1], known) == ["Peter", "`it`"]
    assert fixed_parts(units[1], None) == ["`it`"]
    assert fixed_parts("Nothing is fixed here.", known) == []
    llm = Rewriter()
    marked(llm, candidates=1)
    assert "Use these words in it: 1987." in llm.asked[0].messages[-1].content
    assert "Use these words" not in llm.asked[1].messages[-1].content


def test_what_the_original_does_is_no_flaw() -> None:
    assert verdict("Sure, I rewrote it by hand.", "Sure, I rewrote all of it.") == ""
    assert verdict('"Was it you?" she asked him.', '"Was that you?" she asked.') == ""
    assert verdict("El viejo vendió su barco al médico joven.", "El viejo le vendió su barco a un médico.") == ""


@pytest.mark.parametrize(
    ("answer", "original", "body"),
    [
        ('"The dog ran off."', "A dog ran away.", "The dog ran off."),
        ("the dog ran off", "A dog ran away.", "The dog ran off."),
        ("- The dog ran off.", "A dog ran away", "The dog ran off"),
        ("The dog\nran off.", "A dog ran away.", "The dog ran off."),
        ('"Run," he said, "or stay."', 'He said, "run or stay."', '"Run," he said, "or stay."'),
    ],
)
def test_an_answer_is_begun_and_ended_as_the_original(answer: str, original: str, body: str) -> None:
    assert judge(Draw(answer, 1, "model"), original, splitter(), None) == (body, "")


def test_a_sentence_stays_where_every_rewrite_moves_too_far() -> None:
    def answer(sentence: str, chance: random.Random) -> str:
        # Far away for every second sentence.
        far = "Winter lanterns burn quietly in some forgotten mountain forests, candle by candle."
        return far if len(sentence) % 2 else reworded(sentence, chance)

    rewriting = marked(Rewriter(answer))
    far = [len(row.before) % 2 == 1 for row in rewriting.rewritten]
    assert [row.outcome == "no rewrite fits" for row in rewriting.rewritten] == far
    assert rewriting.rejected["too far"] >= 3  # the others lack a number that their sentence has
    assert min(rewriting.cosines) >= 0.62


def test_a_rewrite_that_would_be_split_otherwise_is_not_taken() -> None:
    text = "The keys were lost by the man in the long coat. Smith found them again behind Dr Young's large red door."
    llm = Rewriter(lambda s, c: s.replace("the man in the long coat", f"the man in {c.choice(WORDS)} coats, Dr"))
    rewriting = marked(llm, text, candidates=16, closeness=-1, mean_closeness=-1)
    assert rewriting.rejected["resplit"] >= 4
    assert rewriting.surviving == 2
    assert rewriting.rewritten[0].outcome == "best as it was"


def test_no_room_for_one_sentence() -> None:
    def fails(sentence: str) -> Exception | None:
        return ContextFull("too long") if "Maria" in sentence else None

    for together in (1, 9):
        rewriting = marked(Rewriter(fails=fails, preferred_batch=together))
        assert rewriting.rejected["context full"] == 16
        assert rewriting.left_alone == (5,)
        assert sum(row.outcome == "rewritten" for row in rewriting.rewritten) >= 8


def test_a_model_that_fails_is_said_to() -> None:
    broken = Rewriter(
        fails=lambda sentence: LLMError("the server is gone") if "Maria" in sentence else None, max_concurrency=2
    )
    with pytest.raises(LLMError, match="server is gone"):
        marked(broken)
    sound = STORY.replace("Maria", "Anna")
    texts = [Original(sound, 1), Original(STORY, 1), Original("", 1), Original("# Only a heading\n", 1)]
    answers = dict(rewrite_many(texts, KEY, EMBEDDER, broken))
    assert isinstance(answers[0], Rewriting)
    assert isinstance(answers[1], LLMError)
    assert isinstance(answers[2], TextError)
    assert isinstance(answers[3], Rewriting)
    assert answers[3].text == "# Only a heading\n"
    assert answers[0].text == marked(text=sound).text

    class Short(Rewriter):
        def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
            return [draws[1:] for draws in super().draw(requests, sampling, over)]

    with pytest.raises(LLMError, match="gave 3 answers where 4"):
        marked(Short())


def test_many_texts_share_calls_and_no_more_are_read_than_keep_the_model_busy() -> None:
    llm = Rewriter(preferred_batch=1)
    parts = [" ".join(splitter().sentences(STORY)[:n]) for n in (1, 2, 5)]
    read = 0

    def originals() -> Any:
        nonlocal read
        for part in parts:
            read += 1
            yield Original(part, 3)

    finished = rewrite_many(originals(), KEY, EMBEDDER, llm)
    first, rewriting = next(finished)
    assert (first, read) == (0, 2)  # four calls: 2 requests for the first text, and 4 for the second
    assert isinstance(rewriting, Rewriting)
    rest = dict(finished)
    assert set(rest) == {1, 2}
    assert [rewriting.text, *(rest[i].text for i in (1, 2))] == [marked(text=part, seed=3).text for part in parts]  # type: ignore[union-attr]


def test_through_the_watermark() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    single = mark.rewrite(STORY, Rewriter(), seed=4, candidates=8)
    assert single.text == marked(seed=4, candidates=8).text
    two = mark.rewrite([STORY, PAGE], Rewriter(), seed=4, candidates=8)
    assert [rewriting.seed for rewriting in two] == [4, 5]
    assert two[0].text == single.text
    with pytest.raises(AlimarkError, match="unknown rewriting option closenes"):
        mark.rewrite(STORY, Rewriter(), closenes=0.5)  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [{"candidates": 0}, {"closeness": 1.5}, {"mean_closeness": -2}])
def test_wrong_settings(options: dict[str, Any]) -> None:
    with pytest.raises(AlimarkError, match=r"candidates|closeness"):
        RewriteSettings(**options)


def test_progress_counts_sentences() -> None:
    seen: list[tuple[int, int]] = []
    rewrite(PAGE, KEY, EMBEDDER, Rewriter(), seed=1, progress=lambda _, done, total: seen.append((done, total)))
    # Two stay, and are done at the start; what is perfect at once takes fewer answers.
    assert seen[0] == (3, 8)
    assert seen[-1] == (8, 8)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("answer", "original", "flaw"),
    [
        ("We will return the shipping fee, 12.50 euros.", "We will refund the shipping fee of 12.50 euros.", ""),
        ("We will pay back €12.50 for the shipping.", "We will refund the shipping fee of 12.50 euros.", ""),
        ("We will pay you back, excluding the 12.50 euros.", "We will refund the fee of 12.50 euros.", "negation"),
        ("We will refund the fee of 12.50 dollars to you.", "We will refund the fee of 12.50 euros.", "numbers"),
        ("The train leaves at 9 pm on that day.", "The train leaves at 9 am on that day.", "numbers"),
        ("It is not possible to change the order.", "The order cannot be changed any more.", ""),
        ("Customers are unable to change it now.", "The order cannot be changed any more.", ""),
        ("Customers can still change the order.", "The order cannot be changed any more.", "negation"),
        ("It doesn't matter who pays for it.", "It matters a lot who pays for it.", "negation"),
        ("He did not only sing, he also danced.", "He sang, and he danced as well.", ""),
        ("You took the photographs and found a crack.", "He saw the photographs that you took.", "persons"),
        ("I am glad of the letter that I received.", "Thank you for the letter that we received.", "persons"),
        ("The fee will be refunded within the week.", "We will refund your fee within the week.", ""),
    ],
)
def test_figures_with_their_units_and_negations_survive(answer: str, original: str, flaw: str) -> None:
    assert verdict(answer, original, known=Known.of([original])) == flaw


def test_negations_of_other_languages_survive() -> None:
    original = "Wir werden den Vertrag in diesem Jahr nicht verlängern."
    assert verdict("Den Vertrag verlängern wir in diesem Jahr nicht.", original) == ""
    assert verdict("Den Vertrag verlängern wir in diesem Jahr gern.", original) == "negation"


def test_a_first_word_is_a_name_where_a_rewrite_shows_it() -> None:
    text = "Peter sold the old green boat to a young doctor. Nobody in the village had expected it of him."

    def answer(sentence: str, chance: random.Random) -> str:
        if not sentence.startswith("Peter"):
            return sentence
        rest = sentence.removeprefix("Peter sold ").rstrip(".")
        seller = chance.choice(["a sailor", "a painter", "some man", "Peter"])
        return f"In the {chance.choice(WORDS)} {rest} was sold by {seller}."

    rewriting = marked(Rewriter(answer), text, candidates=32, closeness=-1, mean_closeness=-1)
    assert "Peter" in rewriting.sentences[0]
    assert rewriting.rejected["names"] >= 8
    assert Known.of([]).names_of("Maria Brown sold it.") == {"Maria", "Brown"}
    assert Known.of([]).names_of("The Dover mayor sold it.") == {"Dover"}


LETTER = """Dear Ms Keller,

thank you for your letter of 3 May, in which you asked us
about the chair that arrived with a broken leg. We have sent a
new chair to your address in Leeds, and it should be with
you within 4 days.

> You do not have to send the old one back to us, because
> its repair would cost more than a new chair.

Yours sincerely,
Anna Smith
Head of Service
"""


def test_line_breaks_inside_a_sentence_stay() -> None:
    rewriting = marked(text=LETTER, candidates=32, closeness=0.3, mean_closeness=0.3)
    outcomes = [sentence.outcome for sentence in rewriting.rewritten]
    assert outcomes == ["heading", "rewritten", "rewritten", "rewritten", "heading"]
    assert rewriting.text.count("\n") == LETTER.count("\n")
    before, after = LETTER.splitlines(), rewriting.text.splitlines()
    assert [line[:1] == ">" for line in after] == [line[:1] == ">" for line in before]
    assert [not line for line in after] == [not line for line in before]
    assert max(map(len, after)) < 80
    assert after[-3:] == before[-3:]
    assert (after[0], rewriting.surviving) == (before[0], 5)


def test_few_words_and_list_signs_get_no_line_break() -> None:
    for answer, original, body in (
        ("One.", "Only\none.", "One."),
        ("He had all - oddly - of them.", "He had\nevery part of it.", "He had\nall - oddly - of them."),
        ("He had - oddly - all of them.", "He had\nevery part of it.", "He had -\noddly - all of them."),
        ("a b c d", "a\n  b\nc e", "A\n  b\nc d"),
    ):
        assert judge(Draw(answer, 1, "model"), original.capitalize(), splitter(), None)[0].lower() == body.lower()


def test_a_rewritten_text_carries_a_payload() -> None:
    mark = AliMark(Key.generate(embedder=EMBEDDER, payload_bits=4, secret=bytes(range(32))), embedder=EMBEDDER)
    rewriting = mark.rewrite(STORY, Rewriter(), seed=1, candidates=64, closeness=0.1, mean_closeness=0.1, payload=11)
    detection = mark.detect(rewriting.text)
    assert detection.p_value <= 0.01
    assert detection.payload is not None
    assert detection.payload.value == 11
    assert rewriting.record("x")["payload"] == rewriting.payload == 11
