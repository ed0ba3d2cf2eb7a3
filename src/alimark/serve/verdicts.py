"""The endpoints for others: the verdict on a text and nothing else, what the service is, and the keys of its signatures."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.responses import Response

from alimark.audit.evidence.signing import DISCOVERY, KEYS, SIGNED
from alimark.core._util.json_types import JsonObject
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.statements import NOT_HUMAN
from alimark.core.detection.stats.p_values import MAX_DRAWS, draws_for
from alimark.errors import AlimarkError
from alimark.serve import schemas
from alimark.serve.auth import sha256
from alimark.serve.bodies import BoundedRoute
from alimark.serve.checking import Answer, Check
from alimark.serve.database import DatabaseError
from alimark.serve.errors import ApiError
from alimark.serve.places import QueueFull
from alimark.serve.ring import NoKey
from alimark.serve.service import ServiceOf, VerdictToken

router = APIRouter(route_class=BoundedRoute)

FPR = 0.01
CHECKING = DetectionSettings(search="whole", draws=draws_for(FPR), stop_after=MAX_DRAWS + 1)
"""One search and all random keys whatever they score, so that the time of an answer says nothing about the mark."""
_RATE = (
    f"at a false-positive rate of {100 * FPR:g}%: of 100 texts without it, about {100 * FPR:g} would be called found"
)
STATEMENTS = {
    "found": f"The mark of this service was found in the text, {_RATE}.",
    "not found": f"The mark of this service was not found in the text, {_RATE}. {NOT_HUMAN}",
    "too short to tell": f"The text is too short to tell whether it carries the mark of this service, {_RATE}.",
}
"""What those read who may see the verdict alone."""
_MAX_WORK = 5.0
"""Seconds of CPU time that a text may take: some 140 sentences under one key."""


@router.post("/v1/verdict", tags=["checking"], response_model=schemas.VerdictAnswer)
async def verdict(request: Request, body: schemas.AskVerdict, service: ServiceOf, token: VerdictToken) -> Response:
    """Tells whether a text carries the mark of this service, at one false-positive rate, and nothing else.

    With the header `Accept: application/jose` the answer is signed: a compact JWS, which `alimark verify` checks.
    """
    service.check_text(body.input, most=service.settings.verdict_text)
    service.spend(token)
    try:
        check = Check(body.input, tuple(service.ring.detecting(token.tenant)), CHECKING, _MAX_WORK)
        owner = token.id.partition("-")[0]  # all clients without a token share the detector's threads like one token
        [found] = await service.all_results(service.checker.submit(owner, [check], _verdict))
    except (QueueFull, DatabaseError, NoKey) as error:
        raise ApiError(503, "busy", "The detector cannot answer now. Try again later.", retry_after=10) from error
    except AlimarkError as error:  # the message may tell something of the keys
        message = "The text cannot be checked. Send plain text in sentences, or a shorter part of it."
        raise ApiError(422, "text", message, param="input") from error
    service.metrics.detections.labels(found).inc()
    content = {"statement": STATEMENTS[found], "verdict": found, "false_positive_rate": FPR}
    content["text_sha256"] = sha256(body.input)
    return service.response(request, content)


def _verdict(check: Check, answer: Answer) -> str:
    best = answer[0]
    best.sentences_needed(FPR / best.keys_tried)  # so that a text with the mark takes no less time
    return str(best.verdict(FPR))


@router.get(DISCOVERY, tags=["checking"])
async def discovery(service: ServiceOf) -> JsonObject:
    """Tells who runs the service, what it marks since when, and how its detector is asked. It needs no token.

    Dates are those of ISO 8601. Keys of tenants, and keys that never marked, are not listed.
    """
    settings = service.settings
    if not settings.operator:
        raise ApiError(404, "no_operator", "This service does not describe itself. Its operator has to set `operator`.")
    labels = [label for label in service.ring.all() if label.activated is not None and not label.tenant]
    return {
        "format": "alimark discovery",
        "version": 1,
        "operator": settings.operator,
        "contact": settings.contact,
        "terms": settings.terms,
        "marks": settings.marks,
        "languages": settings.languages,
        "marked": [
            {"key_id": label.id, "since": _date(label.activated), "until": _date(label.ends)} for label in labels
        ],
        "detector": {"verdict": "/v1/verdict", "page": "/detector", "keys": KEYS, "signed": SIGNED},
        "needs_token": not settings.public_detector,
        "false_positive_rate": FPR,
        "limits": {"characters": settings.verdict_text, "texts_a_day": settings.verdict_budget},
    }


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@router.get(KEYS, tags=["checking"])
async def signing_keys(service: ServiceOf) -> JsonObject:
    """Lists the public keys with which answers are signed, as a JSON Web Key Set. It needs no token."""
    return {"keys": [service.signing_key.jwk]}
