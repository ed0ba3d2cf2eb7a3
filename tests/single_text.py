"""Writes or rewrites a single text with settings that the public methods do not take, such as `wave`."""

from __future__ import annotations

from alimark import Generation, Key, Rewriting
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import GenerationSettings, ManyProgress, Prompt, generate_many
from alimark.core.llm.base import LLM
from alimark.core.rewriting.api import Original, RewriteProgress, RewriteSettings, rewrite_many
from alimark.core.schemes.base import in_order
from alimark.core.schemes.registry import rule_for


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
