"""The adapter for GGUF weights on llama.cpp, through xllamacpp.

xllamacpp runs llama.cpp's server inside this process, on a loopback port that requires a random API key. The adapter uses the
server's own protocol, which returns the sampled tokens, the stop string that was hit and why sampling ended; a direct call into
the extension returns none of these and cannot be interrupted.

One request asks for `n` draws: the prompt is prefilled once, its cache cells are shared, and draw i is sampled with seed + i.
Every draw stops at a string that may end a sentence. If the sentence is not over there ("Dr. "), the draw continues from its
exact tokens with new random numbers, so stopping does not change the distribution of what is sampled.

Draws are reproducible within limits. llama.cpp rounds differently with the shape of a batch and the position of a cache cell,
and quantised weights magnify that to about a tenth of a logit, which now and then changes a draw. A process that makes the same
calls in the same order gets the same draws. With `repeatable=True` every request starts from an empty cache: its draws then do
not depend on earlier requests, but still on `count`.
"""

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

from alimark.core._util.json_types import JsonObject
from alimark.core._util.process import available_cpus
from alimark.core.llm._shared import (
    PRECISE_STOPS,
    REPLACEMENT,
    PartialDraw,
    as_dicts,
    biased,
    calls_in,
    checked_prompt,
    llama_cpp_body,
    seed_of,
    with_bos,
    with_form_of_calls,
)
from alimark.core.llm.base import LLM, Draw, Message, Request, Sampling, StopCondition, never
from alimark.errors import ContextFull, LLMError, MissingExtra

CELLS_PER_DRAW = 128  # KV cache cells reserved for each parallel draw; of longer draws fewer run at a time

# Tokens of the first further round of a draw that stopped at "Dr. "; each round after it samples twice as many.
_FIRST_STEP = 4

# Enough calls at a time to fill the slots that the last, long draws of one call leave empty.
_MAX_CONCURRENCY = 4
# With one draw a request: as many as can be decoded in one batch at little more than the cost of one.
_SINGLE_DRAW_CONCURRENCY = 16


