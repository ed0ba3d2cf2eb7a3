"""Texts that are asked for in pieces: under a key that follows conversations the pieces are one sequence."""

from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import Ending, GenerationSettings, Session
from alimark.core.generation.scheduler import step
from alimark.core.generation.selection import TextOrigin
from alimark.core.keys.projection import project, targets
from alimark.core.llm.base import Message
from alimark.core.schemes.registry import rule_for
from alimark.testing import StandInLLM
from fixed_texts import EMBEDDER

CUTTER = splitter()


def key_of(number: int = 0, **parameters: Any) -> Key:
    secret = bytes([number, *range(1, 32)])
    return Key.generate(embedder=EMBEDDER, secret=secret, **{"starts": "conversation", **parameters})


def origin(prompt: str, *turns: Message) -> TextOrigin:
    return TextOrigin("id", prompt, turns, CUTTER)


def test_the_origin_of_a_continued_text_is_its_first_sentence() -> None:
    assert (origin("").first_message, origin("").written) == ("", 0)
    first = origin("It was late. Nobody slept.")
    longer = origin("It was late. Nobody slept. The lamp burned. A dog barked and then")
    assert first.first_message == longer.first_message == "It was late."
    assert (first.written, longer.written) == (2, 3)


def test_the_origin_of_an_answer_is_the_chat_up_to_its_first_question() -> None:
    system, question = Message("system", "Be brief."), Message("user", "Why? Tell me.")
    answers = [Message("assistant", "It rained. Then it"), Message("user", "Go on."), Message("assistant", "stopped.")]
    assert origin("Why?", system, question).first_message == "Be brief.\nWhy? Tell me."
    assert [origin("", system, question, *answers[:n]).written for n in range(4)] == [0, 1, 1, 2]
    assert origin("", system, question, *answers).first_message == "Be brief.\nWhy? Tell me."
    assert origin("", Message("assistant", "Hello.")).first_message == "Hello."


def written(key: Key, prompt: str, sentences: int, *turns: Message, tokens: int | None = None, seed: int = 1) -> str:
    style = "chat" if turns else "continue"
    settings = GenerationSettings(sentences, 24, prompt_style=style)  # type: ignore[arg-type]
    ending = Ending((), tokens, lambda text: len(text.split()))
    session = Session(prompt, key, settings, rule=rule_for, seed=seed, turns=turns, ending=ending)
    while not session.ended:
        step(StandInLLM(), EMBEDDER, [session])
    return session.generation(StandInLLM()).text


def continued(key: Key, sentences: int, pieces: int, tokens: int | None = None) -> str:
    """Continues a text piece by piece."""
    prompt = text = "The house stood empty."
    for piece in range(pieces):
        text += " " + written(key, text, sentences, tokens=tokens, seed=piece)
    return text.removeprefix(prompt).strip()


def chatted(key: Key, sentences: int, pieces: int) -> str:
    """Asks for an answer and then several times for more of it."""
    turns = [Message("user", "Tell me about the house.")]
    for piece in range(pieces):
        answer = written(key, turns[-1].content, sentences, *turns, seed=piece)
        turns += [Message("assistant", answer), Message("user", "Go on.")]
    return " ".join(turn.content for turn in turns if turn.role == "assistant")


def along_blocks(key: Key, text: str, start: int) -> float:
    """The mean projection of the sentences on the blocks from `start` on."""
    units = CUTTER.units(text)
    return float((project(EMBEDDER.embed(units), key) * targets(key, len(units), start)).sum(axis=1).mean())


def test_pieces_of_a_continued_text_are_one_sequence() -> None:
    key = key_of()
    text, whole = continued(key, 1, 12), continued(key, 12, 1)
    start = key.start("The house stood empty.", 1)
    shifted = [along_blocks(key, text, place) for place in range(16)]
    assert int(np.argmax(shifted)) == start
    assert shifted[start] == pytest.approx(along_blocks(key, whole, start), rel=0.3)
    mark = AliMark(key, embedder=EMBEDDER)
    assert [mark.detect(each).verdict() for each in (text, whole)] == ["found", "found"]


def test_pieces_of_an_answer_and_pieces_of_some_tokens_are_found() -> None:
    key = key_of(1)
    mark = AliMark(key, embedder=EMBEDDER)
    assert mark.detect(chatted(key, 2, 6)).verdict() == "found"
    assert mark.detect(continued(key, 12, 8, tokens=20)).verdict() == "found"


def test_unrelated_prompts_get_unrelated_starts() -> None:
    key = key_of(2)
    starts = [key.start(origin(f"Chapter {n} is about {n} dogs.").first_message) for n in range(40)]
    assert {starts.count(start) for start in (0, 6, 12, 18)} <= set(range(3, 20))
