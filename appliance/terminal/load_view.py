"""Draws a box's load as lines of text, with colours where the screen has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.terminal.box_load import BoxLoad, ModelLoad
from appliance.terminal.screen import Screen

_BARS = " ▁▂▃▄▅▆▇█"
_BAR_CELLS = 24
_STATUS_STYLES = {"ready": "green", "away": "red"}
_FULL, _NEARLY_FULL = 0.95, 0.8


class LoadView:
    """``history`` of `draw` holds each model's tokens per second, oldest first."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def draw(self, load: BoxLoad, history: Mapping[str, Sequence[float]] | None = None, width: int = 80) -> list[str]:
        """The lines."""
        lines = [self._head(load)]
        for model in load.models:
            lines += ["", *self._model(model, (history or {}).get(model.name, ()), width)]
        return lines

    def _head(self, load: BoxLoad) -> str:
        style = self._screen.style
        words = [style("Breadbox", "bold") + (f" {load.version}" if load.version else ""), load.url]
        words.append(style(load.status, _STATUS_STYLES.get(load.status, "yellow")))
        if load.num_restarts:
            words.append(style(f"{load.num_restarts:.0f} restarts", "yellow"))
        if load.num_rejected:
            words.append(f"{load.num_rejected:.0f} refused")
        return "  ".join(words)

    def _model(self, model: ModelLoad, history: Sequence[float], width: int) -> list[str]:
        style = self._screen.style
        if model.running is None:
            phase = f"{model.phase} {model.percent:.0f} %" if model.percent else model.phase
            bar = self._bar(model.percent / 100, "cyan") if model.percent else ""
            return [style(model.name, "bold"), f"  {style(phase, 'yellow')}  {bar}".rstrip()]
        waiting = style(f"{model.waiting:.0f} waiting", "yellow") if model.waiting else "0 waiting"
        lines = [
            style(model.name, "bold") + ("" if model.is_ready else "  " + style(model.phase, "yellow")),
            self._row("requests", f"{model.running:.0f} running, {waiting}"),
            self._row("KV cache", self._kv(model)),
            self._row("tokens/s", self._rates(model)),
            self._row("first token", self._quantiles(model.ttft_s)),
            self._row("between tokens", self._quantiles(model.itl_s)),
        ]
        if len(history) > 1:
            lines.append(self._row("", style(sparkline(history, max(10, width - 20)), "cyan")))
        return lines

    def _row(self, name: str, text: str) -> str:
        return f"  {self._screen.style(f'{name:<15}', 'dim')} {text}"

    def _kv(self, model: ModelLoad) -> str:
        usage = model.kv_usage or 0.0
        colour = "red" if usage >= _FULL else "yellow" if usage >= _NEARLY_FULL else "green"
        words = [f"{100 * usage:5.1f} %"]
        if self._screen.is_terminal:
            words.insert(0, self._bar(usage, colour))
        if model.prefix_hit_rate is not None:
            words.append(f"prefix hits {100 * model.prefix_hit_rate:.0f} %")
        if model.preemptions:
            words.append(self._screen.style(f"{model.preemptions:.0f} preemptions", "yellow"))
        return "  ".join(words).strip()

    def _bar(self, share: float, colour: str) -> str:
        filled = round(_BAR_CELLS * min(1.0, share))
        return self._screen.style("█" * filled, colour) + self._screen.style("░" * (_BAR_CELLS - filled), "dim")

    def _rates(self, model: ModelLoad) -> str:
        bold = self._screen.style(f"{model.output_tokens_per_s or 0:.1f}", "bold")
        return f"{bold} written, {model.prompt_tokens_per_s or 0:.1f} read"

    @staticmethod
    def _quantiles(values: tuple[float | None, ...]) -> str:
        names = ("median", "95 %", "99 %")
        return "   ".join(f"{name} {_duration(value)}" for name, value in zip(names, values, strict=True))


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values as bars, the highest of them being full."""
    shown = list(values)[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(_BARS[min(8, round(8 * value / highest))] if value else _BARS[0] for value in shown)


def _duration(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
