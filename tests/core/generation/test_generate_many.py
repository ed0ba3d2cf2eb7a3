"""Many prompts at once: the same texts for any batch size, in order, failures kept to their texts, and async calls."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from alimark import AliMark, Generation, Key, Sampling
from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import clean
from alimark.core.generation.api import GenerationSettings, Prompt, Scheduler, Session, generate_many
from alimark.core.llm.base import LLM, Draw, Request, StopCondition
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError, LLMError
from alimark.testing import StandInEmbedder, StandInLLM
from fixed_texts import generate
from watched import Told, watched

EMBEDDER = StandInEmbedder()
KEY = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(range(32)))
SETTINGS = GenerationSettings(sentences=5, candidates=24)
PROMPTS = [Prompt(f"Day {i} began in the harbour.", seed=100 + i) for i in range(9)]


def texts(llm: LLM, batch: int | None, prompts: Sequence[Prompt] = PROMPTS) -> dict[int, str]:
    answers = dict(generate_many(prompts, KEY, EMBEDDER, llm, SETTINGS, rule=rule_for, batch=batch))
    return {i: answer.text for i, answer in answers.items() if isinstance(answer, Generation)}


@pytest.mark.parametrize(("callers", "together"), [(1, 4), (2, 2), (4, 1)])
def test_the_batch_changes_no_text(callers: int, together: int) -> None:
    alone = {
        i: generate(prompt.text, KEY, EMBEDDER, StandInLLM(), SETTINGS, seed=prompt.seed).text
        for i, prompt in enumerate(PROMPTS)
    }
    for batch in (1, 2, 5, 9, 40, None):
        assert texts(StandInLLM(max_concurrency=callers, preferred_batch=together), batch) == alone


def test_a_list_of_prompts_comes_back_in_order() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)
    prompts = [prompt.text for prompt in PROMPTS]
    generations = mark.generate(prompts, StandInLLM(max_concurrency=3), sentences=3, candidates=8, seed=5, batch=4)
    assert [generation.prompt for generation in generations] == prompts
    assert [generation.seed for generation in generations] == [5 + i for i in range(9)]


class Counting(StandInLLM):
    """Notes how many requests each call holds, and that no more calls run at a time than were offered."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.sizes: list[int] = []
        self.running = self.most = 0
        self._lock = threading.Lock()

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        with self._lock:
            self.sizes.append(len(requests))
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.005)
        draws = super().draw(requests, sampling, over)
        with self._lock:
            self.running -= 1
        return draws


def test_live_texts_share_a_call_and_new_ones_take_the_place_of_the_finished() -> None:
    llm = Counting(preferred_batch=4)
    texts(llm, 4)
    assert max(llm.sizes) == 4
    assert sum(size == 4 for size in llm.sizes) > len(llm.sizes) / 2
    callers = Counting(max_concurrency=3, preferred_batch=2)
    texts(callers, None)
    assert 1 < callers.most <= 3
    assert max(callers.sizes) <= 2


def test_each_candidate_is_embedded_once_and_the_cost_is_told() -> None:
    asked: list[str] = []
    embedder, llm = watched(StandInEmbedder(), asked.extend, "embed"), StandInLLM(repeats=0.3)
    settings = GenerationSettings(5, 64, wave=8)
    [(_, generation)] = generate_many(PROMPTS[:1], KEY, embedder, llm, settings, rule=rule_for)
    assert isinstance(generation, Generation)
    assert len(asked) == len(set(asked)) == generation.embedded < generation.candidates
    cost = generation.record("x")["cost"]
    assert cost["waves"] == llm.calls
    assert cost["tokens"] == generation.tokens > generation.candidates
    assert cost["elapsed"] >= cost["seconds"] > 0


def choke(requests: Sequence[Request]) -> None:
    if any("Day 3" in request.context for request in requests):
        raise LLMError("the model choked")


@pytest.mark.parametrize(("callers", "batch"), [(3, 3), (1, 2), (1, 9)])
def test_an_error_ends_its_own_text_alone(callers: int, batch: int) -> None:
    llm = watched(StandInLLM(max_concurrency=callers), choke)
    answers = dict(generate_many(PROMPTS, KEY, EMBEDDER, llm, SETTINGS, rule=rule_for, batch=batch))
    assert len(answers) == 9
    assert [i for i, answer in answers.items() if isinstance(answer, AlimarkError)] == [3]


