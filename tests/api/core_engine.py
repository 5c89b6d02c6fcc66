"""The real engine core in this process, over a runner that draws any token that a grammar allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from engine.client import Listener
from engine.core import EngineCore
from engine.messages import EngineInfo, GenerateRequest, RequestOutput
from tests.unit.grammar.builders import Engine


class CoreEngine:
    """Implements what the API needs of `engine.client.EngineClient`; steps the core in the event loop."""

    was_ready = True

    def __init__(self, inner: Engine) -> None:
        self.core: EngineCore = inner.core
        self.submitted: list[GenerateRequest] = []
        self._queues: dict[str, asyncio.Queue[RequestOutput]] = {}
        self._pump: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.core.on_grammar(lambda: loop.call_soon_threadsafe(self._wake.set))
        self._pump = asyncio.create_task(self._run())

    async def close(self) -> None:
        assert self._pump is not None
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while self.core.has_work():
                for output in self.core.step():
                    if output.request_id in self._queues:
                        self._queues[output.request_id].put_nowait(output)
                await asyncio.sleep(0)
            await self._wake.wait()
            self._wake.clear()

    async def submit(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncIterator[RequestOutput]:
        self.submitted.append(request)
        queue = self._queues[request.request_id] = asyncio.Queue()
        try:
            refusal = self.core.add(request)
            if refusal is not None:
                queue.put_nowait(refusal)
            self._wake.set()
            while True:
                output = await asyncio.wait_for(queue.get(), 20)
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            del self._queues[request.request_id]
            self.core.abort([request.request_id])

    async def abort(self, request_ids: Iterable[str], finish_reason: str = "abort") -> None:
        self.core.abort(request_ids)

    async def info(self, timeout_s: float = 2.0) -> EngineInfo:
        return EngineInfo(
            call_id=0, engine_id="core", pid=1, phase="ready", percent=100.0, is_ready=True, phase_seconds={}
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """It never goes away."""

    async def metrics(self, timeout_s: float = 2.0, *, openmetrics: bool = False) -> str:
        return self.core.metrics.render()

    async def reset_prefix_cache(self) -> bool:
        return self.core.reset_prefix_cache()
