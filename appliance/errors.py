"""The appliance's exceptions, each with the HTTP status, type and code it becomes. One envelope for all of them.

::

    ApplianceError                     a problem with one clear line (the command line prints it and exits non-zero)
    ├── SettingsError                  several problems of the settings at once
    ├── BakeError                      a source cannot be baked
    └── APIError                       → {"error": {"message", "type", "param", "code"}}
        ├── InvalidRequestError   400  invalid_request_error
        │   └── ContextLengthError 400 … code context_length_exceeded
        ├── AuthenticationError   401  authentication_error, code invalid_api_key
        ├── PermissionDeniedError 403  permission_error, code insufficient_scope
        ├── NotFoundError         404  invalid_request_error … code model_not_found / not_found
        ├── MethodNotAllowedError 405
        ├── PayloadTooLargeError  413
        ├── RateLimitError        429  rate_limit_error, Retry-After
        ├── InternalServerError   500  server_error
        │   └── PoisonRequestError 500 … code poison_request
        ├── NotImplementedAPIError 501
        └── UnavailableError      503  service_unavailable, Retry-After
            └── QueueFullError    503  … code queue_full
"""

from __future__ import annotations

from typing import ClassVar


class ApplianceError(Exception):
    """A problem that is told in one clear line."""


class SettingsError(ApplianceError):
    """All problems of the settings, reported together."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class BakeError(ApplianceError):
    """The source is damaged, unsupported or unreachable; nothing was left behind."""


class APIError(ApplianceError):
    """An error that a client sees; becomes the OpenAI error envelope."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after_s = retry_after_s

    def envelope(self) -> dict[str, dict[str, str | None]]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequestError(APIError):
    """400: a field is wrong; ``param`` names it and the message says the limit."""

    status = 400
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """400: the prompt does not fit; the message has both numbers."""

    default_code = "context_length_exceeded"


class AuthenticationError(APIError):
    """401: no key, or a wrong one."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(APIError):
    """403: the key is valid, but not for this."""

    status = 403
    type = "permission_error"
    default_code = "insufficient_scope"


class NotFoundError(APIError):
    """404: no such route or model."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowedError(APIError):
    """405."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class PayloadTooLargeError(APIError):
    """413: the body is over the limit, which the message names."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class RateLimitError(APIError):
    """429: this key's own limit."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class InternalServerError(APIError):
    """500: ours, never the caller's fault; the message says nothing of the inside."""

    default_code = "internal_error"


class PoisonRequestError(InternalServerError):
    """500: the engine failed each time it worked on this request; trying again only harms the others."""

    default_code = "poison_request"


class NotImplementedAPIError(APIError):
    """501: a route that this model or build does not serve."""

    status = 501
    default_code = "not_implemented"


class UnavailableError(APIError):
    """503: loading, draining or full; try again after ``retry_after_s``."""

    status = 503
    type = "service_unavailable"
    default_code = "service_unavailable"


class QueueFullError(UnavailableError):
    """503: as many requests wait for the engine as may; ``limit`` is the setting that says how many."""

    default_code = "queue_full"

    def __init__(self, message: str, limit: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit
