"""The server to measure: which model it serves, where that model's tokenizer is, and whether it answers at all."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from appliance.bench.http_client import HttpServer
from appliance.bench.http_response import HttpError
from appliance.bench.prompt_tokenizer import EstimatingTokenizer, ModelTokenizer, PromptTokenizer
from appliance.bench.request_body import BodyOptions, make_body
from appliance.bench.result import digest
from appliance.settings import load_settings_and_problems

_LOOK_S = 0.25
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104 - an address to recognise


async def first_model(server: HttpServer) -> dict[str, Any]:
    """The first card of /v1/models. Raises HttpError."""
    status, body = await server.get("/v1/models")
    try:
        card = json.loads(body)["data"][0]
        if status == 200 and isinstance(card["id"], str):
            return dict(card)
    except (ValueError, LookupError, TypeError):
        pass
    raise HttpError(f"{server.url}/v1/models names no model (HTTP {status}): give one with --model")


async def wait_until_ready(
    server: HttpServer, timeout_s: float, path: str, is_chat: bool, model: str | None = None
) -> None:
    """Send a small request again and again until it is answered. Raises HttpError with the last reason."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        reason = await _try(server, deadline_s, path, is_chat, model)
        if reason is None:
            return
        if time.monotonic() >= deadline_s:
            raise HttpError(f"{server.url} was not ready within {timeout_s:g} s: {reason}")
        await asyncio.sleep(_LOOK_S)


async def _try(server: HttpServer, deadline_s: float, path: str, is_chat: bool, model: str | None) -> str | None:
    """Why it is not ready."""
    try:
        name = model or str((await first_model(server))["id"])
    except HttpError as error:
        return str(error)
    body = make_body(BodyOptions(name, is_chat), "Hello", 1)
    stream = await server.post_stream(path, body, max(1.0, deadline_s - time.monotonic()))
    return digest(stream, stream.started_s, 1).error


def find_tokenizer_file(server: HttpServer, card: dict[str, Any]) -> Path | None:
    """The tokenizer.json of a model served from this machine: vLLM's card names the folder, a box's the model."""
    if server.host not in LOCAL_HOSTS:
        return None
    models_dir = load_settings_and_problems({})[0].settings.models_dir.expanduser()
    names = [name for key in ("root", "id") if isinstance(name := card.get(key), str) and name]
    folders = [Path(name) for name in names if "/" in name]
    folders += [models_dir / Path(name).name for name in names]
    return next((file for folder in folders if (file := folder / "tokenizer.json").is_file()), None)


def load_tokenizer(file: Path | None) -> PromptTokenizer:
    """The model's own, or one that estimates, which is told."""
    if file:
        return ModelTokenizer(file)
    print("no tokenizer: the lengths of prompts are estimated (name one with --tokenizer)", file=sys.stderr)
    return EstimatingTokenizer()
