"""The service's own endpoints: detect, rewrite, attack, read files, keys, tokens, records, health, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.detection.results import AlignedDetection, best_first
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import draws_for
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.rewriting.api import RewriteSettings
from alimark.serve import schemas
from alimark.serve.auth import Token
from alimark.serve.checking import BEST_KEYS, Answer, Check
from alimark.serve.extract import KINDS, extract
from alimark.serve.gate import Refused, refusal
from alimark.serve.metrics import CONTENT_TYPE
from alimark.serve.records import Record, line, of_detection, of_text
from alimark.serve.ring import Label
from alimark.serve.service import Administers, Detects, Generates, Service, Serving

router = APIRouter()

KeyId = Annotated[str, Path(pattern="^ak[0-9a-f]{18}$")]
TokenId = Annotated[str, Path(pattern="^tk[0-9a-f]{12}$")]


# Checking


@router.post("/v1/detect", tags=["checking"], response_model=schemas.Detections, response_model_exclude_none=True)
async def detect(asked: schemas.Detect, service: Serving, token: Detects) -> Response:
    """Tells of each text whether it carries the mark of a key. Without key ids all living keys are tried."""
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > service.settings.max_texts:
        raise Refused(413, "too_many_texts", f"a request has at most {service.settings.max_texts} texts", param="input")
    for text in texts:
        service.check_text(text)
    keys = service.ring.detecting(token.tenant, asked.keys)
    settings = DetectionSettings(search=asked.search, passage_fpr=asked.fpr, draws=draws_for(asked.fpr))
    answers = await _look(service, texts, keys, settings)
    if isinstance(asked.input, str) and isinstance(answers[0], AlimarkError):
        raise answers[0]
    results: list[dict[str, Any]] = []
    records: list[Record] = []
    for text, answer in zip(texts, answers, strict=True):
        if isinstance(answer, AlimarkError):
            results.append({"error": refusal(answer).error})
            continue
        records.append(of_detection(answer[0], text, token.id, token.tenant))
        results.append(_found(answer[0], asked, records[-1]))
        service.metrics.detections.labels(results[-1]["verdict"]).inc()
    await service.write_down(records)
    return JSONResponse({"fpr": asked.fpr, "results": results})


async def _look(
    service: Service, texts: Sequence[str], keys: Sequence[Key], settings: DetectionSettings
) -> list[Answer | AlimarkError]:
    """For each text the best keys, whatever embedders they need."""
    groups: dict[str, list[Key]] = {}
    for key in keys:
        groups.setdefault(key.fingerprint, []).append(key)
    checks = [Check(text, tuple(some), settings, len(keys)) for text in texts for some in groups.values()]
    futures = [asyncio.wrap_future(future) for future in service.checker.submit(checks)]
    found = await service.in_time(asyncio.gather(*futures, return_exceptions=True))
    answers: list[Answer | AlimarkError] = []
    for start in range(0, len(found), len(groups)):
        part = found[start : start + len(groups)]
        wrong = [one for one in part if isinstance(one, BaseException)]
        if wrong and not isinstance(wrong[0], AlimarkError):
            raise wrong[0]
        answers.append(wrong[0] if wrong else best_first([one for some in part for one in some])[:BEST_KEYS])  # type: ignore[arg-type,union-attr]
    return answers


def _found(found: AlignedDetection, asked: schemas.Detect, record: Record) -> dict[str, Any]:
    verdict = found.verdict(asked.fpr)
    content = {
        "verdict": str(verdict), "p_value": found.p_value, "score": found.score, "statistic": found.raw,
        "key_id": found.key_id, "keys_tried": found.keys_tried, "sentences": len(found.sentences),
        "text_sha256": found.text_sha256, "passages": [asdict(one) for one in found.passages],
        "warnings": list(found.warnings), "record_id": record.id,
    }  # fmt: skip
    content |= {} if found.z is None else {"z": found.z}
    content |= {} if verdict.needed is None else {"sentences_needed": verdict.needed}
    return content | ({"evidence": found.report(asked.fpr)} if asked.evidence else {})


_FILE = {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("/v1/extract", tags=["checking"], response_model=schemas.Extracted, openapi_extra={"requestBody": _FILE})
async def extract_text(
    request: Request,
    service: Serving,
    token: Detects,
    kind: Annotated[Literal[KINDS], Query()],  # type: ignore[valid-type]
) -> dict[str, Any]:
    """The text of a file: txt, md, html, docx or pdf, as the request's body."""
    data = await request.body()
    text = await service.finish(service.writers.run(lambda: extract(data, kind, service.settings.max_text)))
    return {"text": text}


# Marking


@router.post("/v1/rewrite", tags=["writing"], response_model=schemas.Rewritten)
async def rewrite(asked: schemas.Rewrite, service: Serving, token: Generates) -> dict[str, Any]:
    """Marks a text that exists by a chat model's rewrites of its sentences."""
    service.check_text(asked.input)
    key = service.ring.marking(token.tenant, service.llm.name)
    settings = RewriteSettings(asked.candidates, asked.closeness, asked.mean_closeness)
    made = await service.finish(service.writers.rewrite(asked.input, key, asked.seed, settings))
    record = of_text(
        "rewrite", made.text, made.key_id, made.matches, made.block_size, token.id, token.tenant, llm=made.llm
    )
    await service.write_down([record])
    service.metrics.written.labels("rewrite").inc()
    return {
        "text": made.text, "key_id": made.key_id, "record_id": record.id, "matches": made.matches,
        "cosines": made.cosines, "outcomes": [one.outcome for one in made.rewritten], "block_size": made.block_size,
    }  # fmt: skip


