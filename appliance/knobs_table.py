"""The settings in words: the effective ones with where each came from, and the README's table of all knobs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from appliance.settings import KNOBS, Knob, LoadedSettings, describe_default

_MASK = "********"


def effective_settings(loaded: LoadedSettings) -> dict[str, dict[str, Any]]:
    """name → {"value", "source"}, secrets masked, in a form that JSON can hold."""
    values = dataclasses.asdict(loaded.settings)
    return {
        knob.name: {"value": _plain(knob, values[knob.name]), "source": loaded.sources[knob.name]} for knob in KNOBS
    }


def as_json(loaded: LoadedSettings) -> str:
    """For programs."""
    return json.dumps(effective_settings(loaded), indent=2)


def as_text(loaded: LoadedSettings) -> str:
    """For people: a line a knob, grouped."""
    lines: list[str] = []
    group = ""
    for knob, entry in zip(KNOBS, effective_settings(loaded).values(), strict=True):
        if knob.group != group:
            group = knob.group
            lines += ["", group]
        source = {"flag": knob.flag, "environment": knob.variable}.get(entry["source"], "default")
        lines.append(f"  {knob.name:<32} {_shown(entry['value']):<40} {source}")
    return "\n".join(lines[1:])


def as_markdown() -> str:
    """The README's table."""
    lines: list[str] = []
    group = ""
    for knob in KNOBS:
        if knob.group != group:
            group = knob.group
            lines += ["", f"**{group}**", "", "| flag | default | meaning |", "|---|---|---|"]
        choices = f" ({', '.join(knob.choices)})" if knob.choices else ""
        lines.append(f"| `{knob.flag}` | {describe_default(knob)} | {knob.help}{choices} |".replace("*", "\\*"))
    return "\n".join([line.replace("\\*\\*", "**") for line in lines[1:]])


def _plain(knob: Knob, value: Any) -> Any:
    if knob.is_secret and value:
        return [_MASK] * len(value) if knob.is_list else _MASK
    if knob.is_list:
        return [item if isinstance(item, (str, int, float)) else str(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, dict, type(None))) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ([], ""):
        return "-"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
