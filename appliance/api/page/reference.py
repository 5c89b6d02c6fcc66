"""/docs and /redoc: the description of the API for readers.

Open to everyone, as there is nothing of the box in them: /openapi.json is behind the key, which the pages ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.page.reference_files import PATHS, load
from appliance.api.page.routes import respond

router = APIRouter(include_in_schema=False)

# Both make style elements as they go, and ReDoc searches in a worker that it makes of text.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; worker-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)


def _make_route(path: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def send_file(request: Request) -> Response:
        return respond(load(path), request, CONTENT_SECURITY_POLICY)

    return send_file


for _path in sorted(PATHS):
    router.add_api_route(_path, _make_route(_path), methods=["GET", "HEAD"])
