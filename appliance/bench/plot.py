"""Draws a load as an SVG picture: what each request did when, and how TTFT, ITL and E2E are distributed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from appliance.bench.load import LoadResult
from appliance.bench.result import RequestResult
from appliance.errors import SettingsError

_WIDTH = 1000
_TIMELINE_HEIGHT = 420
_CURVE_HEIGHT = 240
_MARGIN = 60
_GAP = 50
_MAX_POINTS = 400
_WAITING, _RUNNING, _FAILED, _INK, _GRID = "#f0b45a", "#3b7dd8", "#d0342c", "#333", "#ddd"


def draw(path: Path, load: LoadResult, title: str) -> None:
    """Write the picture. Raises SettingsError where it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(load, title), encoding="utf-8")
    except OSError as error:
        raise SettingsError([f"--plot: {path} cannot be written: {error.strerror}"]) from None


def render(load: LoadResult, title: str) -> str:
    """The picture's SVG."""
    height = _MARGIN + _TIMELINE_HEIGHT + _GAP + _CURVE_HEIGHT + _MARGIN
    top = _MARGIN + _TIMELINE_HEIGHT + _GAP
    width = (_WIDTH - 2 * _MARGIN - 2 * _GAP) / 3
    done = [result for result in load.results if result.is_success]
    curves = [
        ("TTFT", [1000 * result.ttft_s for result in done]),
        ("ITL", [1000 * gap_s for result in done for gap_s in result.itls_s]),
        ("E2E", [1000 * result.e2e_s for result in done]),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(_MARGIN, 24, title, size=16),
        *_timeline(_Box(_MARGIN, _MARGIN, _WIDTH - 2 * _MARGIN, _TIMELINE_HEIGHT), load),
    ]
    for index, (name, values) in enumerate(curves):
        box = _Box(_MARGIN + index * (width + _GAP), top, width, _CURVE_HEIGHT)
        parts += _curve(box, f"{name} (ms): share of all at or below", values)
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Box:
    """Where a diagram stands."""

    left: float
    top: float
    width: float
    height: float

    def x_scale(self, most: float) -> Callable[[float], float]:
        return lambda value: self.left + self.width * value / most


def _timeline(box: _Box, load: LoadResult) -> list[str]:
    """A bar for each request: waiting for its first token, then running; failed ones are marked."""
    longest_s = max(load.duration_s, 1e-3)
    x = box.x_scale(longest_s)
    row = box.height / max(1, len(load.results))
    parts = [_text(box.left, box.top - 8, "requests over time (s):"), *_legend(box.left + 150, box.top - 8)]
    parts += _x_axis(box, longest_s)
    for index, result in enumerate(load.results):
        parts += _bars(result, load.started_s, x, box.top + index * row, max(0.3, 0.85 * row))
    return parts


def _bars(result: RequestResult, started_s: float, x: Callable[[float], float], top: float, height: float) -> list[str]:
    at_s = result.started_s - started_s
    if not result.is_success:
        return [_rect(x(at_s), top, 3.0, height, _FAILED)]
    first, last = x(at_s + result.ttft_s), x(at_s + result.e2e_s)
    return [_rect(x(at_s), top, first - x(at_s), height, _WAITING), _rect(first, top, last - first, height, _RUNNING)]


def _legend(left: float, base: float) -> list[str]:
    parts = []
    for name, colour in (("until first token", _WAITING), ("until last token", _RUNNING), ("failed", _FAILED)):
        parts += [_rect(left, base - 10, 10, 10, colour), _text(left + 15, base, name)]
        left += 130
    return parts


def _curve(box: _Box, title: str, values: Sequence[float]) -> list[str]:
    """The share of values (upwards) that are no greater than x."""
    parts = [_text(box.left, box.top - 8, title)]
    if not values:
        return parts
    ordered = sorted(values)
    most = max(ordered[-1], 1e-6)
    x = box.x_scale(most)
    chosen = sorted({round(index * (len(ordered) - 1) / _MAX_POINTS) for index in range(_MAX_POINTS + 1)})
    points = [(x(ordered[index]), box.top + box.height * (1 - (index + 1) / len(ordered))) for index in chosen]
    line = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    for percent in (50, 90, 99):
        top = box.top + box.height * (1 - percent / 100)
        parts += [
            _line(box.left, top, box.left + box.width, top),
            _text(box.left - 30, top + 4, f"{percent} %", size=10),
        ]
    return [
        *parts,
        *_x_axis(box, most),
        f'<polyline points="{line}" fill="none" stroke="{_RUNNING}" stroke-width="2"/>',
    ]


def _x_axis(box: _Box, most: float) -> list[str]:
    step = _round_step(most / 5)
    bottom = box.top + box.height
    x = box.x_scale(most)
    parts = [f'<path d="M{box.left:.1f} {bottom:.1f}h{box.width:.1f}" stroke="{_INK}"/>']
    for index in range(math.floor(most / step) + 1):
        value = index * step
        parts += [_line(x(value), box.top, x(value), bottom), _text(x(value) - 4, bottom + 16, f"{value:g}", size=10)]
    return parts


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not smaller than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999))


def _rect(left: float, top: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.2f}" width="{max(width, 0):.1f}" height="{height:.2f}" fill="{colour}"/>'


def _line(left: float, top: float, right: float, bottom: float) -> str:
    return f'<path d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}" stroke="{_GRID}"/>'


def _text(left: float, base: float, text: str, size: int = 12) -> str:
    return f'<text x="{left:.1f}" y="{base:.1f}" font-size="{size}">{escape(text)}</text>'
