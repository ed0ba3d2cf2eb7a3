"""The key ring: secrets as key files in one folder, what they are for in the database.

A key is alive from `starts` until `ends`, and found by detection that long. It marks while it is alive and has no
successor: a key that was rotated writes nothing new, but what it wrote is still found. The secret stays in its file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, KeyFileError
from alimark.keys.key import Key
from alimark.schemes.registry import aligns
from alimark.serve.auth import check_label
from alimark.serve.database import Connection, Job, Row, Store

log = logging.getLogger("alimark.serve")


class NoKey(AlimarkError):
    """No key is there for what was asked."""


class UnknownKey(AlimarkError):
    """There never was such a key."""


@dataclass(frozen=True)
class Label:
    """What a key is for. An empty tenant or model: any."""

    id: str
    tenant: str
    model: str
    starts: float
    ends: float | None
    successor: str | None
    created: float

    def alive(self, now: float) -> bool:
        return self.starts <= now and (self.ends is None or now < self.ends)

    def marks(self, now: float) -> bool:
        return self.alive(now) and self.successor is None


class Ring:
    """Labels and keys in memory; what another process changed is known after `reload`."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._keys: dict[str, Key] = {}
        self._labels: dict[str, Label] = {}
        self.missing: frozenset[str] = frozenset()
        """Keys that are labelled alive and have no file here."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.reload()

    def reload(self) -> None:
        rows = self._store.do(lambda db: db.execute("SELECT * FROM keys"))
        labels = {row["id"]: _label(row) for row in rows}
        missing = set()
        for name, label in labels.items():
            if name not in self._keys and label.alive(max(time.time(), label.starts)):
                try:
                    self._keys[name] = self._load(name)
                except KeyFileError:
                    missing.add(name)
        for name in missing - self.missing:
            log.warning("key file missing", extra={"key": name})
        self._labels, self.missing = labels, frozenset(missing)

    def _load(self, name: str) -> Key:
        key = Key.load(self._path(name))
        if key.id != name:
            raise KeyFileError(f"the file of key {name} holds another key")
        return key

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    # Which key

    def all(self) -> list[Label]:
        return sorted(self._labels.values(), key=lambda label: (label.created, label.id))

    def key(self, name: str) -> Key:
        return self._keys[name]

    def marking(self, tenant: str, model: str) -> Key:
        """The newest key that marks for a tenant; one made for the model goes before one for any."""
        now = time.time()
        fit = [
            label for label in self._labels.values()
            if label.marks(now) and label.tenant == tenant and label.model in ("", model) and label.id in self._keys
        ]  # fmt: skip
        if not fit:
            whom = f"tenant {tenant!r}" if tenant else "tokens without a tenant"
            raise NoKey(f"no living key marks {model} for {whom}; an administrator makes one: POST /v1/keys")
        return self._keys[max(fit, key=lambda label: (label.model != "", label.starts, label.created)).id]

    def detecting(self, tenant: str, names: Iterable[str] | None = None) -> list[Key]:
        """The living keys that a token of this tenant may look for: all, or those it names."""
        now = time.time()
        open_to = {
            label.id: self._keys[label.id] for label in self._labels.values()
            if label.alive(now) and (not tenant or label.tenant == tenant) and label.id in self._keys
        }  # fmt: skip
        if names is None:
            if not open_to:
                raise NoKey("there is no living key to look for; an administrator makes one: POST /v1/keys")
            return list(open_to.values())
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in open_to]:
            # The same for a key that is dead, another's, or never was: who may not look for it learns nothing of it.
            raise NoKey(f"no living key {', '.join(unknown)} is open to this token")
        return [open_to[name] for name in wanted]

    # Changes

    def create(
        self, embedder: str | Embedder, *, tenant: str = "", model: str = "", decision: str = "hard", offsets: int = 1,
        starts: float | None = None, ends: float | None = None,
    ) -> Label:  # fmt: skip
        key = Key.generate(embedder=embedder, decision=decision, offsets=offsets)
        return self.add(key, tenant=tenant, model=model, starts=starts, ends=ends)

    def add(
        self, key: Key, *, tenant: str = "", model: str = "", starts: float | None = None, ends: float | None = None
    ) -> Label:
        """Takes a key in: its file first, so that no label is without one."""
        if not aligns(key.scheme):
            raise KeyFileError(f"the service marks with alimark keys, not {key.scheme}")
        label = self._labelled(key, tenant, model, starts, ends)
        if key.id in self._labels:
            raise KeyFileError(f"key {key.id} is on the ring already")
        self._save(key)
        self._store.do(_insert(label))
        self.reload()
        return label

    def rotate(self, name: str, embedder: str | Embedder, *, ends: float | None = None) -> Label:
        """A new key for the same purpose; the old one marks no more and is found until `ends`."""
        old = self._label(name)
        if old.successor is not None:
            raise KeyFileError(f"key {name} was rotated before; its successor is {old.successor}")
        key = _successor(self._keys[name], embedder) if name in self._keys else Key.generate(embedder=embedder)
        label = self._labelled(key, old.tenant, old.model, None, None)
        _check_end(ends, old.starts)
        self._save(key)

        def job(db: Connection) -> bool:
            # Of two rotations at once one finds the successor of the other.
            [row] = db.execute("SELECT successor FROM keys WHERE id = ?", (name,))
            if row["successor"] not in (None, key.id):
                return False
            _insert(label)(db)
            db.execute("UPDATE keys SET successor = ? WHERE id = ?", (key.id, name))
            if ends is not None:
                db.execute("UPDATE keys SET ends = ? WHERE id = ?", (ends, name))
            return True

        done = self._store.do(job)
        self.reload()
        if not done:
            self._path(key.id).unlink(missing_ok=True)
            raise KeyFileError(f"key {name} was rotated meanwhile")
        return label

    def retire(self, name: str, *, ends: float | None = None) -> Label:
        """Ends a key's life: it marks nothing and is looked for no more. Its file stays, for it is evidence."""
        label = self._label(name)
        now = time.time()
        ends = now if ends is None else ends
        if label.ends is not None and label.ends <= min(now, ends):
            return label  # what is over is not brought back
        self._store.do(lambda db: db.execute("UPDATE keys SET ends = ? WHERE id = ?", (ends, name)))
        self.reload()
        return replace(label, ends=ends)

    def _label(self, name: str) -> Label:
        if name not in self._labels:
            raise UnknownKey(f"there is no key {name}")
        return self._labels[name]

    def _labelled(self, key: Key, tenant: str, model: str, starts: float | None, ends: float | None) -> Label:
        now = time.time()
        starts = now if starts is None else starts
        _check_end(ends, starts)
        return Label(key.id, check_label("tenant", tenant), check_label("model", model), starts, ends, None, now)

    def _save(self, key: Key) -> None:
        path = self._path(key.id)
        if not path.exists():
            key.save(path)
        self._keys[key.id] = key


