"""The state that all endpoints share: settings, database, tokens, keys, models and queues."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request, Response

from alimark.audit.evidence.signing import SIGNED, SigningKey, signing_key_path
from alimark.audit.evidence.statement import ANSWER_FORMAT
from alimark.core._util.json_types import JsonObject
from alimark.core._util.work import TimedFuture
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.generation.steering import steerable, token_vectors
from alimark.core.keys.key import Key
from alimark.core.llm import load_llm
from alimark.core.llm.base import LLM, ForwardsRequests
from alimark.errors import AlimarkError
from alimark.serve.auth import PUBLIC, Allowance, Role, Token, Tokens
from alimark.serve.checking import Check, Checker
from alimark.serve.database import DatabaseError, Store
from alimark.serve.errors import AnyTextResponse, ApiError
from alimark.serve.metrics import Metrics
from alimark.serve.pace import Pace
from alimark.serve.places import QueueFull
from alimark.serve.records import Record, RecordLog
from alimark.serve.ring import NoKey, Ring
from alimark.serve.settings import Settings
from alimark.serve.writing import Writers

Result = TypeVar("Result")

log = logging.getLogger("alimark.serve")

_REFRESH = 5.0
"""Seconds between reading the tokens and keys that other processes changed."""
_PRUNE = 3600.0
"""Seconds between deletions of old records."""
_SAVE_SECONDS = 30.0
"""The longest that a request waits for its record, as long as SQLite waits for a lock."""
HEALTH_SECONDS = 5.0
"""The time within which each part of a health check has to answer: a locked database must not make the check hang."""
_HEALTH_KEPT = 2.0
"""Seconds for which the answer of the readiness check is used again, because anyone may ask without a token."""
_OWN_CHECK = 3.0
"""CPU seconds that the detection of a text that was just written may take at most."""
_HEALTH_TEXT = "The keeper lit the lamp before dinner. A visitor lost an old map on Friday."


class Service:
    """The shared state of one app, which closes it at its end. `llm` and `embedder` load models by their names."""

    def __init__(
        self, settings: Settings, *, llm: Callable[[str], LLM] = load_llm, embedder: Callable[[str], Embedder] = load_embedder
    ) -> None:  # fmt: skip
        self.settings = settings
        self.draining = False
        """Whether the service is about to stop: it still answers requests but says that it is not ready for more."""
        self._checking, self._problem, self._checked = asyncio.Lock(), "", float("-inf")
        self._load_llm, self._load_embedder = llm, embedder
        self._loading, self._loading_llm = threading.Lock(), threading.Lock()
        self._embedders: dict[str, Embedder] = {}
        self.store = Store(settings.database_url)
        self.tokens = Tokens(self.store)
        self.ring = Ring(settings.keys, self.store)
        self.records = RecordLog(self.store, keep_text=settings.keep_text)
        self.allowance = Allowance(settings.rate, settings.burst, settings.concurrency)
        self.clients = Allowance(settings.public_rate / 10, burst=5, concurrency=1)
        self.public = Allowance(settings.public_rate, burst=20, concurrency=4)
        """Limits of single clients of a public detector, and of all of them together, so that others are served meanwhile."""
        self.signing_key = SigningKey.of_installation(signing_key_path(settings.data))
        self.metrics, self.pace = Metrics(), Pace()
        self.llm = llm(settings.llm)
        self._llms = {settings.llm: self.llm}
        if settings.unmarkable == "pass-on" and not isinstance(self.llm, ForwardsRequests):
            raise AlimarkError(
                f"the engine of {self.llm.name} cannot answer requests by itself; set unmarkable to refuse, or use an engine "
                "with an OpenAI-compatible server (llama.cpp, or an address openai:http://...)"
            )
        self.checker = Checker(self.embedder_of, most=settings.detect_queue, max_work=settings.max_work)
        self.writers = Writers(self.llm, self._rewriter, self.embedder_of, most=settings.write_queue)
        self.metrics.watch("alimark_texts_waiting", "Texts that wait for detection.", lambda: self.checker.under_way)
        self.metrics.watch("alimark_texts_under_way", "Texts being written.", lambda: self.writers.under_way)
        self.metrics.watch(
            "alimark_marking_keys", "Keys that mark new text.", lambda: len(self.ring.in_use(self.llm.name))
        )
        self.metrics.watch("alimark_draining", "1 while the service is about to stop.", lambda: self.draining)

    def embedder(self, name: str) -> Embedder:
        """Returns the embedder with this name, which is loaded once."""
        with self._loading:
            if name not in self._embedders:
                self._embedders[name] = self._load_embedder(name)
            return self._embedders[name]

    def embedder_of(self, key: Key) -> Embedder:
        """Returns the embedder of a key and checks that it is the one that the key was made for."""
        embedder = self.embedder(key.embedder)
        key.check(embedder)
        return embedder

    def marking_key(self, token: Token, payload: int | None) -> Key:
        """Returns the key that marks a text of a token, with the payload of the settings or else that of the request."""
        key = self.ring.marking(token.tenant, self.llm.name)
        labels = (token.id, token.tenant, self.llm.name)
        fixed = next((self.settings.payloads[label] for label in labels if label in self.settings.payloads), None)
        if fixed is not None and key.payload_bits:
            if payload not in (None, fixed):
                message = "The payload of this token's texts is set by the operator. Leave `payload` out."
                raise ApiError(403, "payload_is_set", message, param="payload")
            payload = fixed
        try:
            return key.carrying(payload)
        except AlimarkError as error:
            if fixed is not None:
                message = "The payload that the operator set for this token does not fit the key. Ask the operator."
                log.warning("a payload of the settings cannot be used", extra={"token": token.id, "reason": str(error)})
                raise ApiError(409, "payload", message) from None
            raise ApiError(422, "payload", f"The payload cannot be used: {error}.", param="payload") from None

    async def detect_own(self, key: Key, texts: Sequence[str], owner: str) -> list[AlignedDetection | AlimarkError]:
        """Detects texts that were just written under a key, as /v1/detect does; an error for one that is too much work now."""
        checks = [Check(text, (key,), DetectionSettings(), _OWN_CHECK) for text in texts]
        try:
            return await self.results(self.checker.submit(owner, checks, lambda _, answer: answer[0]))
        except (AlimarkError, ApiError) as error:
            return [AlimarkError(str(error))] * len(texts)

    def _rewriter(self) -> LLM:
        name = self.settings.rewrite_llm or self.settings.llm
        with self._loading_llm:
            if name not in self._llms:
                self._llms[name] = self._load_llm(name)
            return self._llms[name]

    def warm_up(self) -> None:
        """Compiles the detection kernels, loads the embedder and computes what steers, so that no request waits for it."""
        from alimark.core.detection.pipeline import warm_up

        key = Key.generate(embedder=self.embedder(self.settings.embedder))
        warm_up(key, DetectionSettings())
        if steerable(self.llm, key):
            token_vectors(self.llm, key)

    async def refresh_forever(self) -> None:
        """Reads regularly what other processes changed, and deletes records that are too old."""
        loop, pruned = asyncio.get_running_loop(), float("-inf")
        while True:
            try:
                if self.settings.retention_days and loop.time() - pruned > _PRUNE:
                    pruned = loop.time()
                    await self._prune()
                await asyncio.sleep(_REFRESH)
                await asyncio.to_thread(self.tokens.reload)
                await asyncio.to_thread(self.ring.reload)
            except AlimarkError:  # until the database answers again, the tokens and keys in memory are used
                log.warning("the database does not answer")
                await asyncio.sleep(_REFRESH)

    async def _prune(self) -> None:
        try:
            await asyncio.to_thread(self.records.prune, self.settings.retention_days)
        except DatabaseError:
            raise
        except AlimarkError as error:  # the clock may be wrong
            log.warning("old records were not deleted", extra={"reason": str(error)})

    async def database_answers(self) -> bool:
        """Returns whether the database can be read."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await asyncio.wrap_future(self.store.submit(lambda db: db.execute("SELECT 1 AS number")))
        except (AlimarkError, TimeoutError):
            return False
        return True

    async def problem(self) -> str:
        """Returns why the service is not ready, in words that tell nothing about keys or texts; empty if all works.

        Requests that arrive during a check share its answer.
        """
        async with self._checking:
            if time.monotonic() - self._checked >= _HEALTH_KEPT:
                self._problem, self._checked = await self._find_problem(), time.monotonic()
        return self._problem

    async def _find_problem(self) -> str:
        problem = "the database does not accept records"
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await asyncio.wrap_future(self.store.submit(self.records.probe))
            problem = "detection does not work"
            async with asyncio.timeout(HEALTH_SECONDS):
                check = Check(_HEALTH_TEXT, (self.ring.detecting("")[0],), DetectionSettings(draws=100))
                [future] = self.checker.submit("", [check], lambda _, answer: answer)
                await asyncio.wrap_future(future)
        except (QueueFull, NoKey):
            return ""  # the service is busy, or waits for its first key
        except Exception:  # any failure, a timeout as well, means that requests fail
            return problem
        return ""

    async def save(self, records: Sequence[Record]) -> None:
        """Writes records and returns after the commit; a response is sent only then."""
        future = self.store.submit(self.records.writing(records))
        try:
            async with asyncio.timeout(_SAVE_SECONDS):
                await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            future.cancel()  # its result would not be sent
            message = f"the database has not answered for {_SAVE_SECONDS:g} s; try again later"
            raise DatabaseError(message) from None

    async def result(self, future: TimedFuture[Result]) -> Result:
        """Waits for a future, at most as long as a request may take."""
        return (await self.all_results([future]))[0]

    async def all_results(self, futures: Sequence[TimedFuture[Result]]) -> list[Result]:
        """Waits for futures, at most as long as a request may take, and raises the first of their errors."""
        outcomes = await self.results(futures)
        for outcome in outcomes:
            if isinstance(outcome, AlimarkError):
                raise outcome
        return cast(list[Result], outcomes)

    async def results(self, futures: Sequence[TimedFuture[Result]]) -> list[Result | AlimarkError]:
        """Waits for futures, at most as long as a request may take, and cancels them if that is too short.

        An error that the request may cause is the outcome of its future; others are raised.
        """
        try:
            async with asyncio.timeout(self.settings.timeout):
                waits = [asyncio.wrap_future(future) for future in futures]
                outcomes = await asyncio.gather(*waits, return_exceptions=True)
        except TimeoutError:
            raise self.timed_out(futures) from None
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, AlimarkError):
                raise outcome
        return cast(list[Result | AlimarkError], outcomes)

    def timed_out(self, futures: Sequence[TimedFuture[Result]]) -> ApiError:
        """Returns the error for a request that took too long: because it asks for much, or because others were served."""
        most = self.settings.timeout
        if all(future.worked > most / 2 for future in futures if future.cancelled() or not future.done()):
            message = f"The request took longer than {most:g} s and was stopped. Ask for less per request."
            return ApiError(504, "timeout", message, retry_after=10)
        self.metrics.refused.labels("busy").inc()
        message = f"The service is busy: the request waited for most of {most:g} s and was stopped. Try again later."
        return ApiError(503, "busy", message, retry_after=10)

    def check_model(self, name: str) -> None:
        """Raises an ApiError if a request names another model than the one of this service; it may leave the name out."""
        if name not in ("", self.llm.name):
            message = f"The only model of this service is {self.llm.name}. Use this name, or leave out `model`."
            raise ApiError(404, "model_not_found", message, param="model")

    def spend(self, token: Token) -> None:
        """Counts a text of the role verdict; raises an ApiError where the budget of the token, or of the public, is spent."""
        settings, public = self.settings, token.id.startswith("public-")
        allowance = self.clients if public else self.allowance
        spent = not allowance.spend(token.id, settings.verdict_budget)
        if spent or (public and not self.public.spend(PUBLIC.id, settings.public_budget)):
            self.metrics.refused.labels("budget").inc()
            message = (
                "The detector's texts of today (UTC) are used up. Try again tomorrow, or ask the operator for a token."
            )
            raise ApiError(429, "budget", message, retry_after=86400 - int(time.time()) % 86400)

    def check_text(self, text: str, what: str = "text", most: int | None = None) -> None:
        """Raises an ApiError if a text is empty or too long; `what` names it in the message."""
        most = most or self.settings.max_text
        if len(text) > most:
            self.metrics.refused.labels("text").inc()
            message = f"The {what} has {len(text):,} characters, but the limit is {most:,}. Send it in parts."
            raise ApiError(413, "text_too_long", message)
        if not text.strip():
            raise ApiError(422, "empty", f"The {what} is empty. Send at least one word.")

    def response(self, request: Request, content: JsonObject) -> Response:
        """Returns an answer of detection as JSON, or signed as a compact JWS where the request accepts only that."""
        if request.headers.get("accept", "").strip().lower() != SIGNED:
            return AnyTextResponse(content)
        head = {
            "format": ANSWER_FORMAT, "version": 1, "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "alimark": metadata.version("alimark"), "service": self.settings.operator or "a service without a name",
        }  # fmt: skip
        return Response(self.signing_key.sign(head | content)["jws"], media_type=SIGNED)

    def close(self) -> None:
        """Stops the queues and closes the database."""
        self.checker.close()
        self.writers.close()
        self.store.close()


# Parameters of endpoints. They are coroutines, because FastAPI would call functions in other threads.


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def require_role(request: Request, *roles: Role) -> Token:
    """Returns the token of a request, which the gate has found; raises an ApiError if it does not have the roles."""
    token: Token = request.state.info.token
    for role in set(roles) - set(token.roles):
        message = (
            f"This endpoint needs a token with the role {role}. The operator makes one with the command "
            f"`alimark serve token --role {role}`."
        )
        raise ApiError(403, "wrong_role", message)
    return token


def _token_with(*roles: Role) -> Any:
    async def check(request: Request) -> Token:
        return require_role(request, *roles)

    return Depends(check)


ServiceOf = Annotated[Service, Depends(_service)]
AnyToken = Annotated[Token, _token_with()]
GenerateToken = Annotated[Token, _token_with("generate")]
VerdictToken = Annotated[Token, _token_with("verdict")]
DetectToken = Annotated[Token, _token_with("detect")]
AdminToken = Annotated[Token, _token_with("admin")]
