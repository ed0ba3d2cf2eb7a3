"""The exceptions of alimark; each message says what to do next.

AlimarkError
├── KeyFileError        a key file that is malformed, was changed, or cannot be read or written
│   └── KeyMismatch     the key names another embedder, splitter or scheme than the one in use
├── TextError           a text that holds no sentence, or that is not text
├── LimitError          input beyond a stated limit; the message says how to make it smaller
├── ModelError          weights that cannot be found, downloaded or trusted
│   └── HashMismatch    a file whose content is not the pinned one
├── LLMError            the language model cannot continue
│   └── ContextFull     prompt and text no longer fit the model's context
├── AttackError         a text that an attack cannot rewrite, or settings that it cannot have
├── MissingExtra        an optional library is not installed
└── RecordError         a JSONL record that cannot be used
"""

from __future__ import annotations


class AlimarkError(Exception):
    """Base class of all errors that alimark raises on purpose."""


class KeyFileError(AlimarkError):
    """A key or key file is malformed, was changed, or cannot be read or written."""


class KeyMismatch(KeyFileError):
    """The key was made for another embedder, tokenizer, splitter or scheme."""


class TextError(AlimarkError):
    """A text holds no sentence, or is not text."""


class LimitError(AlimarkError):
    """The input is larger than a stated limit; the message says how to make it smaller."""


class ModelError(AlimarkError):
    """Model weights cannot be found, downloaded, read or trusted."""


class HashMismatch(ModelError):
    """A file does not have the hash that the manifest pins."""


class LLMError(AlimarkError):
    """The language model cannot continue."""


class ContextFull(LLMError):
    """Prompt and text no longer fit into the context window of the model."""


class AttackError(AlimarkError):
    """An attack cannot rewrite a text, or its settings are invalid."""


class MissingExtra(AlimarkError):
    """An optional library is not installed; the message names the extra that brings it, where one does."""

    def __init__(self, library: str, extra: str = "") -> None:
        self.library, self.extra = library, extra
        wanted = f"'alimark[{extra}]'" if extra else library
        super().__init__(f"{library} is not installed; run: pip install {wanted}")

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Lets the exception be pickled when a worker process raises it."""
        return MissingExtra, (self.library, self.extra)


class RecordError(AlimarkError):
    """A JSONL record cannot be used."""