class LlamaCpp(LLM):
    """A GGUF model. Calls from several threads share its slots; with `repeatable` they run one after the other.

    Args:
        path: The GGUF file.
        name: The model's name in records; default, the name of the file.
        context_tokens: The most tokens of prompt and text together.
        threads: CPU threads; default, the number of cores that are idle when the model is loaded.
        parallel: The most draws that are sampled at a time.
        gpu_layers: Layers that run on the GPU; default, llama.cpp decides.
        add_bos: A token id to put in front of prompts if the GGUF's tokenizer does not do so itself.
        repeatable: Start every request from an empty cache, so that draws do not depend on earlier requests.

    Raises:
        MissingExtra: xllamacpp is not installed.
        LLMError: An option is out of range, or llama.cpp cannot load the file.
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
        self.context_tokens, self.parallel = context_tokens, parallel
        self._cells = context_tokens + parallel * CELLS_PER_DRAW
        self._add_bos = add_bos
        self._repeatable = repeatable
        self._calls = threading.Semaphore(1 if repeatable else parallel)
        self._capacity = _Capacity(self._cells, parallel)
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
    def max_concurrency(self) -> int:
        return 1 if self._repeatable else min(_MAX_CONCURRENCY, self.parallel)

    @property
    def single_draw_batching(self) -> tuple[int, int]:
        return 1 if self._repeatable else min(_SINGLE_DRAW_CONCURRENCY, self.parallel), 1

    @property
    def bias_stays_here(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<LlamaCpp {self.name}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request; see `LLM.draw`."""
        with self._calls, self._capacity.call():
            prompts = [self._prompt(request, sampling) for request in requests]
            return [
                self._draw(request, prompt, sampling, stop) for request, prompt in zip(requests, prompts, strict=True)
            ]

    def count_tokens(self, request: Request) -> int:
        """Count the tokens of the request as the model reads it, chat template included."""
        return len(self.token_ids(request))

    def forward(self, path: str, body: JsonObject) -> JsonObject:
        """Return llama.cpp's own answer to a request; see `ForwardsRequests.forward`."""
        answer: JsonObject = self._server.post(f"/v1/{path}", with_form_of_calls(body) | {"model": self.name})
        for choice in answer.get("choices", []) if body.get("tools") else []:
            content = choice.get("message", {}).get("content")
            if content and (calls := calls_in(content, body["tools"])):
                choice["message"] |= {"content": None, "tool_calls": calls}
                choice["finish_reason"] = "tool_calls"
        return answer

    def forward_stream(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the events of llama.cpp's own answer; see `ForwardsRequests.forward_stream`."""
        yield from self._server.events(f"/v1/{path}", body | {"model": self.name, "stream": True})

    def token_ids(self, request: Request) -> list[int]:
        """The tokens of a request; see `OffersNextTokens`."""
        return with_bos(self.encode(self._chat(request.messages) + request.context, special=True), self._add_bos)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text; with `special` those that the tokenizer puts around a prompt, too."""
        ids: list[int] = self._server.post("/tokenize", {"content": text, "add_special": special})["tokens"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        text: str = self._server.post("/detokenize", {"tokens": list(ids)})["content"]
        return text

    def next_tokens(
        self, ids: Sequence[int], sampling: Sampling, *, slot: int, count: int, seed: int
    ) -> tuple[list[tuple[int, float]], list[int]]:
        """The likeliest next tokens with their probabilities; see `OffersNextTokens`."""
        body = self._body(list(ids), sampling, 1, seed)
        body |= {"stop": [], "id_slot": slot, "cache_prompt": True, "n_probs": count, "post_sampling_probs": True,
                 "response_fields": ["completion_probabilities", "tokens"]}  # fmt: skip
        answer = self._server.post("/completion", body)
        likeliest = answer.get("completion_probabilities") or [{"top_probs": []}]
        return [(token["id"], token["prob"]) for token in likeliest[0]["top_probs"] if token["prob"] > 0], answer[
            "tokens"
        ]

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        advice = "load the model with a larger context_tokens"
        return checked_prompt(self.token_ids(request), sampling.max_tokens, self.context_tokens, advice)

    def _chat(self, messages: Sequence[Message]) -> str:
        if not messages:
            return ""
        text: str = self._server.post("/apply-template", {"messages": as_dicts(messages)})["prompt"]
        return text

    def _draw(self, request: Request, prompt: list[int], sampling: Sampling, stop: StopCondition) -> list[Draw]:
        draws: list[Draw] = []
        while len(draws) < request.count:
            with self._capacity.reserve(len(prompt), sampling.max_tokens, request.count - len(draws)) as n:
                part = replace(request, count=n, first=request.first + len(draws))
                draws += self._draw_part(part, prompt, sampling, stop)
        return draws

    def _draw_part(self, request: Request, prompt: list[int], sampling: Sampling, stop: StopCondition) -> list[Draw]:
        """The draws of a request for which slots and cells are reserved."""
        if self._repeatable:
            self._server.clear_caches()
        draws = [PartialDraw(request.first + i, request.seed, prompt) for i in range(request.count)]
        seed = (seed_of(request.seed) + request.first) % 2**31
        body = self._body(prompt, sampling, sampling.max_tokens, seed) | biased(request)
        if stop is never:
            body["stop"] = []
        answers = self._server.post("/completion", {**body, "n": request.count})
        answers = sorted(answers, key=lambda answer: answer["index"]) if request.count > 1 else [answers]
        for draw, answer in zip(draws, answers, strict=True):
            self._extend(draw, answer, sampling, stop)
        # Only the slot of the first draw keeps the prompt's cache. So further rounds run there, one after the other: in any
        # other slot the prompt would be prefilled again.
        slot = answers[0]["id_slot"]
        for draw in draws:
            while draw.ended is None:
                body = self._next_body(draw, sampling) | biased(request)
                body |= {"id_slot": slot, "cache_prompt": True}
                self._extend(draw, self._server.post("/completion", body), sampling, stop)
        return [draw.finished() for draw in draws]

    def _body(self, prompt: list[int], sampling: Sampling, tokens: int, seed: int) -> dict[str, Any]:
        return llama_cpp_body(sampling, tokens=tokens, seed=seed, context=self._cells, stop=PRECISE_STOPS) | {
            "prompt": prompt,
            "cache_prompt": not self._repeatable,
            "response_fields": ["index", "content", "tokens", "stop_type", "stopping_word", "id_slot"],
        }

    def _next_body(self, draw: PartialDraw, sampling: Sampling) -> dict[str, Any]:
        draw.rounds += 1
        left = sampling.max_tokens - len(draw.ids)
        # The first sentence may be over a word later, but not before it has a word.
        step = min(left, _FIRST_STEP << draw.rounds - 1) if draw.text.strip() else left
        return self._body(draw.prompt + draw.ids, sampling, step, seed_of(draw.seed, draw.number, draw.rounds))

    def _extend(self, draw: PartialDraw, answer: dict[str, Any], sampling: Sampling, stop: StopCondition) -> None:
        """Add the answer of a round to the draw and set `ended` if it has ended."""
        draw.add_ids(answer["tokens"])
        text = draw.text + answer["content"]
        if answer["stop_type"] == "eos":
            draw.text, draw.ended = self._text(draw.ids[:-1], text), "model"
            return
        if answer["stop_type"] == "word":
            text += answer["stopping_word"]
            if stop(text):
                draw.text, draw.ended = text, "sentence"
                return
        draw.text = self._text(draw.ids, text)  # the last token may reach beyond the stop string
        if stop(draw.text):
            draw.ended = "sentence"
        elif len(draw.ids) >= sampling.max_tokens:
            draw.ended = "length"

    def _text(self, ids: list[int], pieces: str) -> str:
        """The text of sampled tokens. `pieces`: their text as the server returned it, piece by piece."""
        # A character of which the last token holds only a part is not text yet.
        whole, pieces = self.decode(ids).rstrip(REPLACEMENT), pieces.rstrip(REPLACEMENT)
        # Control tokens appear in `whole` only; in that case `pieces` is right.
        return whole if REPLACEMENT in pieces or whole.startswith(pieces) else pieces


class _Capacity:
    """The slots and KV cache cells that concurrent calls share."""

    def __init__(self, cells: int, slots: int) -> None:
        self._all_cells, self._all_slots = cells, slots
        self._cells, self._slots, self._calls = cells, slots, 0
        self._changed = threading.Condition()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it runs; each call gets its share of the slots."""
        with self._changed:
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1

    @contextmanager
    def reserve(self, prompt: int, tokens: int, most: int) -> Iterator[int]:
        """Reserve slots and cells for up to `most` draws of `tokens` tokens each; wait until at least one fits."""
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
        share = max(1, self._all_slots // max(1, self._calls))
        fit = min(most, share, self._slots, (self._cells - prompt) // tokens)
        unused = self._cells == self._all_cells  # then one draw always fits, since a whole context does
        return max(0, fit) or int(unused)


def free_cores(seconds: float = 0.2) -> int:
    """The number of idle CPU cores, at least 1.

    llama.cpp's threads wait for each other by spinning: a thread that shares its core delays all others. Two threads on two
    busy cores were seen to sample three times slower than one.
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
    """Idle clock ticks and all clock ticks of the machine so far."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


class _Server:
    """llama.cpp's server in this process, and HTTP requests to it."""

    def __init__(
        self, path: Path, *, context: int, cells: int, parallel: int, threads: int | None, gpu_layers: int | None
    ) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingExtra("xllamacpp", "llama-cpp") from None
        if not path.is_file():
            raise LLMError(f"there is no GGUF file at {path}; check the path")
        self._key = secrets.token_hex(16)
        self._slots = parallel
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.verbosity = -1  # it writes to stderr otherwise
        params.warmup = False
        params.n_ctx = cells
        params.n_parallel = parallel
        params.kv_unified = True  # draws of one prompt share its cache cells
        params.kv_unified_per_slot = context
        params.ctx_shift = False  # it would silently drop the beginning of the text
        params.cache_ram_mib = 0  # states of earlier draws are not needed again
        params.n_threads_http = parallel + 4
        params.hostnames = ["127.0.0.1"]
        params.api_keys = [self._key]
        params.slot_save_path = "unused"  # nothing is saved, but slots can only be erased if a path is set
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or free_cores()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        try:
            self._server = xllamacpp.Server(params)
        except Exception as error:
            raise LLMError(f"llama.cpp cannot load {path}: {error}") from error
        address = urlsplit(self._server.listening_address)
        self._host, self._port = address.hostname or "127.0.0.1", address.port
        # A server that is dropped before its thread listens would never end: its destructor waits for that thread.
        self._ask("GET", "/health")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        with self._response(method, path, body) as response:
            return json.loads(response.read())

    @contextmanager
    def _response(self, method: str, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LLMError(f"llama.cpp does not answer: {error!r}; load the model again") from error
        finally:
            connection.close()  # also after an interrupt: the server stops sampling when the connection is closed

    def events(self, path: str, body: dict[str, Any]) -> Iterator[JsonObject]:
        """Yield the events of a streamed answer as they arrive."""
        with self._response("POST", path, body) as response:
            if response.status != http.client.OK:
                self._checked(json.loads(response.read()))
            for line in response:
                if line.startswith(b"data: {"):
                    yield self._checked(json.loads(line[6:]))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._checked(self._ask("POST", path, body))

    def _checked(self, answer: Any) -> Any:
        """An answer of the server; raises its error if it is one."""
        if isinstance(answer, dict) and (problem := answer.get("error")):
            full = problem.get("type") == "exceed_context_size_error"
            raise (ContextFull if full else LLMError)(f"llama.cpp refused the request: {problem.get('message')}")
        return answer

    def clear_caches(self) -> None:
        """Empty the KV cache of every slot."""
        for slot in range(self._slots):
            self.post(f"/slots/{slot}?action=erase", {})
