"""Finds a parser class by the name of its format: name → "module:Class", imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from appliance.errors import ApplianceError


def load_parser(registry: Mapping[str, str], name: str, flag: str) -> type:
    """The class that `name` stands for. ApplianceError lists the names there are."""
    target = registry.get(name)
    if target is None:
        raise ApplianceError(f"{flag}: there is no parser {name!r}; there are {', '.join(sorted(registry))}")
    module, _, attribute = target.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found