def test_a_dead_engine_is_not_asked_for_every_text() -> None:
    calls: list[int] = []

    def die(requests: Sequence[Request]) -> None:
        calls.append(len(requests))
        raise LLMError("the model is gone")

    llm = watched(StandInLLM(), die)
    answers = dict(generate_many(PROMPTS, KEY, EMBEDDER, llm, SETTINGS, rule=rule_for, batch=9))
    assert all(isinstance(answer, LLMError) for answer in answers.values())
    assert calls == [9, 1, 1, 1]  # once for all, and for three texts by themselves


def test_a_full_context_ends_its_own_text_alone() -> None:
    long = [Prompt("word " * 100, 1), *PROMPTS[:3]]
    llm = StandInLLM(context_characters=600)
    answers = dict(generate_many(long, KEY, EMBEDDER, llm, SETTINGS, rule=rule_for, batch=4))
    ended = {i: answer.ended for i, answer in answers.items() if isinstance(answer, Generation)}
    assert ended[0] == "context full"
    assert all(ended[i] == "complete" for i in (1, 2, 3))


def test_texts_of_several_keys_may_be_written_together() -> None:
    other = Key.generate(secret=bytes(range(1, 33)), embedder=EMBEDDER, decision="hard", block_size=4)
    prompts = [PROMPTS[0], Prompt(PROMPTS[0].text, PROMPTS[0].seed, key=other)]
    answers = dict(generate_many(prompts, KEY, EMBEDDER, StandInLLM(), SETTINGS, rule=rule_for, batch=2))
    key_ids = [answer.key_id for _, answer in sorted(answers.items()) if isinstance(answer, Generation)]
    assert key_ids == [KEY.id, other.id]


def test_unmarked_text_takes_the_first_good_draw_and_needs_no_key() -> None:
    llm = StandInLLM(blanks=0.3)
    generation = generate("It began.", None, None, llm, SETTINGS, seed=4)
    assert len(generation.sentences) == 5
    assert not generation.marked
    assert generation.candidates < 20
    record = generation.record("x")
    assert record["scheme"] == "unmarked"
    assert "key_id" not in record
    draws = StandInLLM(blanks=0.3)
    first = Session("It began.", None, SETTINGS, seed=4).request(StandInLLM())
    [drawn] = draws.draw([Request(first.context, 24, first.seed)], Sampling(), splitter().first_sentence_over)
    good = next(draw.text for draw in drawn if draw.text.strip())
    assert generation.sentences[0] == splitter().units(good)[0] == clean(splitter().sentences(good)[0])


def test_chat_style_asks_for_an_answer_and_goes_on_with_it() -> None:
    seen: list[Request] = []
    llm = watched(StandInLLM(), seen.extend)
    generation = generate("Why?", KEY, EMBEDDER, llm, GenerationSettings(3, 8, prompt_style="chat"), seed=1)
    assert {turn.content for request in seen for turn in request.messages} == {"Why?"}
    assert seen[0].context == ""
    assert seen[-1].context
    assert generation.text.startswith(seen[-1].context)
    assert generation.record("x")["settings"]["prompt_style"] == "chat"
    with pytest.raises(AlimarkError, match="prompt style"):
        GenerationSettings(prompt_style="shout")  # type: ignore[arg-type]


def test_awaited_texts_are_written_together() -> None:
    mark, llm = AliMark(KEY, embedder=EMBEDDER), Counting(preferred_batch=4)

    async def serve() -> list[Generation]:
        jobs = [mark.agenerate(p.text, llm, sentences=5, candidates=24, seed=p.seed) for p in PROMPTS[:6]]
        return await asyncio.gather(*jobs)

    generations = asyncio.run(serve())
    expected = texts(StandInLLM(), 1)
    assert [generation.text for generation in generations] == [expected[i] for i in range(6)]
    assert max(llm.sizes) > 1


