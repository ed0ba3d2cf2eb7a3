"""Error responses of the service, in the format of the OpenAI protocol."""

import json
import logging

from starlette.responses import JSONResponse, Response

from alimark.core._util.json_types import JsonObject
from alimark.errors import (
    AlimarkError,
    AttackError,
    ContextFull,
    KeyFileError,
    LimitError,
    LLMError,
    ModelError,
    TextError,
)
from alimark.serve.database import DatabaseError
from alimark.serve.places import QueueFull
from alimark.serve.ring import NoKey, UnknownKey

log = logging.getLogger("alimark.serve")


class AnyTextResponse(JSONResponse):
    """A JSON response whose texts may contain half a surrogate pair: JSON can write it, as an escape, but UTF-8 cannot."""

    def render(self, content: object) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False).encode()


class ApiError(Exception):
    """An error response in the format of the OpenAI protocol.

    `code` names the error for programs, the message says what is wrong and how to fix it, `param` is the field that is wrong.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    @property
    def error(self) -> JsonObject:
        """The content of the field `error`."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"message": self.message, "type": kind, "code": self.code, "param": self.param}

    @property
    def response(self) -> Response:
        """The response with this error."""
        # Plain ASCII, because messages repeat field names of the client, which may contain lone surrogates.
        return Response(json.dumps({"error": self.error}), self.status, self.headers, "application/json")


_STATUS: tuple[tuple[type[AlimarkError], int, str], ...] = (
    (QueueFull, 429, "queue_full"),
    (NoKey, 409, "no_key"),
    (UnknownKey, 404, "no_such_key"),
    (DatabaseError, 503, "database"),
    (ContextFull, 400, "context_length_exceeded"),
    (LimitError, 413, "too_much"),
    (TextError, 422, "text"),
    (AttackError, 422, "attack"),
    (LLMError, 502, "model"),
    (ModelError, 503, "model"),
    (KeyFileError, 409, "key"),
)


def to_api_error(error: AlimarkError | ApiError) -> ApiError:
    """Returns the error response for an error of the library; an `ApiError` is one already."""
    if isinstance(error, ApiError):
        return error
    message = _sentence(_without_address(error))
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return ApiError(status, code, message, retry_after=1 if status in (429, 503) else None)
    return ApiError(422, "invalid", message)


def _without_address(error: AlimarkError) -> str:
    """Returns the message of an error for a client, who must not learn the address of the engine's server."""
    message = str(error)
    if not isinstance(error, LLMError) or "://" not in message:
        return message
    log.warning("the engine failed", extra={"reason": message})
    if isinstance(error, ContextFull):
        return "the text does not fit into the context of the model; send a shorter prompt, or ask for fewer sentences"
    return "the model did not answer as it should; try again later (the operator's log says what is wrong)"


def _sentence(message: str) -> str:
    """Turns an exception's message, which starts in lower case and has no full stop, into a sentence."""
    if message.partition(" ")[0].isalpha():  # not a path, an address or the name of a field
        message = message[0].upper() + message[1:]
    return f"{message}." if message[-1:].isalnum() else message
