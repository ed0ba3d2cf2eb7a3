"""GGUF weights on llama.cpp, through xllamacpp.

xllamacpp runs llama.cpp's server inside this process, on a loopback port behind a random key. The adapter
speaks the server's own protocol there, which tells the sampled tokens, the stop that was hit and why sampling
ended; a call into the extension would tell none of it and could not be interrupted.

One request asks for `n` draws: the prompt is evaluated once, its cache cells are shared, and draw i samples
with seed + i. Every draw stops by itself at a string that may end a sentence. Where the sentence is not over
there ("Dr. "), that draw goes on from its exact tokens with fresh randomness, so stopping never changes the
distribution of what is sampled.

Draws repeat within limits. llama.cpp rounds differently with the shape of a batch and the place of a cache
cell, and quantised weights magnify that to about a tenth of a logit, enough to move a draw now and then. A
process that makes the same calls in the same order gets the same draws. With `repeatable=True` every request
starts from an empty cache: its draws then do not depend on what was asked before, though still on `count`.
"""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from alimark._util.cpu import available_cpus
from alimark.errors import ContextFull, LLMError, MissingExtra
from alimark.llm._rounds import BROKEN, WARY_STOPS, OpenDraw, seed_of
from alimark.llm.base import LLM, Draw, Over, Request, Sampling, Turn, never

TOKENS_A_DRAW = 128
"""Cache cells set aside for each parallel draw; longer draws run fewer at a time."""

# A draw that stopped at "Dr. " is asked again this soon, and then after twice as many tokens each time.
_FIRST_STEP = 4

# Texts written at a time: enough to fill the slots that one text's last, long draws leave empty.
_CALLERS = 4
_SINGLES = 16  # a draw each: as many as decode together at little more than the cost of one