def _successor(key: Key, embedder: str | Embedder) -> Key:
    """A key with another secret and, as far as the service's embedder allows, the same parameters.

    With the embedder that `key` names, nothing else changes. With another one, decision, block size, soft version, offsets and
    splitter are kept; the span is the default of the new embedder, and there is no centre, since both are taken from
    embeddings of the old one.

    Raises:
        KeyFileError: The key was made from given arrays, which cannot be drawn anew.
        KeyMismatch: The new embedder has fewer dimensions than a block has bits.
    """
    if key.from_given_arrays:
        raise KeyFileError(
            f"key {key.id} was made from given arrays, which cannot be drawn anew; make a new key and retire this one"
        )
    successor = Key.generate(
        scheme=key.scheme, embedder=embedder, splitter=key.splitter, decision=key.decision, block_size=key.block_size,
        soft_version=key.soft_version, offsets=key.offsets,
    )  # fmt: skip
    if successor.fingerprint == key.fingerprint:
        return key.like()
    if not isinstance(embedder, str):
        successor.vectors(embedder.dimension)
    return successor


def _check_end(ends: float | None, starts: float) -> None:
    if ends is not None and ends <= starts:
        raise AlimarkError("a key must end after it starts")


def _insert(label: Label) -> Job[None]:
    def job(db: Connection) -> None:
        db.execute(
            "INSERT INTO keys (id, tenant, model, starts, ends, created) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO NOTHING",
            (label.id, label.tenant, label.model, label.starts, label.ends, label.created),
        )

    return job


def _label(row: Row) -> Label:
    return Label(row["id"], row["tenant"], row["model"], row["starts"], row["ends"], row["successor"], row["created"])
