"""API keys: deny by default. Only the routes in `OPEN_PATHS` answer without a key once one is configured.

The check compares the path as the router sees it with whole paths, so no spelling of another route can slip through:
what is not exactly an open path needs a key, whether a route exists there or not.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.api.page.files import PATHS as PAGE_PATHS
from appliance.api.page.reference_files import PATHS as REFERENCE_PATHS
from appliance.api.wrong_keys import WrongKeys
from appliance.errors import AuthenticationError, PermissionDeniedError
from appliance.keys.api_key import INFERENCE, METRICS, MODELS, ApiKey
from appliance.keys.key_store import KeyStore

# The pages hold nothing; they ask the other routes with the key that they are given.
OPEN_PATHS = (
    frozenset({"/health", "/ping", "/version", "/livez", "/readyz", "/startupz"}) | PAGE_PATHS | REFERENCE_PATHS
)
ADMIN_PATHS = frozenset({"/metrics", "/load"})  # open on the admin port
_MODELS_PATH = "/v1/models"


def get_key(headers: Headers) -> str | None:
    """The key sent along: ``Authorization: Bearer …`` or, as Anthropic's clients do, ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip(" \t")  # nothing else: read as latin-1, the last byte of a letter may look like a space
    if scheme.lower() == "bearer" and token:
        return token
    return headers.get("x-api-key")


def get_route_path(scope: Scope) -> str:
    """The path that the router matches: without the prefix under which an outer proxy publishes the box."""
    path, root_path = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root_path) :] if root_path and path.startswith(root_path + "/") else path


def _is_admin(scope: Scope) -> bool:
    # nginx, the only one who can reach us, sets this on its admin port and takes it away from everybody else.
    return Headers(scope=scope).get("x-breadbox-admin") == "yes"


class KeyMiddleware:
    """Refuses requests without a key that is valid for them.

    CORS preflights carry none by design and reach no route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._wrong_keys = WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Puts ``api_key`` and ``key_name`` into the request's state. Raises AuthenticationError."""
        if scope["type"] in ("http", "websocket") and not self._is_open(scope):
            key = await self._identify(scope)
            state = scope.setdefault("state", {})
            state["api_key"], state["key_name"] = key, key.name
            _check_scope(key, get_route_path(scope))
        await self.app(scope, receive, send)

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        path = get_route_path(scope)
        return scope.get("method") == "OPTIONS" or path in OPEN_PATHS or (path in ADMIN_PATHS and _is_admin(scope))

    async def _identify(self, scope: Scope) -> ApiKey:
        secret = get_key(Headers(scope=scope))
        if secret is None:
            raise AuthenticationError("no API key was sent; send it as 'Authorization: Bearer KEY'")
        keys: KeyStore = scope["app"].state.api.keys
        key = keys.ring.find(secret)
        if key is None:
            await self._wrong_keys.slow_down(scope)
            raise AuthenticationError("the API key is not valid")
        if key.is_expired:
            scope["state"]["key_name"] = key.name
            raise AuthenticationError("the API key has expired", code="expired_api_key")
        return key


def _check_scope(key: ApiKey, path: str) -> None:
    """Raises PermissionDeniedError."""
    needed = _needed_scope(path)
    if needed not in key.scopes:
        raise PermissionDeniedError(f"the API key is not valid for this: it has not got the scope {needed}")


def _needed_scope(path: str) -> str:
    if path in ADMIN_PATHS:
        return METRICS
    return MODELS if path == _MODELS_PATH or path.startswith(_MODELS_PATH + "/") else INFERENCE