@router.post("/v1/attack", tags=["writing"], response_model=schemas.Attacked)
async def attack(asked: schemas.Attack, service: Serving, token: Generates) -> dict[str, Any]:
    """Does to a text what people do, to see how much of the mark is left."""
    from alimark.attacks import load_attack

    service.check_text(asked.input)
    settings = {} if asked.name == "translate" else {"rate": asked.rate}
    chosen = load_attack(asked.name, **settings)
    return {
        "name": asked.name,
        "text": await service.finish(service.writers.run(lambda: chosen(asked.input, asked.seed))),
    }


# Keys


@router.get("/v1/keys", tags=["administration"], response_model=list[schemas.KeyLabel])
async def keys(service: Serving, token: Administers) -> list[dict[str, Any]]:
    return [_label(label) for label in service.ring.all()]


@router.post("/v1/keys", tags=["administration"], response_model=schemas.KeyLabel, status_code=201)
async def create_key(asked: schemas.NewKey, service: Serving, token: Administers) -> dict[str, Any]:
    """Makes a key. The secret stays in its file on the server."""

    def work() -> Label:
        return service.ring.create(service.embedder(service.settings.embedder), **asked.model_dump())

    return _label(await asyncio.to_thread(work))


@router.post("/v1/keys/{key_id}/rotate", tags=["administration"], response_model=schemas.KeyLabel, status_code=201)
async def rotate_key(key_id: KeyId, asked: schemas.EndOfKey, service: Serving, token: Administers) -> dict[str, Any]:
    """A new key for the same purpose; the old one marks no more and is looked for until it ends."""

    def work() -> Label:
        return service.ring.rotate(key_id, service.embedder(service.settings.embedder), ends=asked.ends)

    return _label(await asyncio.to_thread(work))


@router.post("/v1/keys/{key_id}/retire", tags=["administration"], response_model=schemas.KeyLabel)
async def retire_key(key_id: KeyId, asked: schemas.EndOfKey, service: Serving, token: Administers) -> dict[str, Any]:
    """The key marks nothing and is looked for no more, now or from a time on."""
    return _label(await asyncio.to_thread(service.ring.retire, key_id, ends=asked.ends))


def _label(label: Label) -> dict[str, Any]:
    now = time.time()
    return asdict(label) | {"alive": label.alive(now), "marks": label.marks(now)}


# Tokens


@router.get("/v1/tokens", tags=["administration"], response_model=list[schemas.TokenLabel])
async def tokens(service: Serving, token: Administers) -> list[dict[str, Any]]:
    return [asdict(one) for one in service.tokens.all()]


@router.post("/v1/tokens", tags=["administration"], response_model=schemas.TokenMade, status_code=201)
async def create_token(asked: schemas.NewToken, service: Serving, token: Administers) -> dict[str, Any]:
    """Makes a token and shows it this once; the server keeps its hash."""

    def work() -> tuple[Token, str]:
        return service.tokens.create(asked.roles, tenant=asked.tenant, name=asked.name)

    made, secret = await asyncio.to_thread(work)
    return asdict(made) | {"token": secret}


@router.delete("/v1/tokens/{token_id}", tags=["administration"], status_code=204)
async def revoke_token(token_id: TokenId, service: Serving, token: Administers) -> Response:
    if token_id == token.id:
        raise Refused(409, "own_token", "a token does not revoke itself, so that one administrator is always left")
    if not await asyncio.to_thread(service.tokens.revoke, token_id):
        raise Refused(404, "no_such_token", f"there is no token {token_id}")
    return Response(status_code=204)


# Records


@router.get("/v1/records", tags=["administration"], response_class=StreamingResponse, responses={
    200: {"content": {"application/jsonl": {}}, "description": "One record a line, oldest first."}
})  # fmt: skip
async def records(
    service: Serving, token: Administers, since: Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)] = 0.0
) -> Response:
    """All records from a time on, as JSONL."""

    async def pages() -> AsyncIterator[str]:
        rows = first
        while rows:
            yield "".join(line(row) for row in rows)
            rows = await service.ask(service.book.page(rows[-1]["number"], since))

    first = await service.ask(service.book.page(0, since))
    return StreamingResponse(pages(), media_type="application/jsonl")


# Health


@router.get("/healthz", tags=["health"])
async def health(service: Serving) -> Response:
    """200 where the database answers; nothing that is anybody's business."""
    try:
        await service.ask(lambda db: db.execute("SELECT 1 AS one"))
    except (AlimarkError, Refused):
        return JSONResponse({"status": "the database does not answer"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", tags=["health"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, service: Serving) -> Response:
    """For Prometheus; wants an administrator's token unless the operator opened it."""
    token: Token | None = request.state.passing.token
    if not service.settings.open_metrics and (token is None or "admin" not in token.roles):
        raise Refused(403, "wrong_role", "this needs a token with the role admin")
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