class LlamaCpp(LLM):
    """A GGUF model. Calls from several threads share the slots; with `repeatable` they run one after the other.

    context_tokens: the most tokens that prompt and text may have together.
    parallel: draws sampled at a time; more are sampled in turns.
    threads: default, the cores that are free when the model is loaded.
    add_bos: a token id that the GGUF's own tokenizer forgets to put first.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        context_tokens: int = 4096,
        threads: int | None = None,
        parallel: int = 64,
        gpu_layers: int | None = None,
        add_bos: int | None = None,
        repeatable: bool = False,
    ) -> None:
        if context_tokens < 2 or parallel < 1:
            raise LLMError("context_tokens must be at least 2 and parallel at least 1")
        self._name = name or Path(path).stem
        self._context_tokens = context_tokens
        self._parallel = parallel
        self._cells = context_tokens + parallel * TOKENS_A_DRAW
        self._add_bos = add_bos
        self._repeatable = repeatable
        self._turns = threading.Semaphore(1 if repeatable else parallel)
        self._room = _Room(self._cells, parallel)
        self._server = _Server(
            Path(path),
            context=context_tokens,
            cells=self._cells,
            parallel=parallel,
            threads=threads,
            gpu_layers=gpu_layers,
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def callers(self) -> int:
        return 1 if self._repeatable else min(_CALLERS, self._parallel)

    @property
    def singles(self) -> tuple[int, int]:
        return 1 if self._repeatable else min(_SINGLES, self._parallel), 1

    def __repr__(self) -> str:
        return f"<LlamaCpp {self.name}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        with self._turns, self._room.caller():
            prompts = [self._prompt(request, sampling) for request in requests]
            return [
                self._draw(request, prompt, sampling, over) for request, prompt in zip(requests, prompts, strict=True)
            ]

    def count_tokens(self, request: Request) -> int:
        """Tokens that the request is read as, chat template included."""
        return len(self._ids(request))

    def _ids(self, request: Request) -> list[int]:
        text = self._chat(request.turns) + request.context
        ids: list[int] = self._server.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
        return ids

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        ids = self._ids(request)
        if not ids:
            raise LLMError("the context is empty; give the model a prompt to continue")
        if len(ids) + sampling.max_tokens > self._context_tokens:
            raise ContextFull(
                f"{len(ids)} tokens of context leave no room for {sampling.max_tokens} more in "
                f"{self._context_tokens}; write fewer sentences, or load the model with a larger context_tokens"
            )
        return ids

    def _chat(self, turns: Sequence[Turn]) -> str:
        if not turns:
            return ""
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        text: str = self._server.post("/apply-template", {"messages": messages})["prompt"]
        return text

    def _draw(self, request: Request, prompt: list[int], sampling: Sampling, over: Over) -> list[Draw]:
        draws: list[Draw] = []
        while len(draws) < request.count:
            with self._room.take(len(prompt), sampling.max_tokens, request.count - len(draws)) as n:
                part = replace(request, count=n, first=request.first + len(draws))
                draws += self._wave(part, prompt, sampling, over)
        return draws

    def _wave(self, request: Request, prompt: list[int], sampling: Sampling, over: Over) -> list[Draw]:
        """All draws of a request that needs no more than the slots and cells there are."""
        if self._repeatable:
            self._server.forget()
        opened = [OpenDraw(prompt, request.seed, request.first + i) for i in range(request.count)]
        seed = (seed_of(request.seed) + request.first) % 2**31
        body = self._body(prompt, sampling, sampling.max_tokens, seed)
        if over is never:
            body["stop"] = []
        answers = self._server.post("/completion", {**body, "n": request.count})
        answers = sorted(answers, key=lambda answer: answer["index"]) if request.count > 1 else [answers]
        for one, answer in zip(opened, answers, strict=True):
            self._take(one, answer, sampling, over)
        # Of all slots, the first draw's alone keeps the prompt's cache, so the others go on there, one by one:
        # anywhere else the prompt would be evaluated again.
        slot = answers[0]["id_slot"]
        for one in opened:
            while one.ended is None:
                body = self._next_body(one, sampling)
                body |= {"id_slot": slot, "cache_prompt": True}
                self._take(one, self._server.post("/completion", body), sampling, over)
        return [one.draw() for one in opened]

    def _body(self, prompt: list[int], sampling: Sampling, tokens: int, seed: int) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "n_predict": tokens,
            "seed": seed,
            # The whole chain, in this order; the server's other samplers are left out.
            "samplers": ["penalties", "temperature", "top_p"],
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": self._cells,  # more than any context: the penalty spans prompt and text
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "ignore_eos": not sampling.may_end,
            "stop": WARY_STOPS,
            "cache_prompt": not self._repeatable,
            "return_tokens": True,
            "response_fields": ["index", "content", "tokens", "stop_type", "stopping_word", "id_slot"],
        }

    def _next_body(self, one: OpenDraw, sampling: Sampling) -> dict[str, Any]:
        one.rounds += 1
        left = sampling.max_tokens - len(one.ids)
        # The first sentence may be over a word later; before its first word it is not.
        step = min(left, _FIRST_STEP << one.rounds - 1) if one.text.strip() else left
        return self._body(one.prompt + one.ids, sampling, step, seed_of(one.seed, one.number, one.rounds))

    def _take(self, one: OpenDraw, answer: dict[str, Any], sampling: Sampling, over: Over) -> None:
        """Add what was sampled to the draw and see whether it has ended."""
        one.ids += answer["tokens"]
        said = one.text + answer["content"]
        if answer["stop_type"] == "eos":
            one.text, one.ended = self._text(one.ids[:-1], said), "model"
            return
        if answer["stop_type"] == "word":
            said += answer["stopping_word"]
            if over(said):
                one.text, one.ended = said, "sentence"
                return
        one.text = self._text(one.ids, said)  # its last token may reach beyond the stop
        if over(one.text):
            one.ended = "sentence"
        elif len(one.ids) >= sampling.max_tokens:
            one.ended = "length"

    def _text(self, ids: list[int], said: str) -> str:
        """The text of sampled tokens, of which `said` is what the server made of them piece by piece."""
        whole: str = self._server.post("/detokenize", {"tokens": ids})["content"]
        # A character cut in two by the last token is no part of the text yet.
        whole, said = whole.rstrip(BROKEN), said.rstrip(BROKEN)
        # A control token shows in `whole` only; then the server's word is the better one.
        return whole if BROKEN in said or whole.startswith(said) else said


class _Room:
    """Slots and cache cells, shared by those who call at the same time."""

    def __init__(self, cells: int, slots: int) -> None:
        self._all_cells, self._all_slots = cells, slots
        self._cells, self._slots, self._callers = cells, slots, 0
        self._changed = threading.Condition()

    @contextmanager
    def caller(self) -> Iterator[None]:
        with self._changed:
            self._callers += 1
        try:
            yield
        finally:
            with self._changed:
                self._callers -= 1

    @contextmanager
    def take(self, prompt: int, tokens: int, most: int) -> Iterator[int]:
        """Room for up to `most` draws of `tokens` behind a prompt, and for one at least as soon as there is."""
        with self._changed:
            while not (n := self._draws(prompt, tokens, most)):
                self._changed.wait()
            cells = min(self._cells, prompt + n * tokens)
            self._cells, self._slots = self._cells - cells, self._slots - n
        try:
            yield n
        finally:
            with self._changed:
                self._cells, self._slots = self._cells + cells, self._slots + n
                self._changed.notify_all()

    def _draws(self, prompt: int, tokens: int, most: int) -> int:
        share = max(1, self._all_slots // max(1, self._callers))
        fit = min(most, share, self._slots, (self._cells - prompt) // tokens)
        alone = self._cells == self._all_cells  # then one draw always fits, since a context does
        return max(0, fit) or int(alone)


def free_cores(seconds: float = 0.2) -> int:
    """Cores that nobody is using now, at least one.

    llama.cpp's threads wait for each other by spinning: one that shares its core holds up all the others, and two threads on
    two busy cores were seen to sample three times slower than one.
    """
    cores = available_cpus()
    try:
        before = _ticks()
        time.sleep(seconds)
        idle, total = (now - then for now, then in zip(_ticks(), before, strict=True))
    except (OSError, ValueError, IndexError):  # a system without /proc/stat
        return cores
    return max(1, min(cores, round(cores * idle / max(1, total))))


def _ticks() -> tuple[int, int]:
    """Idle and all ticks of the machine so far."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


