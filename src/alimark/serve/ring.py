"""The key ring: the secrets are key files in one folder, and the database holds a label for each key.

A key is active from `starts` until `ends`, and detection uses it during that time. New text is marked with the key that was
activated last, among those that are active and have no successor: after a rotation the old key marks no new text, but the text
it marked is still detected. A key that was never activated, such as an imported one, only detects. The secret never leaves the
key file.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from alimark.core.embedding.base import Embedder
from alimark.core.frozen.parameters import CONVERSATION_RUNS, DEFAULT_DECISION
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError, KeyFileError
from alimark.serve.auth import check_labels
from alimark.serve.database import Connection, Store

log = logging.getLogger("alimark.serve")

_WRITING = 10.0
"""Seconds within which a key file is written."""


class NoKey(AlimarkError):
    """No active key fits the request."""


class UnknownKey(AlimarkError):
    """There is no key with this id."""


@dataclass(frozen=True)
class Label:
    """The tenant, model and period of a key. An empty tenant means no tenant; an empty model means any model."""

    id: str
    tenant: str
    model: str
    starts: float
    ends: float | None
    successor: str | None
    created: float
    activated: float | None
    """The time from which on new text may be marked with it; None for a key that only detects."""
    number: int = field(default=0, compare=False)
    """The place of the key in the order in which keys were added, which does not depend on the clock."""

    def is_alive(self, now: float) -> bool:
        """Returns whether detection uses the key at the time `now`."""
        # A key that exists was created, so a clock that says otherwise was set back since.
        return self.starts <= max(now, self.created) and (self.ends is None or now < self.ends)

    def may_mark(self, now: float) -> bool:
        """Returns whether new text may be marked with the key at the time `now`."""
        return self.is_alive(now) and self.successor is None and self.activated is not None


class Ring:
    """The keys and their labels, held in memory; `reload` reads the changes of other processes."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._keys: dict[str, Key] = {}
        self._labels: dict[str, Label] = {}
        self.set_aside: dict[str, str] = {}
        """Active keys whose file is missing or damaged, with the reason. The other keys work without them."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.reload()

    def reload(self) -> None:
        """Reads all labels from the database, and the key files that are not in memory yet."""
        rows = self._store.do(lambda db: db.execute("SELECT * FROM keys"))
        labels = {row["id"]: Label(**row) for row in rows}
        set_aside: dict[str, str] = {}
        for name, label in labels.items():
            if name not in self._keys and label.is_alive(max(time.time(), label.starts)):
                try:
                    self._keys[name] = self._load(name)
                except AlimarkError as error:
                    set_aside[name] = str(error)
        for name in set_aside.keys() - self.set_aside.keys():
            log.warning("a key was set aside", extra={"key": name, "reason": set_aside[name]})
        self._labels, self.set_aside = labels, set_aside
        for part in self._folder.glob(".ak*.part"):
            # A process that was killed left a whole secret; a younger file may be one that another process is writing.
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > _WRITING:
                    part.unlink()
                    log.warning("the rest of a key that was never finished was removed", extra={"file": part.name})

    def _load(self, name: str) -> Key:
        key = Key.load(self._path(name))
        if key.id != name:
            raise KeyFileError(f"the file of key {name} contains another key; restore the right file")
        if not aligns(key.scheme):
            raise KeyFileError(f"the file of key {name} is of the scheme {key.scheme}; restore the right file")
        splitter(key.splitter)  # raises AlimarkError where it is not known or not installed
        return key

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    # Selecting keys

    def all(self) -> list[Label]:
        """Returns the labels of all keys, oldest first."""
        return sorted(self._labels.values(), key=lambda label: label.number)

    def key(self, name: str) -> Key:
        """Returns the key with the id `name`, or raises UnknownKey, or KeyFileError where its file is not right."""
        self._label(name)
        return self._keys.get(name) or self._load(name)

    def marking(self, tenant: str, model: str) -> Key:
        """Returns the key that marks new text: the tenant's last activated one, a key for this model before a key for any."""
        label = self._marking_label(tenant, model)
        if label is None:
            whom = f"tenant {tenant!r}" if tenant else "tokens without a tenant"
            raise NoKey(
                f"there is no active key to mark text of {model} for {whom}; an administrator creates one with POST /v1/keys, "
                "or activates an imported one with: alimark serve import KEY.json --activate"
            )
        return self._keys[label.id]

    def _marking_label(self, tenant: str, model: str) -> Label | None:
        now = time.time()
        usable = [
            label for label in self._labels.values()
            if label.may_mark(now) and label.tenant == tenant and label.model in ("", model) and label.id in self._keys
        ]  # fmt: skip
        return max(usable, key=lambda label: (label.model != "", label.activated, label.number), default=None)

    def is_marking(self, label: Label, model: str) -> bool:
        """Returns whether text of this model is marked with the key now; of a tenant's keys one is, or none."""
        marking = self._marking_label(label.tenant, model)
        return marking is not None and marking.id == label.id

    def detecting(self, tenant: str, names: Iterable[str] | None = None) -> list[Key]:
        """Returns the active keys that a token of this tenant may detect with: all, or those in `names`."""
        now = time.time()
        allowed = {
            name: self._keys[name] for name, label in self._labels.items()
            if label.is_alive(now) and (not tenant or label.tenant == tenant) and name in self._keys
        }  # fmt: skip
        if names is None:
            if not allowed:
                raise NoKey("there is no active key to detect with; an administrator creates one with POST /v1/keys")
            return list(allowed.values())
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in allowed]:
            # The answer is the same for a key that has ended, that belongs to another tenant or that never existed, so that a
            # tenant learns nothing about the keys of others.
            raise NoKey(
                f"this token has no active key {', '.join(unknown)}; leave out `keys` to try every key that it may use"
            )
        return [allowed[name] for name in wanted]

    def in_use(self, model: str | None = None) -> list[Label]:
        """Returns the labels of the keys that mark new text now, of a model or of any, oldest first."""
        return [label for label in self.all() if self.is_marking(label, label.model if model is None else model)]

    # Changes

    def create(
        self, embedder: str | Embedder, *, tenant: str = "", model: str = "", decision: str = DEFAULT_DECISION,
        offsets: int | None = None, payload_bits: int = 0, starts: float | None = None, ends: float | None = None,
    ) -> Label:  # fmt: skip
        """Generates a key as `new_key` does, and adds it as `add` does."""
        key = new_key(embedder, decision=decision, offsets=offsets, payload_bits=payload_bits)
        return self.add(key, tenant=tenant, model=model, starts=starts, ends=ends)

    def add(
        self, key: Key, *, tenant: str = "", model: str = "", starts: float | None = None, ends: float | None = None,
        activate: bool = True,
    ) -> Label:  # fmt: skip
        """Adds an existing key; with `activate` new text is marked with it from its start on, otherwise it only detects."""
        if not aligns(key.scheme):
            raise KeyFileError(f"the service uses alimark keys, not {key.scheme} keys; create one with alimark keygen")
        label = self._labelled(key, tenant, model, starts, ends, activate)
        if key.id in self._labels:
            raise KeyFileError(f"the key {key.id} is on the ring already; it need not be added again")
        self._save(key)  # before its label, so that every label has a file
        self._store.do(lambda db: _insert(db, label))
        self.reload()
        return label

    def rotate(self, name: str, embedder: str | Embedder, *, ends: float | None = None) -> Label:
        """Creates the successor of a key, with its tenant and model. The old key detects until `ends`, and marks no new text.

        The successor has the parameters of the old key, or default ones if the old file is missing.
        """
        old = self._label(name)
        if old.successor is not None:
            raise KeyFileError(f"the key {name} was rotated before; its successor is {old.successor}")
        exists = name in self._keys or self._path(name).exists()
        key = _successor(self.key(name), embedder) if exists else new_key(embedder)
        label = self._labelled(key, old.tenant, old.model)
        _check_end(ends, old.starts)
        self._save(key)

        def job(db: Connection) -> bool:
            # If two processes rotate the key at the same time, the second one finds the successor of the first.
            [row] = db.execute("SELECT successor FROM keys WHERE id = ?", (name,))
            if row["successor"] not in (None, key.id):
                return False
            _insert(db, label)
            db.execute("UPDATE keys SET successor = ? WHERE id = ?", (key.id, name))
            if ends is not None:
                db.execute("UPDATE keys SET ends = ? WHERE id = ?", (ends, name))
            return True

        done = self._store.do(job)
        self.reload()
        if not done:
            self._path(key.id).unlink(missing_ok=True)
            raise KeyFileError(f"the key {name} was rotated by another process; list the keys to see its successor")
        return label

    def activate(self, name: str) -> Label:
        """Marks new text with a key of the ring from now on."""
        label, now, activated = self._label(name), time.time(), self._next_activation()
        if label.successor is not None:
            raise KeyFileError(f"the key {name} was rotated; its successor {label.successor} marks in its place")
        if not label.is_alive(max(now, label.starts)):
            raise KeyFileError(f"the key {name} has ended and cannot mark new text; create a new one")
        self.key(name)
        return self._change(label, activated=activated)

    def retire(self, name: str, *, ends: float | None = None) -> Label:
        """Ends the period of a key, so that it neither marks nor detects any more. Its file is kept as evidence."""
        label = self._label(name)
        now = time.time()
        ends = now if ends is None else ends
        if label.ends is not None and label.ends <= min(now, ends):
            return label  # a key that has ended is not activated again
        return self._change(label, ends=ends)

    def _change(self, label: Label, **changes: float) -> Label:
        [(column, value)] = changes.items()
        self._store.do(lambda db: db.execute(f"UPDATE keys SET {column} = ? WHERE id = ?", (value, label.id)))
        self.reload()
        return self._labels[label.id]

    def _label(self, name: str) -> Label:
        if name not in self._labels:
            raise UnknownKey(f"there is no key {name}; GET /v1/keys lists the keys")
        return self._labels[name]

    def _labelled(
        self, key: Key, tenant: str, model: str, starts: float | None = None, ends: float | None = None, activate: bool = True
    ) -> Label:  # fmt: skip
        now = time.time()
        activated = self._next_activation() if starts is None else starts
        starts = now if starts is None else starts
        _check_end(ends, starts)
        check_labels(tenant=tenant, model=model)
        return Label(key.id, tenant, model, starts, ends, None, now, activated if activate else None)

    def _next_activation(self) -> float:
        """The time of an activation now: later than those of all active keys, also where the clock was set back since."""
        now = time.time()
        return max([now, *(label.activated + 0.001 for label in self.all() if label.activated and label.is_alive(now))])

    def _save(self, key: Key) -> None:
        path = self._path(key.id)
        if not path.exists():
            key.save(path)
        self._keys[key.id] = key


