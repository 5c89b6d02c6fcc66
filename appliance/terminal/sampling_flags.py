"""The sampling parameters of chat and complete: as flags, and by name while a chat runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

SAMPLING: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_tokens": (int, "most tokens of an answer"),
    "temperature": (float, "0 always takes the likeliest token"),
    "top_p": (float, "only the likeliest tokens that make up this share"),
    "top_k": (int, "only so many of the likeliest tokens"),
    "min_p": (float, "only tokens at least so likely, relative to the likeliest"),
    "repetition_penalty": (float, "above 1 tokens that were there get less likely"),
    "seed": (int, "the same seed gives the same answer"),
}


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """What is not given is the model's default."""
    group = parser.add_argument_group("sampling (default: the model's)")
    for name, (kind, meaning) in SAMPLING.items():
        metavar = "N" if kind is int else "X"
        group.add_argument("--" + name.replace("_", "-"), dest=name, type=kind, metavar=metavar, help=meaning)


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of the request."""
    return {name: value for name in SAMPLING if (value := getattr(args, name)) is not None}


def set_sampling(sampling: dict[str, Any], name: str, text: str) -> None:
    """Change one by its name; "default" takes it out. Raises ValueError with a message for people."""
    name = name.replace("-", "_")
    if name not in SAMPLING:
        raise ValueError(f"there is no {name!r}; there are {', '.join(SAMPLING)}")
    if text == "default":
        sampling.pop(name, None)
        return
    try:
        sampling[name] = SAMPLING[name][0](text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a number") from None
