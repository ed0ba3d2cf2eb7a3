"""HTTP requests to one server: limited in number, retried after temporary faults, cancelled by an interrupt.

They run on an event loop in a background thread. An interrupted call closes its connection, so that the server stops working on
it. The API key is read from the environment and appears in no message; exceptions of httpx, which hold it, do not leave this
module.
"""

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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from alimark.core._util.work import when_cancelled
from alimark.errors import ContextFull, LLMError, MissingExtra

T = TypeVar("T")

KEY_VARIABLES = ("ALIMARK_API_KEY", "OPENAI_API_KEY")

MOST_BYTES = 32 * 2**20  # a larger answer is refused

LONGEST_WAIT = 60.0  # the most seconds between two tries, whatever the server asks for

_RETRIED = frozenset({408, 409, 425, 429})
_FULL = re.compile(r"context[ _-]?(length|size|window)|maximum model length|max_model_len", re.IGNORECASE)
_JSON = {"Content-Type": "application/json"}


class MalformedAnswer(Exception):
    """An answer of the server that lacks a field or has one of the wrong type."""


def required(answer: Any, key: str, kind: type[T]) -> T:
    """The value of a field that must be there and have this type."""
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedAnswer(f"its {key!r} is missing or of the wrong kind")
    return value


class Refused(LLMError):
    """The server refused a request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Fault:
    """A try that failed for a reason that may be temporary. `wait`: seconds that the server asks to wait."""

    reason: str
    wait: float = 0.0


class Http:
    """Requests to one server, at most `concurrency` at a time, each tried up to `retries` times more after a fault."""

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
        # Compressed answers are not accepted: a small one could expand beyond the size limit.
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=min(timeout, 30.0)),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            follow_redirects=False,  # the key must not be sent to another address
            trust_env=not _loopback(address),  # a proxy cannot reach this machine's own ports
        )
        ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=asyncio.run, args=(_serve(self._client, ready),), daemon=True)
        self._thread.start()
        self._loop, stop = ready.result()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, stop.set)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and wait for its result in the calling thread."""
        if not self._stop.alive:
            work.close()
            raise LLMError(f"the model at {self.base} was closed; load it again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        when_cancelled(future.cancel)  # the connections are closed, so that the server stops working on the answers
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            pass
        finally:
            future.cancel()  # after an interrupt
        if not self._stop.alive:
            raise LLMError(f"the model at {self.base} was closed while in use; load it again")
        raise LLMError("the request was cancelled")

    def close(self) -> None:
        """End the event loop; requests under way fail."""
        self._stop()
        self._thread.join()

    async def ask(
        self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T], tries: int | None = None
    ) -> T:
        """Send a request, again after temporary faults, and parse the JSON of the answer with `read`."""
        tries = min(tries or self._tries, self._tries)
        fault = _Fault("")
        for number in range(tries):
            if number:
                backoff = self._backoff * 2 ** (number - 1) * random.uniform(0.75, 1.25)
                await _pause(min(LONGEST_WAIT, max(backoff, fault.wait)))
            outcome = await self._once(method, url, body, read)
            if not isinstance(outcome, _Fault):
                return outcome
            fault = outcome
        times = "once" if tries == 1 else f"{tries} times in a row"
        raise LLMError(
            f"{url} failed {times}, last with: {self._shown(fault.reason)}; "
            "check that the server runs and can be reached, then try again"
        )

    def events(self, url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer as they arrive. There is no other try: some may have been used already."""
        import httpx

        try:
            with httpx.stream(
                "POST", url, content=json.dumps(body).encode(), headers={**self._client.headers, **_JSON},
                timeout=self._timeout, trust_env=self._client.trust_env,
            ) as response:  # fmt: skip
                if not response.is_success:
                    raise LLMError(self._failure(url, response.status_code, response.headers, response.read()).reason)
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line[6:])
        except (httpx.HTTPError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise LLMError(f"{url} broke off its answer: {self._shown(reason)}; try again") from None

    async def _once(self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[Any], T]) -> T | _Fault:
        import httpx

        sent = None if body is None else json.dumps(body).encode()  # unlike httpx, this accepts half a surrogate pair
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
            # The error itself is dropped: it holds the request, which holds the key.
            return _Fault(f"{type(error).__name__}: {error}")
        if content is None:
            raise LLMError(
                f"{url} answered with more than {MOST_BYTES >> 20} MiB; check that the address is that of a language model"
            )
        if response.is_success:
            return _parsed(content, read)
        return self._failure(url, response.status_code, response.headers, content)

    def _failure(self, url: str, status: int, headers: Any, content: bytes) -> _Fault:
        """The fault of an answer with an error status; raises if another try would not help."""
        if status in (401, 403):
            # The server's message is not shown: it may quote the key.
            raise LLMError(
                f"{url} refused {'the key' if self._key else 'a request without a key'} ({status}); "
                f"set {KEY_VARIABLES[0]} (or {KEY_VARIABLES[1]}) in the environment to a key that it takes"
            )
        if 300 <= status < 400:
            there = headers.get("location", "").partition("?")[0]
            raise LLMError(f"{url} redirects ({status}) to {self._shown(there)}; use that address")
        message = self._shown(_message(content))
        if status in _RETRIED or status >= 500:
            return _Fault(f"status {status}: {message}", _retry_after(headers.get("retry-after", "")))
        if _FULL.search(content.decode(errors="replace")):
            raise ContextFull(f"{url} has no room for this context: {message}; write fewer sentences")
        raise Refused(f"{url} refused the request ({status}): {message}", status)

    def _shown(self, text: str) -> str:
        """A server's text as errors show it: shortened, and without the key."""
        return short(text.replace(self._key, "[key]") if self._key else text)


async def _serve(client: Any, ready: concurrent.futures.Future[Any]) -> None:
    """Keep the event loop running until it is stopped; other threads submit coroutines to it."""
    stop = asyncio.Event()
    async with client:
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first error cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _content(response: Any) -> bytes | None:
    """The body, or None if it is too large."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return None
    return b"".join(parts)


def _parsed(content: bytes, read: Callable[[Any], T]) -> T | _Fault:
    try:
        return read(json.loads(content))
    except (ValueError, RecursionError):
        return _Fault("an answer that is not JSON")
    except MalformedAnswer as error:
        return _Fault(f"an answer of the wrong shape: {error}")


def _message(content: bytes) -> str:
    """The message in an error answer, in one of the common formats."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = content.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    return message if isinstance(message, str) else json.dumps(message)


def short(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most] + "…"


def _retry_after(value: str) -> float:
    """The seconds that a Retry-After header asks for; its value is a number of seconds or a date."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def parse_address(base_url: str) -> SplitResult:
    """Parse a server's address and refuse one that holds a secret. Error messages do not quote it, because it may hold one."""
    try:
        address = urlsplit(base_url)
        good = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise LLMError("that is not the address of a server; an example is http://localhost:8000/v1")
    if "@" in address.netloc or address.query:
        raise LLMError(
            f"an address must hold no user, password, key or query; put the key into {KEY_VARIABLES[0]} in the environment"
        )
    return address._replace(fragment="")


def api_key(address: SplitResult) -> str:
    """The API key from the environment, or an empty string; warns if it would be sent unencrypted."""
    name = next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), None)
    if name is None:
        return ""
    key = os.environ[name].strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise LLMError(f"{name} holds characters that an API key cannot have; set it again")
    if address.scheme == "http" and not _loopback(address):
        warnings.warn(
            f"the key in {name} is sent to {address.hostname} unencrypted; "
            "use https, or unset the variable if the server needs no key",
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
