"""The keys of a box as one API worker knows them; follows the key file while the box runs.

A file that is broken changes nothing: the keys that were last in force stay so, also for a worker that begins only
then (a copy in the run directory tells it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from appliance.keys.api_key import KeyRing, make_plain_keys
from appliance.keys.key_file import KeyFileError, find_readers, find_writers, parse_keys, read_bytes

logger = logging.getLogger(__name__)

POLL_S = 0.5
_COPY = "last-good.toml"


class KeyStore:
    """``ring`` is what holds now. Raises KeyFileError where there is no file to begin with."""

    def __init__(self, plain: Iterable[str] = (), path: Path | None = None, folder: Path | None = None) -> None:
        self._plain = make_plain_keys(plain)
        self._path = path
        self._copy = folder / _COPY if folder is not None else None
        self._seen: tuple[int, ...] | None = None
        self._told = ""  # the problem that was logged last
        self.ring = KeyRing(self._plain)
        if path is not None:
            self._begin(path)

    async def run(self) -> None:
        """Follow the file until cancelled; what is read takes effect for requests that begin afterwards."""
        last = self._seen
        while self._path is not None:
            await asyncio.sleep(POLL_S)
            # Only a file that rests is read: half of one that is just being written may look like a whole one.
            last, before = _look_at(self._path), last
            if last == before and last != self._seen:
                try:
                    await asyncio.to_thread(self._reload, self._path)
                except Exception:  # this must not be the end: a key that is taken away must stop being valid
                    logger.exception("api key file could not be followed, it is tried again")

    def _begin(self, path: Path) -> None:
        self._seen = _look_at(path)
        try:
            self._take(read_bytes(path), path)
        except KeyFileError as error:
            if self._copy is None or not self._copy.exists():
                raise
            logger.error("api key file is broken, the keys before stay in force error=%s", error)
            self.ring = KeyRing([*self._plain, *parse_keys(read_bytes(self._copy), self._copy)])

    def _reload(self, path: Path) -> None:
        # Looked at before it is read: what is written meanwhile is seen the next time. What cannot be read now is tried
        # again: a file that only changes its owner looks the same as before.
        self._seen, seen = None, _look_at(path)
        try:
            data = read_bytes(path)
            self._seen = seen
            self._take(data, path)
        except KeyFileError as error:
            if str(error) != self._told:
                logger.error("api key file is broken, the keys before stay in force error=%s", error)
            self._told = str(error)
            return
        self._told = ""
        logger.info("api keys loaded file=%s keys=%d", path, len(self.ring.keys) - len(self._plain))

    def _take(self, data: bytes, path: Path) -> None:
        self.ring = KeyRing([*self._plain, *parse_keys(data, path)])
        with contextlib.suppress(OSError):  # another may just be taking its place
            if warning := find_writers(path) or find_readers(path):
                logger.warning("api key file %s", warning)
        if self._copy is not None:
            self._keep(data, self._copy)

    @staticmethod
    def _keep(data: bytes, copy: Path) -> None:
        mine = copy.with_suffix(f".{os.getpid()}")
        try:
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mine.write_bytes(data)
            mine.replace(copy)
        except OSError as error:
            logger.warning("api key file could not be copied error=%s", error.strerror)


def _look_at(path: Path) -> tuple[int, ...] | None:
    """Changes when the file does, also when another takes its place (as Kubernetes does with links)."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
