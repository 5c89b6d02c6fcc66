"""Serves the page's files: open to everyone, with headers that let the browser load and run nothing else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.page.files import FILES, INDEX_PATH, PageFile, with_base
from appliance.api.state import get_state

router = APIRouter(include_in_schema=False)

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Asked for again each time, answered with 304: a new version of the box is never mixed with an old page.
    "cache-control": "no-cache",
}


def respond(file: PageFile, request: Request, policy: str = CONTENT_SECURITY_POLICY) -> Response:
    """The file, or 304 where the browser has it; `policy` is its Content-Security-Policy."""
    headers = HEADERS | {"content-security-policy": policy, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers | {"content-type": file.content_type})


def _make_route(path: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def send_file(request: Request) -> Response:
        file, root_path = FILES[path], get_state(request).settings.root_path
        return respond(with_base(file, root_path) if path == INDEX_PATH and root_path else file, request)

    return send_file


for _path in FILES:
    router.add_api_route(_path, _make_route(_path), methods=["GET", "HEAD"])
