"""The exceptions of alimark; each message says what to do next.

AlimarkError
├── KeyFileError        a key file that cannot be read, trusted or written
│   └── KeyMismatch     the key names another embedder, splitter or scheme than the one in use
├── TextError           a text that holds nothing to detect, or that is not text
├── LimitError          input beyond a stated limit; the message names the way round it
├── ModelError          weights that cannot be found, fetched or trusted
│   └── HashMismatch    a file whose content is not the pinned one
├── LLMError            the language model cannot go on
│   └── ContextFull     prompt and text no longer fit the model's context
├── AttackError         a text that an attack cannot rewrite, or settings that it cannot have
├── MissingExtra        an optional library is not installed
└── RecordError         a JSONL record that cannot be used
"""

from __future__ import annotations


class AlimarkError(Exception):
    """Base of all errors that alimark raises on purpose."""


class KeyFileError(AlimarkError):
    pass


class KeyMismatch(KeyFileError):
    pass


class TextError(AlimarkError):
    pass


class LimitError(AlimarkError):
    pass


class ModelError(AlimarkError):
    pass


class HashMismatch(ModelError):
    pass


class LLMError(AlimarkError):
    pass


class ContextFull(LLMError):
    pass


class AttackError(AlimarkError):
    pass


class MissingExtra(AlimarkError):
    def __init__(self, library: str, extra: str) -> None:
        self._named = library, extra
        super().__init__(f"{library} is not installed; run: pip install 'alimark[{extra}]'")

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """It may have to come back from another process."""
        return MissingExtra, self._named


class RecordError(AlimarkError):
    pass
