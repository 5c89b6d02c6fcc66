"""Is the box ready, and if not, how far is it? Asks the engines over their sockets and the API through the proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.settings import Settings
from engine.client import EngineClient
from engine.errors import EngineError
from engine.messages import EngineInfo

_PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class EngineProgress:
    """How far one engine is."""

    name: str  # of its model
    phase: str
    percent: float
    is_ready: bool
    pid: int
    seconds: Mapping[str, float] = field(default_factory=dict)  # that each finished phase took


class Readiness:
    """Asks. `start` it in the event loop that uses it."""

    def __init__(self, settings: Settings, names: list[str]) -> None:
        assert settings.run_dir is not None
        self._settings = settings
        self._names = names
        self._clients = [EngineClient(settings.run_dir / f"engine-{index}.sock") for index in range(len(names))]

    async def start(self) -> None:
        """Begin to connect to the engines."""
        for client in self._clients:
            await client.start()

    async def close(self) -> None:
        """Let go of the engines' sockets."""
        for client in self._clients:
            await client.close()

    async def engines(self) -> list[EngineProgress]:
        """How far each engine is."""
        infos = await asyncio.gather(*(self._info(client) for client in self._clients))
        return [self._progress(name, info) for name, info in zip(self._names, infos, strict=True)]

    async def is_answering(self) -> bool:
        """Whether /health answers 200 through the proxy."""
        return await probe(self._settings, "/health") == 200

    @staticmethod
    async def _info(client: EngineClient) -> EngineInfo | None:
        with contextlib.suppress(EngineError):
            return await client.info(timeout_s=1.0)
        return None

    @staticmethod
    def _progress(name: str, info: EngineInfo | None) -> EngineProgress:
        if info is None:
            return EngineProgress(name, "starting", 0.0, False, 0)
        return EngineProgress(name, info.phase, info.percent, info.is_ready, info.pid, info.phase_seconds)


async def probe(settings: Settings, path: str) -> int:
    """The status of a GET through the proxy; 0 where nobody answers."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await connect(settings)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                words = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0
    return int(words[1]) if len(words) > 1 else 0


async def connect(settings: Settings) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the proxy."""
    if settings.uds:
        return await asyncio.open_unix_connection(settings.uds)
    return await asyncio.open_connection(own_address(settings.host), settings.port)


def own_address(host: str) -> str:
    """The address under which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def own_url(settings: Settings) -> str:
    """The box's URL as seen from this machine; over a unix socket the host name means nothing."""
    if settings.uds:
        return "http://localhost"
    host = own_address(settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
