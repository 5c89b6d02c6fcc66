"""Answers that may be continued or fetched later: one file each in the run directory, so any API worker finds them.

Each belongs to its owner, who is part of the file's name: another's response is looked for where it is not, and takes
as long to be missed as one that never was. Bounded by count and by bytes, over all owners; the owner who keeps most
loses what he has not used for longest, so that nobody's flood pushes out another's. The run directory is private to
the user and goes with the box: nothing outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

logger = logging.getLogger(__name__)

_ID = re.compile(r"resp_[0-9a-f]{32}")


class StoredResponse(msgspec.Struct, frozen=True):
    """``items`` is the whole conversation in the shape of `input_items`, this answer last."""

    response: dict[str, Any]
    items: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ResponseStore:
    """What one ``owner`` (the name of an API key, empty without keys) sees of the store.

    ``folder`` None, or a bound of 0: nothing is kept.
    """

    folder: Path | None
    max_count: int
    max_bytes: int
    owner: str = ""

    @property
    def is_on(self) -> bool:
        """Whether anything is kept at all."""
        return self.folder is not None and self.max_count > 0 and self.max_bytes > 0

    async def put(self, stored: StoredResponse) -> None:
        """Keep it; what does not fit at all is dropped, and the log says so."""
        if self.is_on:
            await asyncio.to_thread(self._put, stored)

    async def get(self, response_id: str) -> StoredResponse | None:
        """None for what never was, is gone, or is another's."""
        path = self._path(response_id)
        return None if path is None else await asyncio.to_thread(_read, path)

    async def delete(self, response_id: str) -> bool:
        """Whether it was there."""
        path = self._path(response_id)
        return path is not None and await asyncio.to_thread(_remove, path)

    def _path(self, response_id: str) -> Path | None:
        # The id comes from a client: nothing but our own ids may become a path.
        if self.folder is None or not _ID.fullmatch(response_id):
            return None
        owner = hashlib.sha256(self.owner.encode()).hexdigest()[:32]
        return self.folder / f"{response_id}.{owner}.json"

    def _put(self, stored: StoredResponse) -> None:
        path, data = self._path(stored.response["id"]), msgspec.json.encode(stored)
        if path is None or len(data) > self.max_bytes:
            logger.warning("response_id=%s is not stored bytes=%d", stored.response["id"], len(data))
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, data)
            self._make_room()
        except OSError as error:
            logger.error("response_id=%s cannot be stored: %s", stored.response["id"], error)

    def _make_room(self) -> None:
        """Several workers may do so at once: a file that is gone already is as good as removed."""
        assert self.folder is not None
        by_owner: dict[str, deque[_File]] = defaultdict(deque)
        for file in sorted(_list(self.folder)):
            by_owner[file.owner].append(file)
        while sum(map(len, by_owner.values())) > self.max_count:
            _remove(max(by_owner.values(), key=len).popleft().path)
        while sum(map(_num_bytes, by_owner.values())) > self.max_bytes:
            _remove(max(by_owner.values(), key=_num_bytes).popleft().path)


class _File(NamedTuple):
    used_at_ns: int
    size: int
    path: Path

    @property
    def owner(self) -> str:
        """As it stands in the name, of a file that is just being written, too."""
        return self.path.suffixes[-2] if len(self.path.suffixes) > 1 else ""


def _list(folder: Path) -> list[_File]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                found.append(_File(status.st_mtime_ns, status.st_size, Path(entry.path)))
    return found


def _num_bytes(files: Sequence[_File]) -> int:
    return sum(file.size for file in files)


def _write(path: Path, data: bytes) -> None:
    """A reader sees all of it or nothing."""
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        _remove(draft)
        raise


def _read(path: Path) -> StoredResponse | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)  # now it is the last that goes
    return msgspec.json.decode(data, type=StoredResponse)


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
