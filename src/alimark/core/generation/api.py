"""Generation of text, marked or plain (Algorithm 1 of the paper): sample candidates, choose one by the rule, append, repeat.

`generate_many` writes all texts: a single prompt is a list of one. `scheduler` has the stages of a step and runs texts in
threads, `session` is the state of one text, and `selection` says what a scheme adds.
"""

from collections.abc import Callable, Iterable, Iterator

from alimark.core.embedding.base import Embedder
from alimark.core.generation.results import Generation, MarkedSentence, Progress
from alimark.core.generation.scheduler import Finished, Scheduler, check, default_batch
from alimark.core.generation.selection import RuleFactory
from alimark.core.generation.session import Session
from alimark.core.generation.settings import Ending, GenerateOptions, GenerationSettings, Prompt, PromptStyle, Strength
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.errors import AlimarkError

__all__ = [
    "Ending", "Finished", "GenerateOptions", "Generation", "GenerationSettings", "ManyProgress", "MarkedSentence",
    "Progress", "Prompt", "PromptStyle", "RuleFactory", "Scheduler", "Session", "Strength", "default_batch", "generate_many",
]  # fmt: skip

ManyProgress = Callable[[int, MarkedSentence], None]
"""Called with the number of a prompt and each sentence of its text as it is chosen."""


def generate_many(
    prompts: Iterable[Prompt],
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    rule: RuleFactory | None = None,
    batch: int | None = None,
    progress: ManyProgress | None = None,
) -> Finished:
    """Writes a text after each prompt, several at a time. What is written does not depend on the batch.

    Args:
        prompts: What to continue. A prompt may have a key of its own.
        key: The key of all other prompts; None for unmarked text.
        embedder: The embedder that the keys name; not needed for unmarked text.
        rule: Makes the selection rule of a key's scheme, as `alimark.core.schemes.registry.rule_for` does; needed with a key.
        batch: Texts in progress at a time; by default as many as the model is fastest with.
        progress: Called with each sentence as it is chosen.
    """
    if settings.tokens is not None:
        raise AlimarkError(
            "this scheme marks sentences, so a text has a length in sentences, not in tokens; leave out `tokens`"
        )
    check(key, embedder)
    batch = batch or default_batch(llm)
    if batch < 1:
        raise AlimarkError("batch must be at least 1")

    def sessions() -> Iterator[tuple[int, Session]]:
        for i, prompt in enumerate(prompts):
            step = None if progress is None else (lambda sentence, i=i: progress(i, sentence))
            yield i, Session(prompt.text, prompt.key or key, settings, rule=rule, seed=prompt.seed, progress=step)

    with Scheduler(llm, embedder, batch=batch) as scheduler:
        yield from scheduler.run(sessions())
