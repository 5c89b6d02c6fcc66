"""Requests that may have made an engine fail: which are tried again alone, and which are not tried again at all.

Everything that was in hand when an engine failed by its own fault is suspected. A suspect gets steps of its own
(`engine.scheduler.quarantine`), so that the next fault says who it was: one that was alone in hand and suspected
before is convicted, and so is one that was there more often than all others. Kept in a file, because each verdict
needs two lives of the engine. A convicted request's content is remembered for a while: its client may send it again
under another name.
"""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

import msgspec

from engine.autopsy import Death
from engine.messages import GenerateRequest

logger = logging.getLogger(__name__)

REFUSED_FOR_S = 600.0
FORGOTTEN_AFTER_S = 3600.0  # a suspect that nobody submitted again
_encode = msgspec.msgpack.Encoder().encode


class Suspicion(msgspec.Struct):
    """What is known against one request."""

    num_faults: int = 0
    num_output_tokens: int = 0  # it had when it was last in hand
    seen_at: float = 0.0  # seconds, monotonic
    digest: str = ""  # of its content, once it was seen again
    is_convicted: bool = False


class _Records(msgspec.Struct):
    suspects: dict[str, Suspicion] = {}  # by key, in hex
    refused: dict[str, float] = {}  # until when, by digest


class Suspects:
    """The list. Without a path it only lasts as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._records = _load(path) if path else _Records()
        self._expire(time.monotonic())

    def take_death(self, death: Death) -> None:
        """An engine ended. Whose fault was it?"""
        if death.fault is None or not death.in_hand:
            return
        now = time.monotonic()
        seen = {item.key.hex(): item for item in death.in_hand}
        for key, item in seen.items():
            suspicion = self._records.suspects.setdefault(key, Suspicion())
            suspicion.num_faults += 1
            suspicion.num_output_tokens = max(suspicion.num_output_tokens, item.num_output_tokens)
            suspicion.seen_at = now
        self._convict(list(seen), now)
        self._write()

    def find(self, key: bytes) -> Suspicion | None:
        """What is known against the request with this key, if anything."""
        return self._records.suspects.get(key.hex())

    def must_refuse(self, key: bytes, request: GenerateRequest) -> bool:
        """Whether the request, or one of the same content, is known to make engines fail."""
        suspicion = self.find(key)
        self._forgive(time.monotonic())
        if suspicion is None and not self._records.refused:
            return False
        digest = _digest(request)
        if digest in self._records.refused:
            return True
        if suspicion is None:
            return False
        if suspicion.is_convicted:
            self._refuse(digest)
            self._write()
        elif suspicion.digest != digest:
            suspicion.digest = digest
            self._write()
        return suspicion.is_convicted

    def forget(self, key: bytes) -> None:
        """The request has ended."""
        if self._records.suspects.pop(key.hex(), None) is not None:
            self._write()

    def _convict(self, keys: list[str], now: float) -> None:
        ranked = sorted(keys, key=lambda key: self._records.suspects[key].num_faults, reverse=True)
        worst = self._records.suspects[ranked[0]]
        others = [self._records.suspects[key].num_faults for key in ranked[1:]]
        # Alone in hand it takes two faults to be sure, in company a third.
        if worst.num_faults < (3 if others else 2) or (others and others[0] == worst.num_faults):
            return
        worst.is_convicted = True
        logger.error("a request made the engine fail %d times and is refused key=%s", worst.num_faults, ranked[0])
        if worst.digest:
            self._refuse(worst.digest, now)

    def _refuse(self, digest: str, now: float | None = None) -> None:
        self._records.refused[digest] = (time.monotonic() if now is None else now) + REFUSED_FOR_S

    def _forgive(self, now: float) -> None:
        """As long as any content is refused, every request's has to be looked at: no longer than it must be.

        A time that cannot be yet was kept before this machine started.
        """
        refused = self._records.refused
        self._records.refused = {key: until for key, until in refused.items() if now < until <= now + REFUSED_FOR_S}

    def _expire(self, now: float) -> None:
        self._forgive(now)
        records = self._records
        records.suspects = {
            key: suspicion
            for key, suspicion in records.suspects.items()
            if now - FORGOTTEN_AFTER_S < suspicion.seen_at <= now
        }

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(self._records))
            fresh.replace(self._path)
        except OSError as error:
            logger.warning("suspects not kept path=%s error=%s", self._path, error)


def _load(path: Path) -> _Records:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Records)
    except FileNotFoundError:
        return _Records()
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("kept suspects cannot be read path=%s error=%s", path, error)
        return _Records()


def _digest(request: GenerateRequest) -> str:
    """Of what a request asks for. Not its seed: where the caller gave none, each has another."""
    sampling = msgspec.structs.replace(request.sampling, seed=0)
    content = _encode((request.prompt_token_ids, sampling))
    return hashlib.blake2b(content, digest_size=16).hexdigest()
