"""A key's limits around the requests to the model: 429 before anything is done, and what is left in each answer.

The headers are OpenAI's: ``x-ratelimit-limit-requests``, ``-remaining-requests``, ``-reset-requests``, and the same
with ``-tokens``.
"""

from __future__ import annotations

from collections.abc import Iterator

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.api.auth import get_route_path
from appliance.api.error_handlers import error_response
from appliance.api.load import COUNTED_PATHS
from appliance.api.request_record import get_record
from appliance.errors import APIError
from appliance.keys.api_key import ApiKey
from appliance.keys.key_limits import KeyLimiter, Lease

_OUR_FAULT = 500
_FACTS = ("limit", "remaining", "reset")
HEADERS = tuple(f"x-ratelimit-{fact}-{what}" for what in ("requests", "tokens") for fact in _FACTS)


class RateLimitMiddleware:
    """Holds a lease for each request of a key that has limits, until the last byte of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Keys without limits, and routes that ask nothing of the model, pass."""
        key: ApiKey | None = scope.get("state", {}).get("api_key")
        if scope["type"] != "http" or key is None or not key.limits or get_route_path(scope) not in COUNTED_PATHS:
            return await self.app(scope, receive, send)
        limiter: KeyLimiter = scope["app"].state.api.limiter
        lease = scope["state"]["lease"] = limiter.make_lease(key)

        status = 0

        async def send_with_limits(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(dict(_print_headers(lease)))
            await send(message)

        try:
            await self._run(lease, scope, receive, send_with_limits)
        except Exception:
            status = status or _OUR_FAULT  # as it is told further out
            raise
        finally:
            record = get_record()
            lease.end(record.num_output_tokens if record else 0, is_free=status >= _OUR_FAULT)

    async def _run(self, lease: Lease, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await lease.begin()
        except APIError as error:
            await error_response(error, scope)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def charge_prompt(num_tokens: int) -> None:
    """Called when this HTTP request's prompts are known and nothing was generated yet. Raises RateLimitError."""
    record = get_record()
    lease: Lease | None = record.state.get("lease") if record else None
    if lease is not None:
        await lease.charge_prompt(num_tokens)


def _print_headers(lease: Lease) -> Iterator[tuple[str, str]]:
    for what, allowance in (("requests", lease.requests), ("tokens", lease.tokens)):
        if allowance is not None:
            facts = (str(allowance.limit), str(allowance.remaining), print_duration(allowance.reset_s))
            for fact, value in zip(_FACTS, facts, strict=True):
                yield f"x-ratelimit-{fact}-{what}", value


def print_duration(seconds: float) -> str:
    """As OpenAI writes it: ``120ms``, ``7.66s``, ``6m0s``, ``1h2m3s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.4g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
