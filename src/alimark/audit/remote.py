"""Asks the detectors of other operators over HTTP whether a text carries their mark, and checks their signed answers."""

import hashlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from alimark.audit.evidence.signing import DISCOVERY, KEYS, SIGNED, check_signature, fingerprint_of_jwk, read_jws
from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError

VERDICTS = ("found", "not found", "too short to tell")
_MOST_BYTES = 2**20


class ServiceError(AlimarkError):
    """A detector of another operator cannot be asked, or its answer cannot be trusted."""


@dataclass(frozen=True)
class RemoteAnswer:
    """What the detector at `service` says about a text; `error` where it has no answer that can be trusted.

    `operator` is what the service says about itself; `signed` is its answer as a compact JWS, for `alimark verify`.
    """

    service: str
    operator: str = ""
    verdict: str = ""
    false_positive_rate: float | None = None
    signed: str = ""
    error: str = ""


class RemoteDetector:
    """Asks the detectors of several services.

    Args:
        services: The addresses of services, or a dictionary of addresses with the token for each (None where it needs none).
        seconds: How long each service may take.

    Example:
        >>> [answer] = RemoteDetector(["http://127.0.0.1:9"]).detect("The lamp went out.")
        >>> answer.verdict, answer.error.split(" (")[0]
        ('', 'http://127.0.0.1:9 does not answer')
    """

    def __init__(self, services: Sequence[str] | Mapping[str, str | None], *, seconds: float = 60.0) -> None:
        given = services if isinstance(services, Mapping) else dict.fromkeys(services)
        self._tokens = {_checked(address, token): token for address, token in given.items()}
        self._seconds = seconds

    def detect(self, text: str) -> list[RemoteAnswer]:
        """Returns the answer of each service, in their order; a service that is down has an answer with `error`."""
        late = f"no answer within {self._seconds:g} s"
        answers = {
            service: RemoteAnswer(service, error=f"{service} gave {late}; try again later") for service in self._tokens
        }

        def ask(service: str) -> None:
            try:
                answers[service] = _ask(service, self._tokens[service], text, self._seconds)
            except ServiceError as error:
                answers[service] = RemoteAnswer(service, error=str(error))

        # Threads that a program need not wait for, so that a service that sends a byte now and then cannot hold it up.
        threads = [threading.Thread(target=ask, args=(service,), daemon=True) for service in self._tokens]
        ends = time.monotonic() + self._seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return list(answers.values())


def signers_of(service: str) -> list[str]:
    """The fingerprints of the keys that a service signs its answers with, which it lists at its address."""
    signers = []
    with suppress(LookupError, TypeError):  # no list of keys
        for key in _parsed(_get(_checked(service, None) + KEYS, None, None, 30.0))["keys"]:
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a key for something else
                signers.append(fingerprint_of_jwk(key))
    if not signers:
        raise ServiceError(f"{service} lists no keys at {KEYS} that alimark can use; check the address")
    return signers


def _ask(service: str, token: str | None, text: str, seconds: float) -> RemoteAnswer:
    try:
        about = _parsed(_get(service + DISCOVERY, None, None, seconds))
        path, operator = about["detector"]["verdict"], _printable(about["operator"])
    except (LookupError, TypeError):
        raise ServiceError(f"{service} does not say at {DISCOVERY} how it is asked; ask its operator") from None
    if not isinstance(path, str) or not path.startswith("/"):
        raise ServiceError(f"{service} names a detector at another address, which is not asked; ask its operator")
    signed = _get(service + path, token, json.dumps({"input": text}).encode(), seconds).decode("ascii", "replace")
    answer: JsonObject = read_jws(signed) or {}
    if check_signature(answer) not in signers_of(service):
        raise ServiceError(f"{service} gave an answer that is not signed by a key that it lists; do not rely on it")
    if answer.get("text_sha256") != hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest():
        raise ServiceError(f"{service} gave the answer to another text; do not rely on it")
    verdict, rate = answer.get("verdict"), answer.get("false_positive_rate")
    if verdict not in VERDICTS or not isinstance(rate, float):
        raise ServiceError(f"{service} gave an answer that this release does not know; update alimark")
    return RemoteAnswer(service, operator, verdict, rate, signed)


def _checked(address: str, token: str | None) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc:
        raise ServiceError(f"{address!r} is not the address of a service; an example is https://detector.example")
    if token and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ServiceError(f"the token for {address} would be sent unencrypted; use https")
    return address.rstrip("/")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token and the text are meant for the address that was named."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


def _get(url: str, token: str | None, body: bytes | None, seconds: float) -> bytes:
    """The body of an answer with status 200; a request with a body asks for a signed answer."""
    headers = {} if body is None else {"Content-Type": "application/json", "Accept": SIGNED}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    service = url.partition("/.well-known/")[0]
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds) as answer:
            content: bytes = answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise ServiceError(f"{url} answered with status {error.code}: {_message(error)}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceError(
            f"{service} does not answer ({_printable(error)}); check the address, or try again later"
        ) from None
    return content


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return _printable(_parsed(error.read(_MOST_BYTES))["error"]["message"])
    except (OSError, http.client.HTTPException, LookupError, TypeError):
        return _printable(error.reason)


def _parsed(content: bytes) -> Any:
    """The value of JSON; None for anything else."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _printable(text: object) -> str:
    """What a service says about itself, without what would command a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:300])
