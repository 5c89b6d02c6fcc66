"""One API key: known by the digest of its secret, with a name, scopes, limits and an end."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

PREFIX = "bb-"
_SECRET_BYTES = 32
MIN_CHARS = 16
"""A plain digest protects only what cannot be guessed: shorter keys are not taken into a file."""

INFERENCE, MODELS, METRICS = "inference", "models", "metrics"
SCOPES = {
    INFERENCE: "everything that is not in another scope",
    MODELS: "GET /v1/models",
    METRICS: "/metrics and /load",
}
DEFAULT_SCOPES = frozenset({INFERENCE, MODELS})


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may use; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and outputs
    max_concurrent: int | None = None  # requests to the model at once

    def __bool__(self) -> bool:
        return any(limit is not None for limit in dataclasses.astuple(self))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Several digests are one key, so that a new secret can be handed out before the old one is taken away."""

    name: str
    digests: tuple[bytes, ...]
    scopes: frozenset[str] = frozenset(SCOPES)
    limits: KeyLimits = field(default_factory=KeyLimits)
    expires_s: float | None = None  # seconds since the epoch

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires_s is not None and time.time() >= self.expires_s


def make_secret() -> str:
    """A new key with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def digest(secret: bytes) -> bytes:
    """What is kept of a key. A plain SHA-256: nobody can try 256 bits out, and each request needs it at once."""
    return hashlib.sha256(secret).digest()


class KeyRing:
    """All keys of a box."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)
        self._digests = [(known, key) for key in self.keys for known in key.digests]

    def find(self, secret: str) -> ApiKey | None:
        """Whose key this is, as a header holds it; all digests are compared, so the time does not say which it was."""
        # Header values arrive as latin-1 text; the client meant these bytes.
        presented = digest(secret.encode("latin-1"))
        found = None
        for known, key in self._digests:
            if hmac.compare_digest(presented, known):
                found = key
        return found


def make_plain_keys(secrets_given: Iterable[str]) -> list[ApiKey]:
    """The keys of ``--api-key``: they may do everything, without limits."""
    given = [secret for secret in secrets_given if secret]
    return [ApiKey(f"{PLAIN_NAME}{number}", (digest(secret.encode()),)) for number, secret in enumerate(given, 1)]


PLAIN_NAME = "api-key-"
"""How the names of ``--api-key``'s keys begin."""