def new_key(
    embedder: str | Embedder, *, decision: str = DEFAULT_DECISION, offsets: int | None = None, payload_bits: int = 0
) -> Key:
    """Makes a key for a service, whose clients may ask for a text in pieces.

    The texts of a soft key follow their conversation, so that the pieces are one sequence and asking for few tokens at a time
    does not lose the mark (docs/security.md). `offsets` is the number of its runs; with 1, every text begins with the first
    block instead. Hard keys cannot follow a conversation, and have no payloads.
    """
    follows = decision == "soft" and offsets != 1
    runs = CONVERSATION_RUNS if follows else 1
    return Key.generate(
        embedder=embedder, decision=decision, starts="conversation" if follows else "text",
        offsets=runs if offsets is None else offsets, payload_bits=payload_bits,
    )  # fmt: skip


def _successor(key: Key, embedder: str | Embedder) -> Key:
    """Makes a key with another secret and, as far as the service's embedder allows, the same parameters.

    If the service uses the embedder that `key` names, nothing else changes. If it uses another one, decision, block size,
    starts, runs and splitter are kept; span and directions are the defaults of the new embedder, and there is no
    centre, because these were measured on embeddings of the old one.
    """
    if key.from_given_arrays:
        raise KeyFileError(
            f"key {key.id} was made from given arrays, which cannot be drawn at random; create a new key and retire this one"
        )
    successor = Key.generate(
        scheme=key.scheme, embedder=embedder, splitter=key.splitter, decision=key.decision, block_size=key.block_size,
        offsets=key.offsets, run=key.run, payload_bits=key.payload_bits,
        starts="conversation" if key.follows_conversation else "text",
    )  # fmt: skip
    if successor.fingerprint == key.fingerprint:
        return key.like()
    if not isinstance(embedder, str):
        successor.vectors(embedder.dimension)
    return successor


def _check_end(ends: float | None, starts: float) -> None:
    if ends is not None and ends <= starts:
        raise AlimarkError("`ends` must be later than `starts`")


def _insert(db: Connection, label: Label) -> None:
    [row] = db.execute("SELECT COALESCE(MAX(number), 0) + 1 AS number FROM keys")
    db.insert("keys", asdict(label) | row)
