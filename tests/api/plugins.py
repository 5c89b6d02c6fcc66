"""Middleware as people plug it in, for tests of ``--middleware``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

NOT_MIDDLEWARE = 3


class Stamp:
    """An ASGI middleware that marks every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"class")]
            await send(message)

        await self.app(scope, receive, stamped)


class Shout:
    """An ASGI middleware that changes the body of every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def shout(message: Any) -> None:
            if "body" in message:
                message["body"] = message["body"].replace(b" red", b" RED")
            await send(message)

        await self.app(scope, receive, shout)


async def stamp(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """An HTTP middleware that marks every answer, or fails."""
    if "x-fail" in request.headers:
        raise ValueError("the plugin fell over")
    response = await call_next(request)
    response.headers["x-stamp-function"] = "function"
    return response
