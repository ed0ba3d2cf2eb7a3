"""The record of every marked text and every detection: hashes and results, and the text itself only with `keep_text`."""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.errors import AlimarkError
from alimark.serve.auth import Token, sha256
from alimark.serve.database import Connection, Job, Row, Store

_PAGE = 1000
MAX_CLOCK_STEP = 30.0
"""Days that may pass between two deletions of old records. A clock that is later than that is thought to be wrong."""


@dataclass(frozen=True)
class Record:
    """The record of one marked text or one detection."""

    kind: str
    """`generate`, `rewrite` or `detect`."""
    who: str
    """The id of the token."""
    tenant: str
    key_id: str
    text_sha256: str
    statistic: float | None
    """The raw score of a detection, or the share of the key's bits that a marked text carries."""
    p_value: float | None = None
    details: JsonObject = field(default_factory=dict)
    text: str | None = None
    id: str = field(default_factory=lambda: "re" + secrets.token_hex(12))
    at: float = field(default_factory=time.time)


def of_detection(detection: AlignedDetection, text: str, token: Token) -> Record:
    """Returns the record of a detection."""
    details = {
        "score": detection.score, "sentences": len(detection.sentences), "keys_tried": detection.keys_tried,
        "draws": detection.draws, "search": detection.settings.search,
    }  # fmt: skip
    if detection.payload:
        details |= {"payload": detection.payload.value, "payload_confidence": detection.payload.confidence}
    return Record(
        "detect", token.id, token.tenant, detection.key_id, detection.text_sha256, detection.raw, detection.p_value,
        details, text,
    )  # fmt: skip


def of_text(
    kind: str, text: str, key_id: str, matches: Sequence[int], block_size: int, token: Token,
    payload: int | None = None, p_value: float | None = None, **details: str,
) -> Record:  # fmt: skip
    """Returns the record of a text that the service marked; the p-value is that of its own detector."""
    bits = block_size * len(matches)
    share = sum(matches) / bits if bits else None
    content: JsonObject = {**details, "sentences": len(matches)}
    if payload is not None:
        content["payload"] = payload
    return Record(kind, token.id, token.tenant, key_id, sha256(text), share, p_value, content, text)


class RecordLog:
    """The records in the database."""

    def __init__(self, store: Store, *, keep_text: bool = False) -> None:
        self._store, self._keep_text = store, keep_text

    def writing(self, records: Sequence[Record]) -> Job[None]:
        """Returns a job that writes records; a record whose id exists already is not changed."""
        rows = [
            asdict(record) | {"details": json.dumps(record.details), "text": self._storable(record.text)}
            for record in records
        ]

        def job(connection: Connection) -> None:
            for row in rows:
                connection.insert("records", row)

        return job

    def _storable(self, text: str | None) -> str | None:
        # PostgreSQL cannot store NUL. The hash in the record is that of the original text.
        if text is None or not self._keep_text:
            return None
        return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()

    def probe(self, connection: Connection) -> None:
        """A job that writes a record and deletes it, which fails where records cannot be written."""
        record = Record("probe", "", "", "", "", None)
        self.writing([record])(connection)
        connection.execute("DELETE FROM records WHERE id = ?", (record.id,))

    def export(self, since: float = 0.0) -> Iterator[str]:
        """Yields all records since a time as JSONL, oldest first, one page at a time."""
        statement = f"SELECT * FROM records WHERE number > ? AND at >= ? ORDER BY number LIMIT {_PAGE}"
        last = 0
        while rows := self._store.do(lambda db: db.execute(statement, (last, since))):  # noqa: B023 - `do` waits
            yield "".join(_line(row) for row in rows)
            last = rows[-1]["number"]

    def prune(self, days: float, *, clock_is_right: bool = False) -> int:
        """Deletes records that are older than `days` and returns their number.

        Without `clock_is_right` it refuses where the clock is more than `MAX_CLOCK_STEP` days later than at the last deletion
        or, before the first one, than the newest record.
        """
        now = time.time()
        before = now - days * 86400

        def job(connection: Connection) -> int:
            [row] = connection.execute(
                "SELECT COALESCE((SELECT seen FROM clock), (SELECT MAX(at) FROM records)) AS seen"
            )
            step = 0.0 if row["seen"] is None else (now - row["seen"]) / 86400
            if step > MAX_CLOCK_STEP and not clock_is_right:
                raise AlimarkError(
                    f"the clock is {step:,.0f} days later than when it was last read, so no record was deleted; correct it, or "
                    f"if it is right, run: alimark serve prune --days {days:g} --clock-is-right"
                )
            connection.execute("DELETE FROM clock")
            connection.execute("INSERT INTO clock (seen) VALUES (?)", (now,))
            [row] = connection.execute("SELECT COUNT(*) AS old FROM records WHERE at < ?", (before,))
            connection.execute("DELETE FROM records WHERE at < ?", (before,))
            return int(row["old"])

        return self._store.do(job)


def _line(row: Row) -> str:
    """Returns a row of the table as a line of JSONL."""
    content = {name: value for name, value in row.items() if value is not None and name != "number"}
    return json.dumps(content | {"details": json.loads(row["details"])}, ensure_ascii=False) + "\n"
