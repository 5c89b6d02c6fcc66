"""The files of /docs and /redoc, and the paths they are served at. Nothing here knows HTTP.

FastAPI's own pages load Swagger UI and ReDoc from the internet, which many boxes do not have; these find them in the
package fastapi-offline, which carries their releases for this purpose.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from appliance.api.page.files import FILES, PageFile

_OURS = resources.files(__package__) / "reference"
_VIEWERS = resources.files("fastapi_offline") / "static"
_PLACES: dict[str, tuple[Traversable, str]] = {
    "/docs": (_OURS / "docs.html", "text/html"),
    "/redoc": (_OURS / "redoc.html", "text/html"),
    "/docs/docs.js": (_OURS / "docs.js", "text/javascript"),
    "/docs/key.js": (_OURS / "key.js", "text/javascript"),
    "/docs/redoc.js": (_OURS / "redoc.js", "text/javascript"),
    "/docs/redoc.css": (_OURS / "redoc.css", "text/css"),
    "/docs/swagger-ui-bundle.js": (_VIEWERS / "swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": (_VIEWERS / "swagger-ui.css", "text/css"),
    "/docs/redoc.standalone.js": (_VIEWERS / "redoc.standalone.js", "text/javascript"),
}
# Of the page for people, which may be switched off.
_SHARED = {"/docs/icon.svg": "/page/icon.svg", "/docs/store.js": "/page/store.js"}
PATHS = frozenset({*_PLACES, *_SHARED})
# The one picture that ReDoc would fetch from its makers; this one is empty.
_FOREIGN_LOGO, _NO_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg", b"data:image/gif;base64,R0lGODlhAQABAAAAACw="


@cache
def load(path: str) -> PageFile:
    """The file that is served at a path of `PATHS`. Read when somebody asks: few workers are ever asked for these."""
    if path in _SHARED:
        return FILES[_SHARED[path]]
    place, content_type = _PLACES[path]
    content = place.read_bytes().replace(_FOREIGN_LOGO, _NO_LOGO)
    return PageFile(content, f"{content_type}; charset=utf-8")
