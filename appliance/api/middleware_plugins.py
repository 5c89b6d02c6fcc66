"""``--middleware``: what an import path names becomes ASGI middleware, or the box does not start."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any, cast

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from appliance.errors import ApplianceError


def load_plugins(paths: Iterable[str]) -> list[Middleware]:
    """In the order given, the first one outermost. Raises ApplianceError."""
    return [_load(path) for path in paths]


def _load(path: str) -> Middleware:
    plugin = _import(path)
    if isinstance(plugin, type):
        return Middleware(cast(Any, plugin))
    if inspect.iscoroutinefunction(plugin):
        return Middleware(BaseHTTPMiddleware, dispatch=plugin)
    raise ApplianceError(f"--middleware: {path} is neither a class nor a coroutine function")


def _import(path: str) -> Any:
    module, dot, name = path.replace(":", ".").rpartition(".")
    if not dot or not module:
        raise ApplianceError(f"--middleware: {path!r} is not an import path such as package.module.Class")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a plugin's code raises
        raise ApplianceError(f"--middleware: {path} cannot be imported: {error}") from error
