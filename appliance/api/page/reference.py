"""/docs and /redoc: the description of the API for readers.

FastAPI's own pages load Swagger UI and ReDoc from the internet, which many boxes do not have; these find them in the
package fastapi-offline, which carries their releases for this purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.page.files import FILES, PageFile
from appliance.api.page.routes import respond

router = APIRouter(include_in_schema=False)

# Both make style elements as they go, and ReDoc searches in a worker that it makes of text.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; worker-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
_OURS = resources.files(__package__) / "reference"
_VIEWERS = resources.files("fastapi_offline") / "static"
_PLACES: dict[str, tuple[Traversable, str]] = {
    "/docs": (_OURS / "docs.html", "text/html"),
    "/redoc": (_OURS / "redoc.html", "text/html"),
    "/docs/docs.js": (_OURS / "docs.js", "text/javascript"),
    "/docs/redoc.css": (_OURS / "redoc.css", "text/css"),
    "/docs/swagger-ui-bundle.js": (_VIEWERS / "swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": (_VIEWERS / "swagger-ui.css", "text/css"),
    "/docs/redoc.standalone.js": (_VIEWERS / "redoc.standalone.js", "text/javascript"),
}
_ICON_PATH = "/docs/icon.svg"
PATHS = frozenset({*_PLACES, _ICON_PATH})
# The one picture that ReDoc would fetch from its makers; this one is empty.
_FOREIGN_LOGO, _NO_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg", b"data:image/gif;base64,R0lGODlhAQABAAAAACw="


@cache
def load(path: str) -> PageFile:
    """The file that is served at a path of `PATHS`. Read when somebody asks: few workers are ever asked for these."""
    if path == _ICON_PATH:
        return FILES["/page/icon.svg"]
    place, content_type = _PLACES[path]
    content = place.read_bytes().replace(_FOREIGN_LOGO, _NO_LOGO)
    return PageFile(content, f"{content_type}; charset=utf-8")


def _make_route(path: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def send_file(request: Request) -> Response:
        return respond(load(path), request, CONTENT_SECURITY_POLICY)

    return send_file


for _path in sorted(PATHS):
    router.add_api_route(_path, _make_route(_path), methods=["GET", "HEAD"])
