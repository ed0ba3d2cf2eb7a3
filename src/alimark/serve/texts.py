"""The texts of one request of the OpenAI protocol while they are written, in any of its formats."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from alimark.core._util.json_types import JsonObject
from alimark.core._util.work import TimedFuture
from alimark.core.frozen.text.units import with_full_stop
from alimark.core.generation.api import Ending, Generation, GenerationSettings, MarkedSentence, Session
from alimark.core.generation.settings import DEFAULT_CANDIDATES, PromptStyle, candidates_and_steering
from alimark.core.generation.steering import steerable
from alimark.core.keys.key import Key
from alimark.core.llm.base import CountsTokens, HasContext, Message, Request, Sampling, count_tokens
from alimark.core.schemes.registry import rule_for
from alimark.core.text.continuations import word_list
from alimark.errors import AlimarkError, TextError
from alimark.serve.auth import Token, sha256
from alimark.serve.errors import ApiError, to_api_error
from alimark.serve.openai_schemas import Mark, ToWrite
from alimark.serve.records import Record, of_text
from alimark.serve.service import Service

FINISH = {
    "complete": "length", "context full": "length", "token limit": "length", "time limit": "length",
    "model ended": "stop", "model repeats itself": "stop", "stop sequence": "stop",
}  # fmt: skip
"""The `finish_reason` of a text, by why it ended."""
SHORT_FPR = 0.01
"""A text is called too short where its mark would not be found at this false-positive rate nine times in ten."""
_SEEDS = 2**48
_SHARE_OF_TIME = 0.9
"""The share of the time limit after which a text ends with its sentence, so that its client gets what is written."""
_LEAST_FIRST = 16
"""Candidates that the first sentence of a stream gets at least, as many as a light mark has."""


@dataclass(frozen=True)
class WrittenPiece:
    """A part of a text to send; the last one comes with the finished text and the field `alimark`."""

    place: int
    text: str
    mark: JsonObject
    generation: Generation | None = None


@dataclass
class _Text:
    """One text while it is written. The thread that writes it calls `progress`."""

    session: Session
    matches: list[int] = field(default_factory=list)
    """How well each sentence so far fits the key."""
    sent: str = ""
    """What the client has of it."""
    recorded: bool = False

    def unsent(self, text: str) -> str:
        """Returns the part of the text so far that was not sent yet, and counts it as sent."""
        piece, self.sent = text[len(self.sent) :], text
        return piece


class Texts:
    """The texts of one request while they are written."""

    def __init__(self, body: ToWrite, service: Service, token: Token) -> None:
        self.body, self.service, self.token = body, service, token
        self.prompts = body.prompts
        for prompt, turns in self.prompts:
            service.check_text(prompt, "last message" if turns else "prompt")
            service.check_text("\n".join(turn.content for turn in turns) or prompt, "conversation")
        count, most = len(self.prompts) * body.count, service.settings.max_texts
        if count > most:
            message = f"The request asks for {count} texts, but the limit is {most}. Send several requests."
            raise ApiError(413, "too_many_texts", message)
        self.key: Key = service.marking_key(token, body.payload)
        self.id = body.prefix + secrets.token_hex(12)
        self.created = int(time.time())
        self._note: str | None = None
        self._same_again = False
        self._started = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, str, int]] = asyncio.Queue()
        """The place of a text with what may be sent of it and the matches of its last sentence; no text where it is done."""
        self._futures: list[TimedFuture[Generation]] = []
        self._settings = self._make_settings()
        first = self._first_seed()
        self._texts = [self._text(place, first + place) for place in range(count)]

    def _text(self, place: int, seed: int) -> _Text:
        prompt, turns = self.prompts[place // self.body.count]
        ending = self._ending(prompt, turns)

        def progress(sentence: MarkedSentence) -> None:
            # White space at the end is sent with the next sentence, because the finished text does not end with it. Code
            # between sentences is part of the text. What may begin a stop sequence waits, too.
            so_far = ending.sendable(str(text.session.text).rstrip())
            if sentence.number == 1:
                self.service.metrics.first_sentence.observe(time.perf_counter() - self._started)
            text.matches.append(sentence.matches)
            self._notify(place, so_far, sentence.matches)

        text = _Text(
            Session(
                prompt, self.key, self._settings, rule=rule_for, seed=seed, turns=turns, ending=ending,
                owner=self.token.id, progress=progress,
            )
        )  # fmt: skip
        return text

    def _make_settings(self) -> GenerationSettings:
        body, limits = self.body, self.service.settings
        if body.sentences and body.sentences > limits.max_sentences:
            message = f"A text may have at most {limits.max_sentences} sentences. Ask for fewer."
            raise ApiError(413, "too_long", message, param="sentences")
        # An answer ends where the model ends it, and a text with a number of tokens where it has them.
        bounded = self.body.chat or body.most_tokens is not None
        sentences = body.sentences or (limits.max_sentences if bounded else min(limits.sentences, limits.max_sentences))
        # A completion with a number of sentences is written on until it has them.
        sampling = self._sampling(may_end=body.chat or not body.sentences)
        style: PromptStyle = "chat" if self.body.chat else "continue"
        candidates, steering = candidates_and_steering(
            limits.strength, limits.candidates, limits.steering, DEFAULT_CANDIDATES,
            steerable=self.key.soft and steerable(self.service.llm, self.key),
        )  # fmt: skip
        # Whoever asks the first question of a chat waits for the first sentence of the answer. Later questions get all
        # candidates, so that a client who asks for one sentence at a time gets no weaker mark. Whether the answer is streamed
        # makes no difference, so that the same seed gives the same text both ways.
        is_first = self.body.chat and all(turn.role != "assistant" for _, turns in self.prompts for turn in turns)
        first = max(_LEAST_FIRST, candidates // 4) if is_first and candidates > _LEAST_FIRST else None
        return GenerationSettings(
            sentences, candidates, sampling, prompt_style=style, first_candidates=first, steering=steering
        )

    def _sampling(self, *, may_end: bool) -> Sampling:
        """How the texts are sampled; `note` says where that is not as the request asks."""
        body, limits = self.body, self.service.settings
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        given = {name: value for name in names if (value := getattr(body, name)) is not None}
        low = [name for name in ("temperature", "top_p") if given.get(name, 1) < getattr(limits, f"least_{name}")]
        if low:
            self._same_again = True
            self._note = (
                f"With this {low[0]} all candidates would be alike, so the text was sampled with a temperature of "
                f"{limits.marking_temperature:g}, with a seed that follows from key and request."
            )
            given = {name: value for name, value in given.items() if name != "top_p"}
            given["temperature"] = limits.marking_temperature
        penalty = limits.repetition_penalty or (1.0 if body.chat else Sampling().repetition_penalty)
        given = {"repetition_penalty": penalty} | given | {"top_k": max(0, given.get("top_k", 0))}
        return Sampling(**given, may_end=may_end)

    def _first_seed(self) -> int:
        """The seed of the first text: that of the request, or one that is the same for the same request, or any."""
        if self.body.seed is not None:
            return self.body.seed % _SEEDS
        if not self._same_again:
            return secrets.randbits(47)
        asked = repr((self.key.id, self.prompts, self.body.most_tokens, self.body.stops))
        return int(sha256(asked)[:12], 16) % 2**47

    def _ending(self, prompt: str, turns: tuple[Message, ...]) -> Ending:
        """Returns where a text has to end; its tokens are counted as in `usage`."""
        llm = self.service.llm

        def tokens(text: str) -> int:
            gap = "" if turns or not prompt or prompt[-1].isspace() or not text else " "
            context = text if turns else prompt + gap + text
            return count_tokens(llm, Request(context.rstrip(" \t"), 1, 0, messages=turns))

        @cache  # the tokens of the prompt are counted once, by the thread that writes the text
        def of_prompt() -> int:
            return tokens("")

        until = time.monotonic() + _SHARE_OF_TIME * self.service.settings.timeout
        return Ending(self.body.stops, self.body.most_tokens, lambda text: tokens(text) - of_prompt(), until)

    def _notify(self, place: int, text: str, matches: int) -> None:
        with suppress(RuntimeError):  # the event loop was closed, because the server has stopped
            self._loop.call_soon_threadsafe(self._events.put_nowait, (place, text, matches))

    @property
    def sampling(self) -> Sampling:
        """How the texts are sampled."""
        return self._settings.sampling

    async def start(self) -> None:
        """Submits the texts to the queue of the writers."""

        def work() -> list[TimedFuture[Generation]]:  # the embedder may have to be loaded
            self._check_length()
            return self.service.writers.write([text.session for text in self._texts])

        self._futures = await asyncio.to_thread(work)
        for place, future in enumerate(self._futures):
            future.add_done_callback(lambda _, place=place: self._notify(place, "", 0))  # type: ignore[misc]

    def _check_length(self) -> None:
        """Raises an ApiError where a prompt leaves no room in the model's context, or the time will not suffice."""
        llm, free, settings = self.service.llm, self.sampling.max_tokens, self.service.settings
        if isinstance(llm, HasContext) and isinstance(llm, CountsTokens):
            for prompt, turns in self.prompts:
                tokens = llm.count_tokens(Request("" if turns else prompt, 1, 0, messages=turns))
                if tokens + free > llm.context_tokens:
                    raise ApiError(
                        400, "context_length_exceeded",
                        f"This model's context has {llm.context_tokens} tokens, of which {free} must be free for a sentence, "
                        f"and the prompt has {tokens}. Shorten it.", param="messages" if turns else "prompt",
                    )  # fmt: skip
        pace, count, sentences = self.service.pace.seconds, len(self._texts), self._settings.sentences
        beside = min(count, llm.max_concurrency)
        if not (self.body.chat or self.body.most_tokens) and count * sentences * pace / beside > settings.timeout:
            most = max(1, int(settings.timeout * beside / (count * pace)))
            raise ApiError(
                413, "too_long",
                f"{count * sentences} sentences would take about {count * sentences * pace / beside:.0f} s here, and a request "
                f"may take {settings.timeout:g} s. Ask for at most {most} sentences, or for max_tokens.", param="sentences",
            )  # fmt: skip

    async def finished(self) -> tuple[list[Generation], JsonObject]:
        """Waits for all texts; returns them with the field `alimark` after their records are committed."""
        generations = await self.service.all_results(self._futures)
        for generation in generations:
            _check_written(generation)
        return generations, await self._saved(generations)

    async def pieces(self) -> AsyncIterator[WrittenPiece]:
        """Yields each sentence as soon as it is chosen. The last piece of a text comes after its record is committed."""
        until = self._loop.time() + self.service.settings.timeout
        while not all(text.recorded for text in self._texts):
            place, so_far, matches = await asyncio.wait_for(self._events.get(), until - self._loop.time())
            text = self._texts[place]
            if so_far:
                sentence = {"matches": matches, "block_size": self.key.block_size}
                if piece := text.unsent(so_far):
                    yield WrittenPiece(place, piece, {"key_id": self.key.id, "sentence": sentence})
            elif self._futures[place].done():
                generation = self._futures[place].result()
                _check_written(generation)
                mark = await self._saved([generation])
                text.recorded = True
                yield WrittenPiece(place, text.unsent(generation.text), mark, generation)

    def failure(self, error: AlimarkError | ApiError | TimeoutError) -> JsonObject:
        """Returns the error of a stream that breaks off."""
        return (self.service.timed_out(self._futures) if isinstance(error, TimeoutError) else to_api_error(error)).error

    def close(self) -> None:
        """Stops what is still written, and saves records of texts that were sent in part, because they are marked too."""
        for future in self._futures:
            future.cancel()
        records = [
            self._record(text.sent, text.matches, "broken off")
            for text in self._texts
            if text.sent and not text.recorded
        ]
        with suppress(AlimarkError):  # the database is closed; the client has got an error already
            if records:
                self.service.store.submit(self.service.records.writing(records))

    def usage(self) -> tuple[int, int]:
        """Returns the tokens of the prompts and of the texts, by the model's tokenizer."""
        llm, read, written = self.service.llm, 0, 0
        for place, text in enumerate(self._texts):
            prompt, turns = self.prompts[place // self.body.count]
            if place % self.body.count == 0:
                of_prompt = count_tokens(llm, Request("" if turns else prompt, 1, 0, messages=turns))
                read += of_prompt
            written += max(0, count_tokens(llm, Request(text.session.context, 1, 0, messages=turns)) - of_prompt)
        return read, written

    async def _saved(self, generations: Sequence[Generation]) -> JsonObject:
        """Saves the records of finished texts; returns the field `alimark`."""
        metrics = self.service.metrics
        for generation in generations:
            metrics.written.labels("generate").inc()
            metrics.ended.labels(generation.ended).inc()
            metrics.sampled.inc(generation.tokens)
            self.service.pace.note(self.key, generation)
        detected = await self.service.detect_own(self.key, [text.text for text in generations], self.token.id)
        p_values = [
            1.0 if isinstance(detection, TextError) else getattr(detection, "p_value", None) for detection in detected
        ]
        records = [
            self._record(text.text, text.matches, text.ended, p_value)
            for text, p_value in zip(generations, p_values, strict=True)
        ]
        await self.service.save(records)
        found = [None if p_value is None else p_value <= SHORT_FPR for p_value in p_values]
        needed = await asyncio.to_thread(self.service.pace.sentences_needed, self.key, SHORT_FPR)
        too_short = [
            not is_found and (needed is None or _whole_sentences(generation) < needed)
            for is_found, generation in zip(found, generations, strict=True)
        ]
        metrics.too_short.inc(sum(too_short))
        metrics.not_found.inc(found.count(False))
        words = [len(word_list(generation.text)) for generation in generations]
        words_marked = [sum(len(word_list(unit)) for unit in generation.sentences) for generation in generations]
        metrics.words.labels(self.token.tenant).inc(sum(words))
        metrics.words_marked.labels(self.token.tenant).inc(sum(words_marked))
        return Mark(
            note=self._note,
            found=found,
            p_value=p_values if "detect" in self.token.roles else None,
            words=words,
            words_marked=words_marked,
            key_id=self.key.id,
            record_ids=[record.id for record in records],
            matches=[list(generation.matches) for generation in generations],
            block_size=self.key.block_size,
            payload=self.key.payload,
            tokens_sampled=[generation.tokens for generation in generations],
            too_short=too_short,
            sentences_needed=needed,
        ).model_dump()

    def _record(self, text: str, matches: Sequence[int], ended: str, p_value: float | None = None) -> Record:
        return of_text(
            "generate", text, self.key.id, matches, self.key.block_size, self.token, payload=self.key.payload,
            p_value=p_value, llm=self.service.llm.name, ended=ended, request=self.id,
        )  # fmt: skip

    def headers(self, mark: JsonObject | None = None) -> dict[str, str]:
        """Returns the headers of a response; `mark` is its field `alimark`, where the texts are finished."""
        headers = {"x-alimark-key": self.key.id, "x-alimark-marked": "true"}
        # The headers of a stream are sent before it is known how long its texts are.
        return headers if mark is None else headers | {"x-alimark-too-short": str(any(mark["too_short"])).lower()}


def _whole_sentences(generation: Generation) -> int:
    """The number of sentences; a last one that the limit of tokens cut off is not counted."""
    cut = generation.ended == "token limit" and with_full_stop(generation.text) != generation.text
    return max(0, len(generation.sentences) - cut)


def _check_written(generation: Generation) -> None:
    """Raises an ApiError where the model wrote nothing although it did not end its text."""
    if not generation.text and generation.ended == "context full":
        message = "The prompt does not fit into the model's context. Shorten it."
        raise ApiError(400, "context_length_exceeded", message)
    if not generation.text and generation.ended == "model repeats itself":
        message = f"The model wrote no text ({generation.ended}). Change the prompt or the seed."
        raise ApiError(422, "nothing_written", message)
