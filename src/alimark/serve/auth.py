"""Bearer tokens with roles, and the rate and concurrency limits of each token.

The database holds only hashes of the tokens. A token has 256 random bits, so SHA-256 is enough: it cannot be guessed from its
hash, and no slow password hash is needed.
"""

import hashlib
import ipaddress
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, get_args

from alimark.errors import AlimarkError
from alimark.serve.database import Store

Role = Literal["generate", "detect", "verdict", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""No role includes another: an administrator of keys and tokens need not be able to read texts, and vice versa."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@ -]{0,99}|")
"""The allowed form of a name, a tenant or the model of a key; it may be empty."""


def check_labels(**labels: str) -> None:
    """Raises an AlimarkError that names the first field whose value does not have the form `LABEL`."""
    for name, value in labels.items():
        if not LABEL.fullmatch(value):
            raise AlimarkError(
                f"the {name} may have at most 100 characters, must start with a letter or digit, and may contain letters, "
                "digits, spaces and . _ : / @ -"
            )


@dataclass(frozen=True)
class Token:
    """What the service knows about a token; the secret is not part of it."""

    id: str
    roles: tuple[Role, ...]
    tenant: str
    """Empty for no tenant: such a token writes with keys that have no tenant, and detects with the keys of all tenants."""
    name: str
    created: float


PUBLIC = Token("public", ("verdict",), "", "", 0.0)
"""All requests without a token to a public detector, together."""
_PUBLIC_CLIENTS = 4096


def public_client(address: str) -> Token:
    """What stands in for the token of a client that has none: one of 4,096, chosen by its address in a way nobody can foresee.

    So clients are counted in bounded memory, and the log holds no addresses. An IPv6 client may use its whole /64.
    """
    try:
        number = ipaddress.ip_address(address)
        place = hash(str(number) if number.version == 4 else str(int(number) >> 64))
    except ValueError:  # no address, as over a socket of this machine
        place = 0
    return replace(PUBLIC, id=f"public-{place % _PUBLIC_CLIENTS}")


@dataclass
class _Use:
    """The token bucket of the rate limit and the number of requests in progress of a token."""

    level: float
    at: float
    running: int = 0


class Tokens:
    """The active tokens of the database, held in memory; `reload` reads the changes of other processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_hash: dict[str, Token] = {}
        self.reload()

    def reload(self) -> None:
        """Reads all active tokens from the database."""
        rows = self._store.do(lambda db: db.execute("SELECT * FROM tokens WHERE revoked IS NULL"))
        self._by_hash = {
            row["hash"]: Token(row["id"], tuple(row["roles"].split()), row["tenant"], row["name"], row["created"])
            for row in rows
        }

    def find(self, secret: str) -> Token | None:
        """Returns the active token with this secret."""
        return self._by_hash.get(sha256(secret))

    def all(self) -> list[Token]:
        """Returns all active tokens, oldest first."""
        return sorted(self._by_hash.values(), key=lambda token: token.created)

    def create(self, roles: Iterable[str], *, tenant: str = "", name: str = "") -> tuple[Token, str]:
        """Creates a token and returns it with its secret, which is not stored anywhere."""
        given = set(roles)
        wanted = tuple(role for role in ROLES if role in given)
        if not wanted or given - set(ROLES):
            raise AlimarkError(f"a token needs one or more of the roles {', '.join(ROLES)}, and no others")
        check_labels(tenant=tenant, name=name)
        secret = f"alm_{secrets.token_urlsafe(32)}"
        token = Token(f"tk{secrets.token_hex(6)}", wanted, tenant, name, time.time())
        row = asdict(token) | {"hash": sha256(secret), "roles": " ".join(token.roles)}
        self._store.do(lambda db: db.insert("tokens", row))
        self.reload()
        return token, secret

    def revoke(self, token_id: str) -> bool:
        """Revokes a token; returns False if there is no active token with this id."""

        self.reload()
        is_active = any(token.id == token_id for token in self._by_hash.values())
        statement = "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL"
        self._store.do(lambda db: db.execute(statement, (time.time(), token_id)))
        self.reload()
        return is_active


def sha256(text: str) -> str:
    """Returns the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class Allowance:
    """The rate and concurrency limits of each token, counted in this process only."""

    rate: float
    burst: int
    concurrency: int
    _uses: dict[str, _Use] = field(default_factory=dict)
    _today: int = 0
    _spent: Counter[str] = field(default_factory=Counter)

    def enter(self, token: Token) -> tuple[str, int] | None:
        """Starts counting a request, which must call `leave`; or says why it is rejected, and for how many seconds."""
        now = time.monotonic()
        use = self._uses.setdefault(token.id, _Use(self.burst, now))
        use.level = min(self.burst, use.level + (now - use.at) * self.rate)
        use.at = now
        if self.rate and use.level < 1:
            wait = math.ceil((1 - use.level) / self.rate)
            return (
                f"At most {self.rate:g} requests per second are allowed here. Wait {wait} s before the next request.",
                wait,
            )
        if use.running >= self.concurrency:
            return (f"There are {use.running} requests in progress, which is the limit. Wait until one has ended.", 1)
        use.level -= 1
        use.running += 1
        return None

    def spend(self, token_id: str, budget: int) -> bool:
        """Counts a text of today (UTC); returns False where the budget of a day is spent."""
        today = int(time.time() // 86400)
        if today != self._today:
            self._today, self._spent = today, Counter()
        self._spent[token_id] += 1
        return self._spent[token_id] <= budget

    def leave(self, token: Token) -> None:
        """Ends the count of a request that `enter` accepted."""
        self._uses[token.id].running -= 1
