"""What is kept of every marked text and every detection: enough to prove what was said, and no text unless asked for."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alimark.detection.results import AlignedDetection
from alimark.serve.database import Connection, Job, Store

_PAGE = 1000


@dataclass(frozen=True)
class Record:
    """One line of the book."""

    kind: str
    """generate, rewrite or detect."""
    who: str
    """The id of the token."""
    tenant: str
    key_id: str
    text_sha256: str
    statistic: float | None
    """The raw score of a detection; the share of bits that a marked text carries."""
    p_value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    id: str = field(default_factory=lambda: "re" + secrets.token_hex(12))
    at: float = field(default_factory=time.time)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def of_detection(found: AlignedDetection, text: str, who: str, tenant: str) -> Record:
    details = {"score": found.score, "sentences": len(found.sentences), "keys_tried": found.keys_tried,
               "draws": found.draws, "search": found.settings.search}  # fmt: skip
    return Record("detect", who, tenant, found.key_id, found.text_sha256, found.raw, found.p_value, details, text)


def of_text(
    kind: str, text: str, key_id: str, matches: Sequence[int], block_size: int, who: str, tenant: str, **details: Any
) -> Record:
    """Of a text that was marked here."""
    bits = block_size * len(matches)
    share = sum(matches) / bits if bits else None
    return Record(kind, who, tenant, key_id, sha256(text), share, None, details | {"sentences": len(matches)}, text)


class Book:
    """The records in the database."""

    def __init__(self, store: Store, *, keep_text: bool = False) -> None:
        self._store, self._keep_text = store, keep_text

    def writing(self, records: Sequence[Record]) -> Job[None]:
        """A job that writes them; a record that is there already is left as it is."""
        kept = [one if self._keep_text else replace(one, text=None) for one in records]

        def job(connection: Connection) -> None:
            for one in kept:
                connection.execute(
                    "INSERT INTO records (id, kind, at, who, tenant, key_id, text_sha256, statistic, p_value, details, text) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                    (one.id, one.kind, one.at, one.who, one.tenant, one.key_id, one.text_sha256, one.statistic,
                     one.p_value, json.dumps(one.details), _storable(one.text)),
                )  # fmt: skip

        return job

    def page(self, after: int, since: float = 0.0) -> Job[list[dict[str, Any]]]:
        """A job that reads the next records behind number `after`, oldest first; none, and all were read."""
        return lambda connection: connection.execute(
            f"SELECT * FROM records WHERE number > ? AND at >= ? ORDER BY number LIMIT {_PAGE}", (after, since)
        )

    def export(self, since: float = 0.0) -> Iterator[str]:
        """Everything as lines of JSON, a page at a time."""
        rows = self._store.do(self.page(0, since))
        while rows:
            yield "".join(line(row) for row in rows)
            rows = self._store.do(self.page(rows[-1]["number"], since))

    def prune(self, days: float) -> int:
        """Deletes what is older than so many days; the number of records that went."""
        before = time.time() - days * 86400

        def job(connection: Connection) -> int:
            [row] = connection.execute("SELECT COUNT(*) AS old FROM records WHERE at < ?", (before,))
            connection.execute("DELETE FROM records WHERE at < ?", (before,))
            return int(row["old"])

        return self._store.do(job)


def line(row: dict[str, Any]) -> str:
    content = {name: value for name, value in row.items() if value is not None and name != "number"}
    return json.dumps(content | {"details": json.loads(row["details"])}, ensure_ascii=False) + "\n"


def _storable(text: str | None) -> str | None:
    # PostgreSQL keeps no NUL; the hash is that of the text as it came.
    return None if text is None else text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
