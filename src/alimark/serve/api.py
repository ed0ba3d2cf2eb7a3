"""The endpoints outside the OpenAI protocol: detection, rewriting, attacks, files, keys, tokens, records, health, metrics."""

import asyncio
import logging
import time
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.audit.documents.kinds import KINDS
from alimark.audit.documents.reading import Document, read_document
from alimark.core._util.json_types import JsonObject
from alimark.core.detection.fields import values
from alimark.core.detection.settings import MAX_SENTENCES, DetectionSettings
from alimark.core.detection.stats.p_values import draws_for
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.rewriting.api import RewriteSettings
from alimark.errors import AlimarkError, LimitError
from alimark.serve import schemas
from alimark.serve.auth import Token
from alimark.serve.bodies import BoundedRoute
from alimark.serve.checking import Answer, Check
from alimark.serve.errors import ApiError, to_api_error
from alimark.serve.metrics import CONTENT_TYPE
from alimark.serve.records import Record, of_detection, of_text
from alimark.serve.ring import Label
from alimark.serve.service import AdminToken, AnyToken, DetectToken, GenerateToken, Service, ServiceOf, require_role

router = APIRouter(route_class=BoundedRoute)
log = logging.getLogger("alimark.serve")

KeyId = Annotated[str, Path(pattern="^ak[0-9a-f]{18}$")]
TokenId = Annotated[str, Path(pattern="^tk[0-9a-f]{12}$")]

PROOF_FPR = 0.01
"""The false-positive rate of the verdict on a rewritten text."""


# Detection


@router.post("/v1/detect", tags=["checking"], response_model=schemas.Detections, response_model_exclude_none=True)
async def detect(request: Request, body: schemas.Detect, service: ServiceOf, token: DetectToken) -> Response:
    """Tests each text for the watermark of a key. If no key ids are given, all active keys are tried.

    With the header `Accept: application/jose` the answer is signed: a compact JWS, which `alimark verify` checks.
    """
    texts = [body.input] if isinstance(body.input, str) else body.input
    most = service.settings.max_texts
    if len(texts) > most:
        message = f"The request has {len(texts)} texts, but the limit is {most}. Send several requests."
        raise ApiError(413, "too_many_texts", message, param="input")
    for text in texts:
        service.check_text(text)
    keys = service.ring.detecting(token.tenant, body.keys)
    settings = DetectionSettings(search=body.search, passage_fpr=body.fpr, draws=draws_for(body.fpr))

    def finish(check: Check, answer: Answer) -> tuple[JsonObject, Record]:
        detection, record = answer[0], of_detection(answer[0], check.text, token)
        content = values(detection, "service", body.fpr) | {"record_id": record.id}
        if body.evidence:
            content["evidence"] = detection.report(body.fpr)
            content["sentence_chances"] = [round(chance, 3) for chance in detection.sentence_chances]
        return content, record

    checks = [Check(text, tuple(keys), settings) for text in texts]
    outcomes = await service.results(service.checker.submit(token.id, checks, finish))
    if isinstance(body.input, str) and isinstance(outcomes[0], AlimarkError):
        raise outcomes[0]
    found = [outcome for outcome in outcomes if not isinstance(outcome, AlimarkError)]
    for result, _ in found:
        service.metrics.detections.labels(result["verdict"]).inc()
    await service.save([record for _, record in found])
    results = [
        {"error": to_api_error(outcome).error} if isinstance(outcome, AlimarkError) else outcome[0] for outcome in outcomes
    ]  # fmt: skip
    return service.response(request, {"fpr": body.fpr, "results": results})


_FILE = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("/v1/extract", tags=["checking"], openapi_extra={"requestBody": _FILE})
async def extract_text(
    request: Request,
    service: ServiceOf,
    token: DetectToken,
    kind: Annotated[Literal[KINDS], Query()],  # type: ignore[valid-type]
) -> Document:
    """Returns the text of a document, which is the body of the request, and what was left out or guessed."""
    work = partial(read_document, await request.body(), kind=kind, max_characters=service.settings.max_text)
    return await service.result(service.writers.run(work, token.id))


# Rewriting and attacks


