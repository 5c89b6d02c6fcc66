"""What rank 0 and another rank tell each other, but for the steps (`step_bytes`): JSON, one object a message."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from engine.config import EngineConfig

T = TypeVar("T")


class Join(msgspec.Struct, frozen=True):
    """Rank 0: be this rank."""

    rank: int
    config: EngineConfig
    implementation: str | None
    store_fd: int  # open file of the store in which the ranks find each other


class Allocate(msgspec.Struct, frozen=True):
    """Rank 0: make a KV cache of so many blocks. From here on only steps follow."""

    num_blocks: int


class Reached(msgspec.Struct, frozen=True, tag=True):
    """A rank is so far: "started", "loaded", "ready"."""

    phase: str


class Counted(msgspec.Struct, frozen=True, tag=True):
    """So many KV blocks fit beside a rank's part of the model."""

    num_blocks: int


class Said(msgspec.Struct, frozen=True, tag=True):
    """A rank's log record, for rank 0 to log."""

    logger: str
    level: int
    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A rank ends because of this."""

    error: str
    is_config_error: bool


Report = Reached | Counted | Said | Failed

_encoder = msgspec.json.Encoder(enc_hook=str)  # paths
_report_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Join | Allocate | Report) -> bytes:
    """To bytes."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    """From rank 0."""
    return msgspec.json.decode(data, type=kind, dec_hook=lambda path, text: path(text))


def decode_report(data: bytes) -> Report:
    """From another rank."""
    return _report_decoder.decode(data)
