"""Mark what a Hugging Face pipeline writes: an adapter of thirty lines makes it a language model of alimark.

    pip install 'alimark[transformers]'
    python huggingface_pipeline.py HuggingFaceTB/SmolLM2-135M

`alimark.load_llm("transformers:NAME")` runs the same models and is many times faster, because it samples all candidates of a
sentence in one batch over a shared KV cache. The adapter is for pipelines that do something of their own.
"""

import hashlib
import os
import sys
from collections.abc import Sequence

from transformers import Pipeline, pipeline, set_seed

import alimark
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition


class PipelineLLM(alimark.LLM):
    """A text-generation pipeline as a language model of alimark."""

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe = pipe

    @property
    def name(self) -> str:
        """The name of the model, as records hold it."""
        return str(self._pipe.model.name_or_path)

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        """Samples the draws of each request, one after the other."""
        return [
            [self._draw(request, request.first + number, sampling, stop) for number in range(request.count)]
            for request in requests
        ]

    def _draw(self, request: Request, number: int, sampling: Sampling, stop: StopCondition) -> Draw:
        # A draw must depend on the request, the seed and its number alone, so that a text can be generated again.
        label = f"{request.seed} {number} {request.context}".encode()
        set_seed(int.from_bytes(hashlib.sha256(label).digest()[:4], "big"))
        [answer] = self._pipe(
            request.context,
            max_new_tokens=min(sampling.max_tokens, 60),
            do_sample=True,
            temperature=sampling.temperature,
            return_full_text=False,
        )
        text = answer["generated_text"]
        tokens = len(self._pipe.tokenizer(text)["input_ids"])
        # The rest of the text after the first sentence is cut off by alimark.
        return Draw(text, tokens, "sentence" if stop(text) else "length")


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M"
    llm = PipelineLLM(pipeline("text-generation", model=model))
    embedder = alimark.load_embedder(os.environ.get("EXAMPLE_EMBEDDER", "all-MiniLM-L6-v2"))
    watermark = alimark.load(alimark.Key.generate(embedder=embedder), embedder=embedder)
    sentences, candidates = int(os.environ.get("EXAMPLE_SENTENCES", "12")), 8
    generation = watermark.generate("The lighthouse was dark.", llm, sentences=sentences, candidates=candidates, seed=1)
    print(generation.text)
    detection = watermark.detect(generation.text)
    print(f"{detection.verdict()}, p = {detection.p_value:.4f}, written by {llm.name}")


if __name__ == "__main__":
    main()
