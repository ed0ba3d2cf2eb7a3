"""A model on vLLM, in this process.

Written against vLLM's documented interface (`LLM.generate`, `SamplingParams`, `RequestOutput`) and tested with a
stand-in for it, never yet with vLLM itself.

All draws of a call run as one batch, each with a seed of its own; their prompts share one cache. A draw stops at a
string that may end a sentence. Where the sentence is not over there ("Dr. ") it goes on from its exact tokens, so
stopping never changes the distribution of what is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alimark.errors import ContextFull, LLMError, MissingExtra
from alimark.llm._rounds import BROKEN, COMMON_STOPS, SHORT_ROUNDS, OpenDraw, seed_of, stop_ends
from alimark.llm.base import LLM, Draw, Over, Request, Sampling, Turn

# Tokens of the prompt decoded along with a draw: a tokenizer may write a first word without its space.
_CONTEXT_IDS = 8


class VLLM(LLM):
    """A safetensors folder, hub id or GGUF file on vLLM. Calls from several threads run one after the other.

    add_bos: a token id that the tokenizer forgets to put first. All other options go to `vllm.LLM`.
    """

    def __init__(
        self, model: str | Path, *, name: str | None = None, add_bos: int | None = None, **engine_options: Any
    ) -> None:
        try:
            import vllm
        except ImportError:
            raise MissingExtra("vllm", "vllm") from None
        self._name = name or Path(model).stem
        options = {"enable_prefix_caching": True, "trust_remote_code": False, **engine_options}
        if not str(model).endswith(".gguf"):
            options.setdefault("load_format", "safetensors")  # a pickle could run code
        try:
            self._llm = vllm.LLM(model=str(model), **options)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"vLLM cannot load {model}: {reason}") from error
        self._params = vllm.SamplingParams
        self._tokenizer = self._llm.get_tokenizer()
        self._most: int = self._llm.llm_engine.model_config.max_model_len
        self._add_bos = add_bos
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def together(self) -> int:
        return 16

    def __repr__(self) -> str:
        return f"<VLLM {self.name}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        opened = []
        for request in requests:
            prompt = self._prompt(request, sampling)
            opened.append([OpenDraw(prompt, request.seed, request.first + i) for i in range(request.count)])
        live = [one for group in opened for one in group]
        with self._lock:
            while live:
                for one, output in zip(live, self._generate(live, sampling), strict=True):
                    self._take(one, output.outputs[0], sampling, over)
                live = [one for one in live if one.ended is None]
        return [[one.draw() for one in group] for group in opened]

    def count_tokens(self, request: Request) -> int:
        """Tokens that the request is read as, chat template included."""
        return len(self._ids(request))

    def _ids(self, request: Request) -> list[int]:
        if request.turns:
            ids = list(self._tokenizer.encode(self._chat(request.turns) + request.context, add_special_tokens=False))
        else:
            ids = list(self._tokenizer.encode(request.context))
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
        return ids

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        ids = self._ids(request)
        if not ids:
            raise LLMError("the context is empty; give the model a prompt to continue")
        if len(ids) + sampling.max_tokens > self._most:
            raise ContextFull(
                f"{len(ids)} tokens of context leave no room for {sampling.max_tokens} more in {self._most}; "
                "write fewer sentences, or load the model with a larger max_model_len"
            )
        return ids

    def _chat(self, turns: Sequence[Turn]) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,  # what is marked is the answer itself
            )
        except ValueError as error:
            raise LLMError(f"{self.name} has no chat template that fits: {error}") from error
        return text

    def _generate(self, live: list[OpenDraw], sampling: Sampling) -> list[Any]:
        prompts = [{"prompt_token_ids": one.prompt + one.ids} for one in live]
        params = [self._sampling(one, sampling) for one in live]
        outputs: list[Any] = self._llm.generate(prompts, params, use_tqdm=False)
        # They come in the order of asking, and what an interrupted call had left behind comes first.
        return outputs[-len(live) :]

    def _sampling(self, one: OpenDraw, sampling: Sampling) -> Any:
        # Told to ignore ends, vLLM samples them all the same and goes on behind them; so no control token may come at all.
        held = {} if sampling.may_end else {"logit_bias": dict.fromkeys(self._tokenizer.all_special_ids, -100.0)}
        return self._params(
            n=1,
            seed=seed_of(one.seed, one.number, one.rounds),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens - len(one.ids),
            ignore_eos=not sampling.may_end,
            stop=list(COMMON_STOPS) if one.rounds < SHORT_ROUNDS else [],
            **held,
        )

    def _take(self, one: OpenDraw, output: Any, sampling: Sampling, over: Over) -> None:
        """Add what was sampled to the draw and see whether it has ended."""
        one.ids += output.token_ids
        one.rounds += 1
        stop = output.stop_reason if isinstance(output.stop_reason, str) else ""
        if self._over(one, one.text + output.text + stop, over):
            return
        if output.finish_reason != "length" and not stop:
            one.text, one.ended = one.text + output.text, "model"
            return
        said = self._text(one)  # its last token may reach beyond the stop
        if self._over(one, said, over):
            return
        one.text = said
        if len(one.ids) >= sampling.max_tokens:
            one.ended = "length"

    def _over(self, one: OpenDraw, said: str, over: Over) -> bool:
        for end in (*stop_ends(said, len(one.text)), len(said)):
            if over(said[:end]):
                one.text, one.ended = said[:end], "sentence"
                return True
        return False

    def _text(self, one: OpenDraw) -> str:
        before = one.prompt[-_CONTEXT_IDS:]
        skipped = len(self._decode(before))
        # A character cut in two by the last token is no part of the text yet.
        return self._decode(before + one.ids)[skipped:].rstrip(BROKEN)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
