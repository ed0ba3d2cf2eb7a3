"""Writes single texts with settings that public methods do not take, such as `wave`; fixed keys, and texts under them."""

from alimark import Generation, Key, Rewriting
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import GenerationSettings, ManyProgress, Prompt, generate_many
from alimark.core.llm.base import LLM
from alimark.core.rewriting.api import Original, RewriteProgress, RewriteSettings, rewrite_many
from alimark.core.schemes.base import in_order
from alimark.core.schemes.registry import rule_for
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()


def fixed_key(number: int) -> Key:
    """A hard key, the same in every run: a random key is found in unmarked text as often as the rate says."""
    return Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes([number, *range(1, 32)]))


def soft_key(number: int, m: int = 32) -> Key:
    """A soft key, the same in every run."""
    secret = bytes([number, *range(1, 32)])
    return Key.generate(secret=secret, decision="soft", block_size=m, embedder=EMBEDDER)


def written(key: Key | None, sentences: int = 12, seed: int = 5, candidates: int = 64) -> list[str]:
    """The sentences of a text that is marked with the key, or of an unmarked text where there is none."""
    settings = GenerationSettings(sentences, candidates)
    return list(generate("A long story.", key, EMBEDDER, StandInLLM(), settings, seed=seed).sentences)


def unmarked(sentences: int, seed: int) -> list[str]:
    """A text under a key that no test detects with, from one candidate per sentence."""
    return written(fixed_key(250), sentences, seed, candidates=1)


def generate(
    prompt: str,
    key: Key | None,
    embedder: Embedder | None,
    llm: LLM,
    settings: GenerationSettings,
    *,
    seed: int | None = None,
    progress: ManyProgress | None = None,
) -> Generation:
    prompts = [Prompt(prompt, seed)]
    results = generate_many(prompts, key, embedder, llm, settings, rule=rule_for, batch=1, progress=progress)
    return in_order(results)[0]


def rewrite(
    text: str,
    key: Key,
    embedder: Embedder,
    llm: LLM,
    settings: RewriteSettings | None = None,
    *,
    seed: int | None = None,
    progress: RewriteProgress | None = None,
) -> Rewriting:
    return in_order(rewrite_many([Original(text, seed)], key, embedder, llm, settings, progress=progress))[0]
