"""Requests to one HTTP address: so many at a time, tried again after faults, given up at an interrupt.

They run on an event loop in a thread of its own: whoever is interrupted hangs up, and the server stops working for him.
The key is read from the environment and shows up nowhere; errors of httpx, which hold it, never leave this module.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import email.utils
import ipaddress
import json
import os
import random
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from alimark.errors import ContextFull, LLMError, MissingExtra

T = TypeVar("T")

KEY_VARIABLES = ("ALIMARK_API_KEY", "OPENAI_API_KEY")

MOST_BYTES = 32 * 2**20
"""An answer larger than this is no answer."""

LONGEST_WAIT = 60.0
"""Seconds between two tries, whatever the server asks for."""

_RETRIED = frozenset({408, 409, 425, 429})
_FULL = re.compile(r"context[ _-]?(length|size|window)|maximum model length|max_model_len", re.IGNORECASE)
_JSON = {"Content-Type": "application/json"}


class Misshapen(Exception):
    """An answer that is not what was asked for."""


def need(holder: Any, key: str, kind: type[T]) -> T:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Misshapen(f"its {key!r} is missing or of the wrong kind")
    return value


class Refused(LLMError):
    """A request that the server understood and will not fulfil."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Fault:
    """A try that failed for a reason which may pass."""

    reason: str
    wait: float = 0.0


class Http:
    """Requests to one address: so many at a time, tried again after faults, given up at an interrupt."""

    def __init__(
        self, address: SplitResult, key: str, concurrency: int, timeout: float, retries: int, backoff: float
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingExtra("httpx", "openai") from None
        self.base = address.geturl().rstrip("/")
        self._key = key
        self._timeout = timeout
        self._tries = retries + 1
        self._backoff = backoff
        self._slots = asyncio.Semaphore(concurrency)
        # Compressed answers are not asked for: a small one could swell beyond the limit at once.
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=min(timeout, 30.0)),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            follow_redirects=False,  # the key is for this address alone
            trust_env=not _loopback(address),  # a proxy does not know this machine's own ports
        )
        ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=asyncio.run, args=(_serve(self._client, ready),), daemon=True)
        self._thread.start()
        self._loop, stop = ready.result()
        self._stop = weakref.finalize(self, _stop, self._loop, stop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, waited for in the calling thread."""
        if not self._stop.alive:
            work.close()
            raise LLMError(f"the model at {self.base} was closed; load it again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            pass
        finally:
            future.cancel()  # after an interrupt
        raise LLMError(f"the model at {self.base} was closed while in use; load it again")

    def close(self) -> None:
        self._stop()
        self._thread.join()

    async def ask(
        self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T], tries: int | None = None
    ) -> T:
        """What `read` makes of the answer."""
        tries = min(tries or self._tries, self._tries)
        fault = _Fault("")
        for number in range(tries):
            if number:
                grown = self._backoff * 2 ** (number - 1) * random.uniform(0.75, 1.25)
                await _pause(min(LONGEST_WAIT, max(grown, fault.wait)))
            outcome = await self._once(method, url, body, read)
            if not isinstance(outcome, _Fault):
                return outcome
            fault = outcome
        times = "once" if tries == 1 else f"{tries} times in a row"
        raise LLMError(
            f"{url} failed {times}, last with: {self._fit(fault.reason)}; "
            "check that the server runs and can be reached, then try again"
        )

    async def _once(self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T]) -> T | _Fault:
        import httpx

        sent = None if body is None else json.dumps(body).encode()  # unlike httpx, with half a surrogate pair, too
        try:
            async with (
                self._slots,
                asyncio.timeout(self._timeout),
                self._client.stream(method, url, content=sent, headers=_JSON) as response,
            ):
                content = await _content(response)
        except (TimeoutError, httpx.TimeoutException):
            return _Fault(f"no whole answer within {self._timeout:g} seconds")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # The error is dropped here: it holds the request, and that the key.
            return _Fault(f"{type(error).__name__}: {error}")
        if content is None:
            raise LLMError(f"{url} answered with more than {MOST_BYTES >> 20} MiB; that is no language model's answer")
        if response.is_success:
            return _understood(content, read)
        return self._refused(url, response.status_code, response.headers, content)

    def _refused(self, url: str, status: int, headers: Any, content: bytes) -> _Fault:
        """What is to be made of an answer that is not "OK": a fault that may pass, or an error."""
        if status in (401, 403):
            # The server's own words may quote the key.
            raise LLMError(
                f"{url} refused {'the key' if self._key else 'a request without a key'} ({status}); "
                f"set {KEY_VARIABLES[0]} (or {KEY_VARIABLES[1]}) in the environment to a key that it takes"
            )
        if 300 <= status < 400:
            there = headers.get("location", "").partition("?")[0]
            raise LLMError(f"{url} points elsewhere ({status}: {self._fit(there)}); use that address")
        said = self._fit(_message(content))
        if status in _RETRIED or status >= 500:
            return _Fault(f"status {status}: {said}", _retry_after(headers.get("retry-after", "")))
        if _FULL.search(content.decode(errors="replace")):
            raise ContextFull(f"{url} has no room for this context: {said}; write fewer sentences")
        raise Refused(f"{url} refused the request ({status}): {said}", status)

    def _fit(self, text: str) -> str:
        """What a server said, fit to be shown: without the key, should it echo that, and short."""
        return short(text.replace(self._key, "[key]") if self._key else text)


async def _serve(client: Any, ready: concurrent.futures.Future[Any]) -> None:
    """The life of the event loop; work comes in from other threads."""
    stop = asyncio.Event()
    async with client:
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()


def _stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    loop.call_soon_threadsafe(stop.set)


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error ends the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _content(response: Any) -> bytes | None:
    """The body, or None where it is too large."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return None
    return b"".join(parts)


def _understood(content: bytes, read: Callable[[Any], T]) -> T | _Fault:
    try:
        return read(json.loads(content))
    except (ValueError, RecursionError):
        return _Fault("an answer that is not JSON")
    except Misshapen as error:
        return _Fault(f"an answer of the wrong shape: {error}")


def _message(content: bytes) -> str:
    """What a server says of its error, in one of the forms that are common."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = content.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return said if isinstance(said, str) else json.dumps(said)


def short(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most] + "…"


def _retry_after(value: str) -> float:
    """The seconds that a Retry-After header asks for, given as such or as a date."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def checked(base_url: str) -> SplitResult:
    """The parts of an address that holds no secret. Errors quote none of it, for it might."""
    try:
        address = urlsplit(base_url)
        good = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise LLMError("that is no address of a server; one looks like http://localhost:8000/v1")
    if "@" in address.netloc or address.query:
        raise LLMError(
            f"an address must hold no user, password, key or query; put the key into {KEY_VARIABLES[0]} in the environment"
        )
    return address._replace(fragment="")


def key_for(address: SplitResult) -> str:
    name = next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), None)
    if name is None:
        return ""
    key = os.environ[name].strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise LLMError(f"{name} holds characters that no key has; set it again")
    if address.scheme == "http" and not _loopback(address):
        warnings.warn(
            f"the key in {name} goes to {address.hostname} unencrypted; use https, or unset it if the server needs none",
            UserWarning,
            stacklevel=3,
        )
    return key


def _loopback(address: SplitResult) -> bool:
    host = address.hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
