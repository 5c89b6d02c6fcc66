"""Anthropic's error envelope; every error under /v1/messages leaves in it."""

from __future__ import annotations

from typing import Any

import msgspec

from appliance.api.error_handlers import shown_message
from appliance.errors import APIError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_SERVER_ERROR_FROM = 500


def print_error(error: APIError, request_id: str) -> dict[str, Any]:
    """The envelope."""
    default = "api_error" if error.status >= _SERVER_ERROR_FROM else "invalid_request_error"
    detail = {"type": _TYPES.get(error.status, default), "message": shown_message(error)}
    return {"type": "error", "error": detail, "request_id": request_id}


def encode_error(error: APIError, request_id: str) -> bytes:
    """The same as JSON."""
    return msgspec.json.encode(print_error(error, request_id))
