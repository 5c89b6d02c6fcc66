"""Chained block hashes: the hash of a full block covers its tokens and everything before them.

A 128 bit BLAKE2b keyed with a secret of the process, so that no caller can construct two prompts that collide and
read another's cache. The salt of a request is the root of its chain: requests with different salts share no hash.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence

_HASH_BYTES = 16


class BlockHasher:
    """Makes the hashes of one engine process."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def root(self, salt: str | None) -> bytes:
        """The parent of a first block."""
        return self._digest(b"\0" if salt is None else b"\1" + salt.encode("utf-8", "surrogatepass"))

    def block(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The hash of a full block that follows the block hashed to `parent`."""
        return self._digest(parent + array("I", token_ids).tobytes())

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_HASH_BYTES, key=self._key).digest()