@router.post("/v1/rewrite", tags=["writing"], response_model=schemas.Rewritten)
async def rewrite(body: schemas.Rewrite, service: ServiceOf, token: GenerateToken) -> JsonObject:
    """Marks an existing text: a chat model rewrites its sentences, and the rewrites that fit the key are taken.

    At the end the mark is detected. Read the sentences of `moved_most` before you publish the text.
    """
    service.check_text(body.input)
    key = service.marking_key(token, body.payload)
    await asyncio.to_thread(_check_sentences, body.input, key.splitter, service.settings.max_sentences)
    settings = RewriteSettings(body.candidates, body.closeness, body.mean_closeness)
    rewriting = await service.result(service.writers.rewrite(body.input, key, body.seed, settings, token.id))
    record = of_text(
        "rewrite", rewriting.text, rewriting.key_id, rewriting.matches, rewriting.block_size, token,
        payload=rewriting.payload, llm=rewriting.llm,
    )  # fmt: skip
    await service.save([record])
    service.metrics.written.labels("rewrite").inc()
    before, after = await service.detect_own(key, [body.input, rewriting.text], token.id)
    proof: JsonObject = {}
    if not isinstance(before, AlimarkError) and not isinstance(after, AlimarkError):  # else the detector was too busy
        verdict = str(after.verdict(PROOF_FPR))
        proof = {"verdict": verdict, "p_value": after.p_value, "p_value_before": before.p_value}
    return proof | {
        "text": rewriting.text, "key_id": rewriting.key_id, "record_id": record.id, "matches": rewriting.matches,
        "cosines": rewriting.cosines, "outcomes": [sentence.outcome for sentence in rewriting.rewritten],
        "block_size": rewriting.block_size, "payload": rewriting.payload,
        "moved_most": [asdict(sentence) for sentence in rewriting.moved_most()],
    }  # fmt: skip


@router.get("/v1/attacks", tags=["writing"])
async def attacks(service: ServiceOf, token: GenerateToken) -> list[schemas.AttackLabel]:
    """Lists the attacks of `/v1/attack` whose libraries are installed."""
    from alimark.lab.attacks import load_attack

    return [
        schemas.AttackLabel(name=name, about=about, takes_rate=name != "translate")
        for name, about in schemas.ATTACKS.items()
        if all(find_spec(library) for library, _ in load_attack(name).libraries)
    ]


@router.post("/v1/attack", tags=["writing"])
async def attack(body: schemas.AttackRequest, service: ServiceOf, token: GenerateToken) -> schemas.AttackedText:
    """Changes a text by one attack, to see how much of the watermark is left."""
    from alimark.lab.attacks import load_attack

    service.check_text(body.input)
    change = load_attack(body.name, **({} if body.name == "translate" else {"rate": body.rate}))

    def work() -> str:
        _check_sentences(body.input, DEFAULT_SPLITTER, MAX_SENTENCES)
        return change(body.input, body.seed)

    text = await service.result(service.writers.run(work, token.id))
    return schemas.AttackedText(name=body.name, text=text)


def _check_sentences(text: str, splitter_name: str, most: int) -> None:
    """Raises LimitError for a text with so many sentences that the work on it would take too long."""
    count = len(splitter(splitter_name).spans(text))
    if count > most:
        raise LimitError(f"the text has {count:,} sentences, but the limit is {most:,}; send it in parts")


# Keys. These endpoints are no coroutines, so that FastAPI runs them in threads: they wait for the database.


@router.get("/v1/keys", tags=["administration"])
def keys(service: ServiceOf, token: AdminToken) -> list[schemas.ListedKey]:
    """Lists all keys, without their secrets."""
    return [_listed(service, label) for label in service.ring.all()]


@router.post("/v1/keys", tags=["administration"], status_code=201)
def create_key(body: schemas.NewKey, service: ServiceOf, token: AdminToken) -> schemas.ListedKey:
    """Creates a key. Its secret stays in a file on the server."""
    embedder = service.embedder(service.settings.embedder)
    return _listed(service, service.ring.create(embedder, **body.model_dump()))


