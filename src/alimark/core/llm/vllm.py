"""The adapter for vLLM, in this process.

`make test-vllm` runs its tests on vLLM itself; those of `make test` run on a stand-in for it. vLLM reads GGUF files less well
than transformers, so they are converted to safetensors first.

All draws of a call run as one batch, each with its own seed; their prompts share the prefix cache. A draw stops at a
string that may end a sentence. If the sentence is not over there ("Dr. "), the draw continues from its exact tokens, so
stopping does not change the distribution of what is sampled.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alimark.core.llm._shared import (
    COMMON_STOPS,
    REPLACEMENT,
    SHORT_ROUNDS,
    PartialDraw,
    as_dicts,
    bias_pairs,
    checked_prompt,
    seed_of,
    with_bos,
)
from alimark.core.llm.base import LLM, Draw, Message, Request, Sampling, StopCondition
from alimark.core.models.torch_weights import converted
from alimark.errors import LLMError, MissingExtra

# Tokens of the prompt that are decoded along with a draw: a tokenizer may write a first word without its space.
_PROMPT_TOKENS = 8


class VLLM(LLM):
    """A safetensors folder, hub id or GGUF file on vLLM. Calls from several threads run one after the other.

    Args:
        model: The folder, hub id or file.
        name: The model's name in records; default, the last part of `model`.
        add_bos: A token id to put in front of prompts if the tokenizer does not do so itself.
        device: Where the model shall run, "cuda" or "cpu". vLLM runs on what it was built for; another device is an error.
        engine_options: All other options go to `vllm.LLM`.

    Raises:
        MissingExtra: vLLM is not installed.
        LLMError: vLLM cannot load the model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        add_bos: int | None = None,
        device: str = "",
        **engine_options: object,
    ) -> None:
        try:
            import vllm
            from vllm.platforms import current_platform
        except ImportError:
            raise MissingExtra("vllm", "vllm") from None
        here = current_platform.device_type
        if device.partition(":")[0] not in ("", here):
            raise LLMError(f"this vLLM runs on {here}, not on {device}; leave out the device, or install another build")
        self._name = name or Path(model).stem
        options: dict[str, object] = {
            "enable_prefix_caching": True,
            "trust_remote_code": False,
            "load_format": "safetensors",  # a pickle could run code
            **engine_options,
        }
        weights = converted(Path(model)) if str(model).endswith(".gguf") else model
        try:
            self._llm = vllm.LLM(model=str(weights), **options)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"vLLM cannot load {model}: {reason}") from error
        self._params = vllm.SamplingParams
        self._tokenizer = self._llm.get_tokenizer()
        self.context_tokens: int = self._llm.llm_engine.model_config.max_model_len
        self._add_bos = add_bos
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def preferred_batch(self) -> int:
        return 16

    def __repr__(self) -> str:
        return f"<VLLM {self.name}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request; see `LLM.draw`."""
        groups = []
        for request in requests:
            prompt = self._prompt(request, sampling)
            groups.append([PartialDraw(request.first + i, request.seed, prompt) for i in range(request.count)])
        live = [draw for group in groups for draw in group]
        biases = {
            id(draw): bias for group, bias in zip(groups, map(bias_pairs, requests), strict=True) for draw in group
        }
        with self._lock:
            while live:
                for draw, output in zip(live, self._generate(live, sampling, biases), strict=True):
                    self._extend(draw, output.outputs[0], sampling, stop)
                live = [draw for draw in live if draw.ended is None]
        return [[draw.finished() for draw in group] for group in groups]

    @property
    def bias_stays_here(self) -> bool:
        return True

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; see `TakesBias`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def count_tokens(self, request: Request) -> int:
        """Count the tokens of the request as the model reads it, chat template included."""
        return len(self._ids(request))

    def _ids(self, request: Request) -> list[int]:
        if request.messages:
            ids = list(self._tokenizer.encode(self._chat(request.messages) + request.context, add_special_tokens=False))
        else:
            ids = list(self._tokenizer.encode(request.context))
        return with_bos(ids, self._add_bos)

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        advice = "load the model with a larger max_model_len"
        return checked_prompt(self._ids(request), sampling.max_tokens, self.context_tokens, advice)

    def _chat(self, messages: Sequence[Message]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                as_dicts(messages),
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,  # only the answer itself is marked
            )
        except ValueError as error:
            raise LLMError(f"{self.name} has no chat template that fits: {error}") from error
        return text

    def _generate(self, live: list[PartialDraw], sampling: Sampling, biases: dict[int, dict[int, float]]) -> list[Any]:
        prompts = [{"prompt_token_ids": draw.prompt + draw.ids} for draw in live]
        params = [self._sampling(draw, sampling, biases[id(draw)]) for draw in live]
        outputs: list[Any] = self._llm.generate(prompts, params, use_tqdm=False)
        # Outputs come in the order of the prompts, behind those of a call that was interrupted.
        return outputs[-len(live) :]

    def _sampling(self, draw: PartialDraw, sampling: Sampling, bias: dict[int, float]) -> Any:
        # With `ignore_eos` alone, vLLM samples end tokens and goes on behind them; so all control tokens are banned.
        banned = {} if sampling.may_end else dict.fromkeys(self._tokenizer.all_special_ids, -100.0)
        return self._params(
            n=1,
            seed=seed_of(draw.seed, draw.number, draw.rounds),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens - len(draw.ids),
            ignore_eos=not sampling.may_end,
            stop=list(COMMON_STOPS) if draw.rounds < SHORT_ROUNDS else [],
            logit_bias=bias | banned or None,
        )

    def _extend(self, draw: PartialDraw, output: Any, sampling: Sampling, stop: StopCondition) -> None:
        """Add the output of a round to the draw and set `ended` if it has ended."""
        draw.add_ids(output.token_ids)
        draw.rounds += 1
        stop_string = output.stop_reason if isinstance(output.stop_reason, str) else ""
        if draw.stopped(draw.text + output.text + stop_string, stop):
            return
        if output.finish_reason != "length" and not stop_string:
            draw.text, draw.ended = draw.text + output.text, "model"
            return
        text = self._text(draw)  # the last token may reach beyond the stop string
        if draw.stopped(text, stop):
            return
        draw.text = text
        if len(draw.ids) >= sampling.max_tokens:
            draw.ended = "length"

    def _text(self, draw: PartialDraw) -> str:
        before = draw.prompt[-_PROMPT_TOKENS:]
        skipped = len(self._decode(before))
        # A character of which the last token holds only a part is not text yet.
        return self._decode(before + draw.ids)[skipped:].rstrip(REPLACEMENT)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
