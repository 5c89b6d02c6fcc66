"""Ids: the one that a client may bring along for tracing, and the ones that we make."""

from __future__ import annotations

import re
import uuid

HEADER = b"x-request-id"
_CLEAN = re.compile(r"[\x21-\x7e]{1,128}")


def clean_request_id(value: str | None) -> str | None:
    """The id if it is 1 to 128 visible ASCII characters, else None: it goes into headers and logs."""
    return value if value is not None and _CLEAN.fullmatch(value) else None


def make_request_id() -> str:
    """A fresh id for a request that brought none."""
    return uuid.uuid4().hex


def make_object_id(prefix: str, separator: str = "-") -> str:
    """A response object's id, e.g. ``chatcmpl-…``: always ours, so always unique."""
    return f"{prefix}{separator}{uuid.uuid4().hex}"