def test_an_awaited_text_can_be_given_up_and_an_error_comes_through() -> None:
    mark = AliMark(KEY, embedder=EMBEDDER)

    async def give_up() -> None:
        await asyncio.wait_for(mark.agenerate("Day 1.", Counting(), sentences=2000, candidates=64), 0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    with pytest.raises(LLMError, match="choked"):
        asyncio.run(mark.agenerate("Day 3.", watched(StandInLLM(), choke), sentences=2, candidates=2))


def test_a_closed_scheduler_takes_nothing_and_leaves_nobody_waiting() -> None:
    scheduler = Scheduler(Counting(), EMBEDDER, batch=1)
    futures = [scheduler.submit(Session("Day.", KEY, GenerationSettings(1000, 64), rule=rule_for)) for _ in range(3)]
    scheduler.close()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(AlimarkError, match="closed"):
        scheduler.submit(Session("Day.", KEY, SETTINGS, rule=rule_for))


def test_texts_that_wait_get_a_sentence_in_turn() -> None:
    order: list[int] = []

    def session(number: int) -> Session:
        return Session("It rained.", None, GenerationSettings(3), seed=number, progress=lambda _: order.append(number))

    go = threading.Event()
    with Scheduler(watched(StandInLLM(), lambda _: go.wait(10)), None, batch=1) as scheduler:
        futures = [scheduler.submit(session(number)) for number in range(3)]
        go.set()
        texts = [future.result(10).text for future in futures]
    assert order == [0, 1, 2] * 3
    alone = [generate("It rained.", None, None, StandInLLM(), GenerationSettings(3), seed=i) for i in range(3)]
    assert texts == [text.text for text in alone]


BLOCK = "```python\nfor i in range(3):\n    print(i. real)\n\n# Done. Next.\n```\n"


def coder(request: Request, number: int) -> Draw:
    """A sentence, then a code block longer than a draw, then sentences."""
    context = request.context
    if "Here" not in context:
        return Draw(" Here is the code:\n\n", 5, "sentence")
    code = context[context.index("```") :] if "```" in context else ""
    if len(code) < len(BLOCK.rstrip()):
        part = BLOCK[len(code) : len(code) + 30]
        return Draw(part if code else "\n\n" + part, 9, "length" if len(code) + 30 < len(BLOCK) else "sentence")
    return Draw(f" It prints {number} numbers {len(context)} times. ", 7, "sentence")


def test_code_blocks_pass_unmarked_and_are_no_sentences() -> None:
    pieces: list[str] = []
    generation = generate(
        "Show me.", KEY, EMBEDDER, Told(coder), GenerationSettings(4, 8), seed=1,
        progress=lambda _, sentence: pieces.append(sentence.piece),
    )  # fmt: skip
    assert generation.ended == "complete"
    assert "".join(pieces) == generation.text
    assert "```" in pieces[1]
    assert generation.text.startswith("Here is the code:\n\n```python\n")
    assert BLOCK.strip() in generation.text
    assert len(generation.sentences) == len(generation.matches) == 4
    assert not any("print(" in sentence for sentence in generation.sentences)
    assert splitter().units(generation.text) == list(generation.sentences)
    assert generation.surviving == 4


def test_a_single_prompt_is_written_in_the_calling_thread() -> None:
    """So an interruption reaches the model at once, whatever number of callers it takes."""
    threads: set[str] = set()
    llm = watched(StandInLLM(max_concurrency=4), lambda _: threads.add(threading.current_thread().name))
    mark = AliMark(KEY, embedder=EMBEDDER)
    single = mark.generate(PROMPTS[0].text, llm, sentences=5, candidates=24, seed=PROMPTS[0].seed)
    assert threads == {threading.current_thread().name}
    assert single.text == texts(StandInLLM(max_concurrency=4), None)[0]
    with pytest.raises(KeyboardInterrupt):
        mark.generate("Day 1.", StandInLLM(max_concurrency=4, interrupt_at=2), sentences=5, candidates=24)


def test_a_key_needs_a_rule_and_its_embedder() -> None:
    with pytest.raises(AlimarkError, match="selection rule"):
        list(generate_many(PROMPTS, KEY, EMBEDDER, StandInLLM(), SETTINGS))
    other = Key.generate(embedder=StandInEmbedder(32), decision="hard")
    for callers in (1, 3):
        with pytest.raises(AlimarkError, match="embedder"):
            list(generate_many([Prompt("Day.", key=other)], KEY, EMBEDDER, StandInLLM(max_concurrency=callers), SETTINGS,
                               rule=rule_for))  # fmt: skip