@router.post("/v1/keys/{key_id}/rotate", tags=["administration"], status_code=201)
def rotate_key(key_id: KeyId, body: schemas.EndOfKey, service: ServiceOf, token: AdminToken) -> schemas.ListedKey:
    """Creates the successor of a key. The old key marks no new text, and detection uses it until it ends."""
    embedder = service.embedder(service.settings.embedder)
    return _listed(service, service.ring.rotate(key_id, embedder, ends=body.ends))


@router.post("/v1/keys/{key_id}/retire", tags=["administration"])
def retire_key(key_id: KeyId, body: schemas.EndOfKey, service: ServiceOf, token: AdminToken) -> schemas.ListedKey:
    """Ends a key now, or at the time `ends`: it neither marks nor detects afterwards."""
    return _listed(service, service.ring.retire(key_id, ends=body.ends))


@router.post("/v1/keys/{key_id}/activate", tags=["administration"])
def activate_key(key_id: KeyId, service: ServiceOf, token: AdminToken) -> schemas.ListedKey:
    """Marks new text with a key from now on, in place of the tenant's other keys, which still detect."""
    return _listed(service, service.ring.activate(key_id))


def _listed(service: Service, label: Label) -> schemas.ListedKey:
    marks = service.ring.is_marking(label, service.llm.name)
    return schemas.ListedKey(**asdict(label), alive=label.is_alive(time.time()), marks=marks)


# Tokens


@router.get("/v1/token", tags=["health"])
def own_token(token: AnyToken) -> Token:
    """Returns the roles, the tenant and the name of the token that the request has."""
    return token


@router.get("/v1/tokens", tags=["administration"])
def tokens(service: ServiceOf, token: AdminToken) -> list[Token]:
    """Lists all active tokens, without their secrets."""
    return service.tokens.all()


@router.post("/v1/tokens", tags=["administration"], status_code=201)
def create_token(body: schemas.NewToken, service: ServiceOf, token: AdminToken) -> schemas.NewSecret:
    """Creates a token. Its secret is shown only in this response; the server keeps a hash."""
    created, secret = service.tokens.create(body.roles, tenant=body.tenant, name=body.name)
    return schemas.NewSecret(**asdict(created), token=secret)


@router.delete("/v1/tokens/{token_id}", tags=["administration"], status_code=204)
def revoke_token(token_id: TokenId, service: ServiceOf, token: AdminToken) -> None:
    """Revokes a token at once."""
    if token_id == token.id:
        message = (
            "A token cannot revoke itself, so that an administrator always remains. Use another administrator's token."
        )
        raise ApiError(409, "own_token", message)
    if not service.tokens.revoke(token_id):
        raise ApiError(404, "no_such_token", f"There is no token {token_id}. GET /v1/tokens lists the tokens.")


# Records


@router.get("/v1/records", tags=["administration"], response_class=StreamingResponse, responses={
    200: {"content": {"application/jsonl": {}}, "description": "JSONL: one record per line, oldest first."}
})  # fmt: skip
def records(
    service: ServiceOf, token: AdminToken, since: Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)] = 0.0
) -> Response:
    """Returns all records since a time as JSONL."""
    pages = service.records.export(since)
    first = list(islice(pages, 1))  # an error of the database is found before the response begins
    return StreamingResponse(chain(first, pages), media_type="application/jsonl")


# Health


@router.get("/healthz", tags=["health"])
async def health(service: ServiceOf) -> Response:
    """Answers with status 200 if the database can be read, else 503: whether the process lives. It needs no token."""
    lives = await service.database_answers()
    return JSONResponse({"status": "ok" if lives else "the database does not answer"}, 200 if lives else 503)


@router.get("/readyz", tags=["health"])
async def ready(service: ServiceOf) -> Response:
    """Answers with status 200 if a record can be written and a text be checked, else 503. It needs no token.

    A server that is about to stop is not ready, either.
    """
    problem = "draining" if service.draining else await service.problem()
    return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)


@router.get("/metrics", tags=["health"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, service: ServiceOf) -> Response:
    """Returns metrics for Prometheus. It needs a token with the role admin unless `open_metrics` is set."""
    if not service.settings.open_metrics:
        require_role(request, "admin")
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
