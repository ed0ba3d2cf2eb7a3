"""A key in a form that can be sent to another process."""

from __future__ import annotations

from alimark.core.keys.key import Key


class Sealed:
    """A key that can be pickled, to send it to another process of the same operator. Its repr does not show the secret."""

    def __init__(self, key: Key) -> None:
        self.id = key.id
        self._data = key._encoded()
        self._payload = key.payload

    def open(self) -> Key:
        """The key."""
        return Key._decoded(self._data, f"key {self.id}").carrying(self._payload)

    def __repr__(self) -> str:
        return f"Sealed({self.id})"
