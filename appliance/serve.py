"""`breadbox serve`: check, make the run directory, run the box, clean up."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from types import FrameType
from typing import Any

from appliance.baked_model import BakedModel
from appliance.derived_settings import derive_settings, names_by_model
from appliance.errors import SettingsError
from appliance.logs import configure_logging
from appliance.preflight import find_problems
from appliance.settings import Settings
from appliance.supervisor.box import Box
from appliance.supervisor.console import Console
from appliance.supervisor.readiness import own_url
from appliance.supervisor.run_dir import open_run_dir


def serve(settings: Settings) -> int:
    """Run a box until it is told to stop; returns the exit status. Raises ApplianceError where it can't go on."""
    signal.signal(signal.SIGTERM, _stop_early)
    # This process tells what matters on stdout.
    configure_logging("debug" if settings.log_level == "debug" else "warning", log_format=settings.log_format)
    problems = find_problems(settings)
    if problems:
        raise SettingsError(problems)
    with open_run_dir(settings) as run_dir:
        complete = derive_settings(settings, run_dir.path)
        names = names_by_model(complete, complete.model)
        box = Box(complete, [group[0] for group in names], Console(), make_greeting(complete, names))
        asyncio.run(box.run())
    return 0


def _stop_early(number: int, frame: FrameType | None) -> None:
    """Before the box's own handlers are in place there is nothing to stop but ourselves."""
    sys.exit(0)


def make_greeting(settings: Settings, names: list[list[str]]) -> str:
    """What is printed when the box is ready; ``{seconds}`` is still to be filled in."""
    where = f"unix:{settings.uds}" if settings.uds else own_url(settings)
    served = ", ".join(name for group in names for name in group)
    lines = [
        f"Breadbox is ready after {{seconds:.1f}} s: {where} serves {served}",
        "Try it:",
        f"  {make_curl(settings, names[0][0])}",
    ]
    if settings.api_key or settings.api_key_file:
        lines.insert(2, "  (with one of the API keys in $KEY)")
    if not settings.disable_page and not settings.uds:
        lines.append(f"or open {where}/ in a browser")
    head, *rest = lines
    return "\n".join([head, *(line.replace("{", "{{").replace("}", "}}") for line in rest)])


def make_curl(settings: Settings, name: str) -> str:
    """A command line that gets an answer of this box."""
    body: dict[str, Any]
    if settings.chat_template is not None or BakedModel(settings.model[0]).chat_template is not None:
        path, body = (
            "chat/completions",
            {"model": name, "messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 64},
        )
    else:
        path, body = "completions", {"model": name, "prompt": "Hello", "max_tokens": 32}
    words = [
        "curl",
        "-s",
        *(["--unix-socket", str(settings.uds)] if settings.uds else []),
        f"{own_url(settings)}/v1/{path}",
    ]
    command = shlex.join([*words, "-H", "Content-Type: application/json"])
    if settings.api_key or settings.api_key_file:
        command += ' -H "Authorization: Bearer $KEY"'
    return f"{command} -d {shlex.quote(json.dumps(body))}"
