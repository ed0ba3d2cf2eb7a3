"""Who may do what: bearer tokens, kept only as hashes, with roles; and how much of it at a time.

A token has 256 random bits, so a plain hash of it cannot be searched, and looking it up needs no slow one.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from alimark.errors import AlimarkError
from alimark.serve.database import Connection, Row, Store

Role = Literal["generate", "detect", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""None includes another: whoever makes keys and tokens need not read texts, and the other way round."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@ -]{0,99}|")
"""What a name, a tenant or a model's label may look like."""


def check_label(what: str, value: str) -> str:
    if not LABEL.fullmatch(value):
        raise AlimarkError(
            f"{what} has at most 100 letters, digits, blanks and . _ : / @ - and starts with a letter or digit"
        )
    return value


@dataclass(frozen=True)
class Token:
    """A token as it is known to the service: without itself."""

    id: str
    roles: tuple[Role, ...]
    tenant: str
    """Empty for one that stands for no tenant: it writes under keys without one, and looks for all."""
    name: str
    created: float


@dataclass
class _Use:
    """Of one token: a bucket that fills with time, and the requests in progress."""

    level: float
    at: float
    running: int = 0


@dataclass(frozen=True)
class Refusal:
    message: str
    retry_after: int


class Tokens:
    """The tokens of the database, held in memory: a token that another process made or revoked is known after `reload`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_hash: dict[str, Token] = {}
        self.reload()

    def reload(self) -> None:
        rows = self._store.do(lambda db: db.execute("SELECT * FROM tokens WHERE revoked IS NULL"))
        self._by_hash = {row["hash"]: _token(row) for row in rows}

    def find(self, secret: str) -> Token | None:
        return self._by_hash.get(_hash(secret))

    def all(self) -> list[Token]:
        return sorted(self._by_hash.values(), key=lambda token: token.created)

    def create(self, roles: Iterable[str], *, tenant: str = "", name: str = "") -> tuple[Token, str]:
        """A token and its secret, which is nowhere else."""
        wanted = tuple(role for role in ROLES if role in set(roles))
        if not wanted or set(roles) - set(ROLES):
            raise AlimarkError(f"a token has one or more of the roles {', '.join(ROLES)}")
        secret = f"alm_{secrets.token_urlsafe(32)}"
        token = Token(
            f"tk{secrets.token_hex(6)}", wanted, check_label("tenant", tenant), check_label("name", name), time.time()
        )

        def job(db: Connection) -> None:
            db.execute(
                "INSERT INTO tokens (id, hash, roles, tenant, name, created) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO NOTHING",
                (token.id, _hash(secret), " ".join(token.roles), token.tenant, token.name, token.created),
            )

        self._store.do(job)
        self.reload()
        return token, secret

    def revoke(self, token_id: str) -> bool:
        """False where there is no such token."""

        def job(db: Connection) -> bool:
            found = db.execute("SELECT id FROM tokens WHERE id = ? AND revoked IS NULL", (token_id,))
            db.execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", (time.time(), token_id))
            return bool(found)

        gone = self._store.do(job)
        self.reload()
        return gone


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Row) -> Token:
    roles = tuple(role for role in ROLES if role in row["roles"].split())
    return Token(row["id"], roles, row["tenant"], row["name"], row["created"])


@dataclass
class Allowance:
    """How often each token may ask, and how much at a time. Of this process alone."""

    rate: float
    burst: int
    concurrency: int
    _uses: dict[str, _Use] = field(default_factory=dict)

    def enter(self, token: Token) -> Refusal | None:
        """Counts a request in, or says why not; whoever is counted in must `leave`."""
        now = time.monotonic()
        use = self._uses.setdefault(token.id, _Use(self.burst, now))
        use.level = min(self.burst, use.level + (now - use.at) * self.rate)
        use.at = now
        if self.rate and use.level < 1:
            wait = math.ceil((1 - use.level) / self.rate)
            return Refusal(f"this token may send {self.rate:g} requests a second; wait {wait} s", wait)
        if use.running >= self.concurrency:
            return Refusal(f"this token has {use.running} requests in progress, which is its limit", 1)
        use.level -= 1
        use.running += 1
        return None

    def leave(self, token: Token) -> None:
        self._uses[token.id].running -= 1
