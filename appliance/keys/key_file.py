"""``--api-key-file``: a TOML file with a ``[[key]]`` table for each key, as `breadbox key new` writes them.

::

    [[key]]
    name = "alice"                                  # in logs and metrics never anything else
    hash = "sha256:9f86d0…"                         # or a list of several: the old one and the new one
    expires = 2027-01-31T00:00:00Z                  # or a date
    scopes = ["inference", "models", "metrics"]     # default: inference and models
    requests_per_minute = 60
    tokens_per_minute = 100000
    max_concurrent = 8
"""

from __future__ import annotations

import datetime
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError
from appliance.keys.api_key import DEFAULT_SCOPES, PLAIN_NAME, SCOPES, ApiKey, KeyLimits

MAX_BYTES = 4 * 1024**2
MAX_KEYS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_FIELDS = {"name", "hash", "expires", "scopes", *_LIMITS}


class KeyFileError(ApplianceError):
    """The key file cannot be used; the message is one line that names file, key and field."""


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in the file. Raises KeyFileError."""
    return parse_keys(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """The file's content. Raises KeyFileError."""
    try:
        if not path.is_file():
            raise KeyFileError(f"{path}: there is no such file")
        data = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise KeyFileError(f"{path}: is larger than {MAX_BYTES} bytes")
    return data


def parse_keys(data: bytes, path: Path) -> list[ApiKey]:
    """The keys in the content of `path`. Raises KeyFileError."""
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise KeyFileError(f"{path}: is not valid TOML: {error}") from None
    entries = content.pop("key", [])
    if content:
        raise KeyFileError(f"{path}: {min(content)!r} is not known: only [[key]] tables are")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeyFileError(f"{path}: keys are [[key]] tables, with two brackets")
    if len(entries) > MAX_KEYS:
        raise KeyFileError(f"{path}: has more than {MAX_KEYS} keys")
    try:
        keys = [_read_entry(entry, number) for number, entry in enumerate(entries, 1)]
        _check_unique(keys)
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}") from None
    return keys


def find_writers(path: Path) -> str | None:
    """The problem of a file that every user could give himself a key in."""
    return f"{path}: every user can write it (chmod 640)" if path.stat().st_mode & stat.S_IWOTH else None


def find_readers(path: Path) -> str | None:
    """The same where every user can read it: its hashes give no key away, but names and limits."""
    return f"{path}: every user can read it (chmod 640)" if path.stat().st_mode & stat.S_IROTH else None


def print_entry(name: str, digests: list[bytes], fields: dict[str, Any]) -> str:
    """An entry as TOML; `fields` with a value of None are left out."""
    lines = ["[[key]]", f'name = "{name}"', f'hash = "sha256:{digests[0].hex()}"']
    lines += [f"{field} = {_as_toml(value)}" for field, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _as_toml(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, list) else str(value)


def check_name(name: Any) -> str:
    """The name, if it can be one. Raises ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("name must be 1 to 64 letters, digits and . _ @ -, beginning with a letter or a digit")
    if name.startswith(PLAIN_NAME):
        raise ValueError(f"names that begin with {PLAIN_NAME} are those of --api-key")
    return name


def _read_entry(entry: dict[str, Any], number: int) -> ApiKey:
    name = entry.get("name")
    shown = f"key {name!r}" if isinstance(name, str) and _NAME.fullmatch(name) else f"key number {number}"
    try:
        unknown = sorted(entry.keys() - _FIELDS)
        if unknown:
            raise ValueError(f"there is no field {unknown[0]!r}")
        return ApiKey(
            name=check_name(name),
            digests=tuple(_read_hashes(entry.get("hash"))),
            scopes=_read_scopes(entry.get("scopes")),
            limits=KeyLimits(**{field: _read_limit(field, entry.get(field)) for field in _LIMITS}),
            expires_s=_read_end(entry.get("expires")),
        )
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None


def _read_hashes(value: Any) -> Iterator[bytes]:
    hashes = value if isinstance(value, list) and value else [value]
    for text in hashes:
        match = _HASH.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError('hash must be "sha256:" and 64 digits, as `breadbox key` prints it, or a list of such')
        yield bytes.fromhex(match[1])


def _read_scopes(value: Any) -> frozenset[str]:
    if value is None:
        return DEFAULT_SCOPES
    if not isinstance(value, list) or not value or not all(scope in SCOPES for scope in map(str, value)):
        raise ValueError(f"scopes must be a list of {', '.join(SCOPES)}")
    return frozenset(map(str, value))


def _read_limit(field: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} must be a whole number, at least 1")
    return value


def _read_end(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(value, datetime.date):
        return datetime.datetime.combine(value, datetime.time(), datetime.UTC).timestamp()
    raise ValueError("expires must be a date, or a date and time, without quotes")


def _check_unique(keys: list[ApiKey]) -> None:
    """Raises ValueError."""
    names = Counter(key.name for key in keys)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"key {twice!r} is there twice; one key may have several hashes")
    owners: dict[bytes, str] = {}
    for key in keys:
        for known in key.digests:
            other = owners.setdefault(known, key.name)
            if other != key.name:
                raise ValueError(f"keys {other!r} and {key.name!r} have the same hash")
