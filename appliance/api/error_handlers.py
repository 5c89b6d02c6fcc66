"""One table maps exception classes to answers; every error leaves in its protocol's envelope, streamed or not.

That is OpenAI's but for the paths that the application lists in `ApiState.envelopes`.
"""

from __future__ import annotations

import http
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from appliance.api.auth import get_route_path
from appliance.errors import (
    APIError,
    AuthenticationError,
    InternalServerError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    PoisonRequestError,
    QueueFullError,
)

logger = logging.getLogger(__name__)
Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]
Envelope = Callable[[APIError, str], bytes]  # of an error and the request's id

_MAX_MESSAGE_CHARS = 1000
_CLIENT_CLOSED = 499


def as_api_error(error: Exception) -> APIError:
    """What the client may know of `error`; anything unexpected is logged here and told as a bare 500."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RecursionError):
        return InvalidRequestError("the request is nested too deeply")
    logger.error("unexpected error", exc_info=error)
    return InternalServerError("The server had an error while processing your request.")


def encode_error(error: APIError) -> bytes:
    """OpenAI's envelope as JSON."""
    envelope = error.envelope()
    envelope["error"]["message"] = shown_message(error)
    return msgspec.json.encode(envelope)


def shown_message(error: APIError) -> str:
    """Long messages are cut, so that no caller's data is thrown back at length."""
    message = error.message
    return message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 1] + "…"


def _find_envelope(scope: Scope) -> Envelope | None:
    path = get_route_path(scope)
    envelopes: Mapping[str, Envelope] = scope["app"].state.api.envelopes
    found = (encode for prefix, encode in envelopes.items() if path == prefix or path.startswith(prefix + "/"))
    return next(found, None)


def error_response(error: APIError, scope: Scope | None = None) -> Response:
    """The HTTP answer for `error`, in the envelope that the path of `scope` has; its code is kept in the state."""
    headers = {}
    if scope is not None:
        scope["state"]["error_code"] = error.code
        if isinstance(error, QueueFullError):
            scope["state"]["queue_limit"] = error.limit
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, PoisonRequestError):
        headers["x-should-retry"] = "false"  # the clients of OpenAI and Anthropic would try again by themselves
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    encode = _find_envelope(scope) if scope else None
    if scope is None or encode is None:
        return Response(encode_error(error), error.status, headers, media_type="application/json")
    headers["request-id"] = request_id = scope["state"]["request_id"]
    return Response(encode(error, request_id), error.status, headers, media_type="application/json")


async def handle_api_error(request: Request, error: APIError) -> Response:
    """Errors that we raise ourselves."""
    return error_response(error, request.scope)


async def handle_http_exception(request: Request, error: HTTPException) -> Response:
    """The framework's own: unknown routes, wrong methods, oversized bodies."""
    response = error_response(_from_http(request, error), request.scope)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def _from_http(request: Request, error: HTTPException) -> APIError:
    if error.status_code == http.HTTPStatus.NOT_FOUND:
        return NotFoundError(_not_found_message(request))
    if error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"Allow": _allowed_methods(request)}
        return MethodNotAllowedError(f"{request.method} is not allowed here; use {error.headers['Allow']}")
    if error.status_code == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return PayloadTooLargeError("the request body is too large")
    if http.HTTPStatus.BAD_REQUEST <= error.status_code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidRequestError(str(error.detail))
    return as_api_error(error)


def _allowed_methods(request: Request) -> str:
    """Of all routes with this path; the framework names those of the first one."""
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


def _not_found_message(request: Request) -> str:
    """Names the route that was probably meant: doubled or trailing slashes and a /v1 too many or too few are common."""
    path: str = request.scope["path"]
    tidy = "/" + "/".join(part for part in path.split("/") if part)
    for candidate in (tidy, tidy.removeprefix("/v1"), "/v1" + tidy):
        if candidate in request.app.state.route_paths:
            return f"there is no such route; did you mean {candidate}?"
    return "there is no such route"


async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
    """Path and query parameters that the framework refuses (bodies are read by `request_body`)."""
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return error_response(InvalidRequestError(f"{param}: {first['msg']}", param=param), request.scope)


async def handle_client_gone(request: Request, error: ClientDisconnect) -> Response:
    """Nobody reads this; it is for the log and the metrics."""
    request.state.client_gone = True
    return Response(status_code=_CLIENT_CLOSED)


HANDLERS: dict[int | type[Exception], Handler] = {
    APIError: handle_api_error,
    HTTPException: handle_http_exception,
    RequestValidationError: handle_validation_error,
    ClientDisconnect: handle_client_gone,
}
