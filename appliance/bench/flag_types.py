"""What words on the command line may be; argparse puts the flag's name in front of what is raised here."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import Any


def whole(least: int) -> Callable[[str], int]:
    """A whole number of at least so much."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise ArgumentTypeError(f"{text} is out of range: at least {least}")
        return value

    return read


def number(above: float, most: float | None = None, may_equal: bool = False) -> Callable[[str], float]:
    """A number above a limit (or equal to it)."""
    limit = f"{'at least' if may_equal else 'above'} {above:g}" + (f", at most {most:g}" if most is not None else "")

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        if not (value > above or (may_equal and value == above)) or (most is not None and value > most):
            raise ArgumentTypeError(f"{text} is out of range: {limit}")
        return value

    return read


def words_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated list of known words."""

    def read(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if word not in known:
                raise ArgumentTypeError(f"{word!r} is not one of {', '.join(known)}")
        return words

    return read


def percents(text: str) -> list[float]:
    """A comma-separated list of percentiles."""
    read = number(0, 100, may_equal=True)
    return [read(word) for word in text.split(",") if word.strip()]


def rates(text: str) -> list[float]:
    """A comma-separated list of rates."""
    read = number(0)
    return [read(word) for word in text.split(",") if word.strip()]


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, found, value = text.partition("=")
    if not name or not found:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def limit(known: Sequence[str]) -> Callable[[str], tuple[str, float]]:
    """METRIC:MS with a known metric."""

    def read(text: str) -> tuple[str, float]:
        name, found, value = text.partition(":")
        if not found or name not in known:
            raise ArgumentTypeError(f"{text!r} is not METRIC:MS with one of {', '.join(known)}")
        return name, number(0, may_equal=True)(value)

    return read


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