class _Server:
    """llama.cpp's server in this process, and requests to it."""

    def __init__(
        self, path: Path, *, context: int, cells: int, parallel: int, threads: int | None, gpu_layers: int | None
    ) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingExtra("xllamacpp", "llama-cpp") from None
        if not path.is_file():
            raise LLMError(f"there is no GGUF file at {path}")
        self._key = secrets.token_hex(16)
        self._slots = parallel
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.verbosity = -1  # it writes to stderr otherwise
        params.warmup = False
        params.n_ctx = cells
        params.n_parallel = parallel
        params.kv_unified = True  # draws of one prompt share its cells
        params.kv_unified_per_slot = context
        params.ctx_shift = False  # it would drop the start of the text without a word
        params.cache_ram_mib = 0  # states of old draws are never asked for again
        params.n_threads_http = parallel + 4
        params.hostnames = ["127.0.0.1"]
        params.api_keys = [self._key]
        params.slot_save_path = "unused"  # nothing is saved, but only with a path may slots be erased
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or free_cores()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        try:
            self._server = xllamacpp.Server(params)
        except Exception as error:
            raise LLMError(f"llama.cpp cannot load {path}: {error}") from error
        address = urlsplit(self._server.listening_address)
        self._host, self._port = address.hostname or "127.0.0.1", address.port

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LLMError(f"llama.cpp broke off: {error!r}; load the model again") from error
        finally:
            connection.close()  # after an interrupt, too: the server stops sampling for whoever hangs up
        if isinstance(answer, dict) and (problem := answer.get("error")):
            full = problem.get("type") == "exceed_context_size_error"
            raise (ContextFull if full else LLMError)(f"llama.cpp refused: {problem.get('message')}")
        return answer

    def forget(self) -> None:
        """Empty every slot's cache."""
        for slot in range(self._slots):
            self.post(f"/slots/{slot}?action=erase", {})
