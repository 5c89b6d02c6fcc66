"""Parts of an answer that go to the client without a task: what our server offers beside ASGI's ``send``."""

from __future__ import annotations

from typing import Protocol, cast

from starlette.types import Scope

EXTENSION = "breadbox.body"  # of the ASGI scope


class BodyWriter(Protocol):
    """Of one answer; what it writes comes in turn with what is sent."""

    def is_ready(self) -> bool:
        """Whether the answer has begun and the client reads: only then may be written. If not, ``send`` can wait."""

    def write(self, body: bytes) -> None:
        """Another part of the body, not empty, and not the last."""


def get_body_writer(scope: Scope) -> BodyWriter | None:
    """None where another server runs the app."""
    return cast(BodyWriter | None, scope.get("extensions", {}).get(EXTENSION, {}).get("writer"))
