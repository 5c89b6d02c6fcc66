"""API keys: deny by default. Only the routes in `OPEN_PATHS` answer without a key once one is configured.

The check compares the path as the router sees it with whole paths, so no spelling of another route can slip through:
what is not exactly an open path needs a key, whether a route exists there or not.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.api.page.files import PATHS as PAGE_PATHS
from appliance.errors import AuthenticationError

# The page holds nothing; it asks the other routes with the key that it is given.
OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/livez", "/readyz", "/startupz"}) | PAGE_PATHS
ADMIN_PATHS = frozenset({"/metrics", "/load"})  # open on the admin port


class KeyRing:
    """The configured keys as digests: equal length, so comparing tells nothing about them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys if key]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holds(self, key: str) -> bool:
        """Whether `key`, as a header holds it, is one of ours; all are compared, so the time does not say which."""
        # Header values arrive as latin-1 text; the client meant these bytes.
        digest = _digest(key.encode("latin-1"))
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def get_key(headers: Headers) -> str | None:
    """The key sent along: ``Authorization: Bearer …`` or, as Anthropic's clients do, ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key")


def get_route_path(scope: Scope) -> str:
    """The path that the router matches: without the prefix under which an outer proxy publishes the box."""
    path, root_path = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root_path) :] if root_path and path.startswith(root_path + "/") else path


def _is_admin(scope: Scope) -> bool:
    # nginx, the only one who can reach us, sets this on its admin port and takes it away from everybody else.
    return Headers(scope=scope).get("x-breadbox-admin") == "yes"


class KeyMiddleware:
    """Refuses requests without a valid key. CORS preflights carry none by design and reach no route."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises AuthenticationError."""
        if scope["type"] in ("http", "websocket") and not self._is_open(scope):
            self._check(Headers(scope=scope))
        await self.app(scope, receive, send)

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        path = get_route_path(scope)
        return scope.get("method") == "OPTIONS" or path in OPEN_PATHS or (path in ADMIN_PATHS and _is_admin(scope))

    def _check(self, headers: Headers) -> None:
        key = get_key(headers)
        if key is None:
            raise AuthenticationError("no API key was sent; send it as 'Authorization: Bearer KEY'")
        if not self.keys.holds(key):
            raise AuthenticationError("the API key is not valid")
