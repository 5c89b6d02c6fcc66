"""Runs side by side: a figure's median with its range for each server, and how many times better the first one is.

Ratios are taken within a repetition, where the servers ran one right after the other, and are above 1 where the first
server is better, whichever way the figure points. Spoilt runs and runs with failures are left out, unless there is
nothing else; then the cell is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.bench.comparison.figures import Figure, figures_of
from appliance.bench.comparison.runs import Run
from appliance.bench.statistics import Spread, spread

SPOILT_MARK = "†"
FAILED_MARK = "‡"
_DASH = "–"


@dataclass(frozen=True)
class Cell:
    """One server's figure; ``mark`` says that no clean run stands behind it."""

    value: Spread | None
    mark: str = ""

    def __str__(self) -> str:
        return (_DASH if self.value is None else format_spread(self.value)) + self.mark


@dataclass(frozen=True)
class Row:
    """``ratios`` are those of the first server to each of the others, ``best_ratio`` that to the best of them."""

    load: str
    figure: Figure
    cells: list[Cell]
    ratios: list[Spread | None]

    @property
    def best_ratio(self) -> Spread | None:
        """The smallest ratio: that to the strongest of the others."""
        known = [ratio for ratio in self.ratios if ratio is not None]
        return min(known, key=lambda ratio: ratio.median, default=None)


def make_rows(runs: Sequence[Run], targets: Sequence[str]) -> list[Row]:
    """A row for each figure of each load, in the order in which the loads were run."""
    loads = dict.fromkeys(run.load for run in runs)
    return [_make_row(load, figure, runs, targets) for load in loads for figure in figures_of(load)]


def _make_row(load: str, figure: Figure, runs: Sequence[Run], targets: Sequence[str]) -> Row:
    chosen, marks = [], []
    for target in targets:
        usable, mark = _choose([run for run in runs if (run.load, run.target) == (load, target)])
        chosen.append({run.repetition: run.figures[figure.key] for run in usable})
        marks.append(mark)
    cells = [Cell(spread(list(values.values())), mark) for values, mark in zip(chosen, marks, strict=True)]
    return Row(load, figure, cells, [_ratio(figure, chosen[0], other) for other in chosen[1:]])


def _choose(runs: Sequence[Run]) -> tuple[list[Run], str]:
    answered = [run for run in runs if run.figures]
    clean = [run for run in answered if run.is_clean]
    if clean:
        return clean, ""
    is_failed = any(run.num_failed for run in runs)
    return answered, FAILED_MARK if is_failed else SPOILT_MARK if answered else ""


def _ratio(figure: Figure, first: dict[int, float], other: dict[int, float]) -> Spread | None:
    pairs = [(first[repetition], other[repetition]) for repetition in first if repetition in other]
    if not figure.is_rate:
        pairs = [(theirs, ours) for ours, theirs in pairs]
    return spread([ours / theirs for ours, theirs in pairs if theirs > 0])


def format_spread(value: Spread) -> str:
    """Median (lowest–highest)."""
    low, median, high = (_format(number) for number in (value.low, value.median, value.high))
    return median if low == high else f"{median} ({low}{_DASH}{high})"


def _format(number: float) -> str:
    """Three digits, more only in front of the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _texts(rows: Iterable[Row], targets: Sequence[str]) -> list[list[str]]:
    first, *others = targets
    has_best = len(others) > 1
    best = [f"{first} vs best"] if has_best else []
    table = [["load", "figure", *targets, *(f"{first} vs {other}" for other in others), *best]]
    for row in rows:
        ratios = [*row.ratios, row.best_ratio] if has_best else row.ratios
        table.append([row.load, row.figure.label, *map(str, row.cells), *map(_ratio_text, ratios)])
    return table


def _ratio_text(ratio: Spread | None) -> str:
    return _DASH if ratio is None else f"{format_spread(ratio)} ×"


def as_text(rows: Iterable[Row], targets: Sequence[str]) -> str:
    """Aligned columns; a load's name stands in its first row only."""
    table = _texts(rows, targets)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines, load = [], ""
    for cells in table:
        shown = ["" if cells[0] == load else cells[0], *cells[1:]]
        load = cells[0]
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(shown, widths, strict=True)).rstrip())
    return "\n".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


def as_markdown(rows: Iterable[Row], targets: Sequence[str]) -> str:
    """For a README."""
    head, *body = ([cell.replace("|", "\\|") for cell in line] for line in _texts(rows, targets))
    lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def footnotes(runs: Sequence[Run], targets: Sequence[str]) -> list[str]:
    """What a reader must know to trust the table."""
    repetitions = len({run.repetition for run in runs})
    notes = [f"Median (lowest–highest) of {repetitions} interleaved repetitions; above 1 ×, {targets[0]} is better."]
    spoilt = sum(run.is_spoilt for run in runs)
    unknown = sum(run.usage.other is None for run in runs)
    if spoilt:
        notes.append(f"{spoilt} of {len(runs)} runs were spoilt by others on the machine; {SPOILT_MARK}: no clean run.")
    if unknown:
        notes.append(f"In {unknown} of {len(runs)} runs the use by others is unknown: give --pid NAME=PID.")
    return notes + _target_notes(runs, targets)


def _target_notes(runs: Sequence[Run], targets: Sequence[str]) -> list[str]:
    notes = []
    for target in targets:
        own = [run for run in runs if run.target == target]
        failed = sum(run.num_failed for run in own)
        if failed:
            reason = next(error for run in own for error in run.errors)
            notes.append(f"{target}: {failed} requests failed, such as: {reason} ({FAILED_MARK}: no run without.)")
        wanted = sum(run.num_wanted_tokens for run in own if not run.num_failed)
        given = sum(run.num_output_tokens for run in own if not run.num_failed)
        if wanted != given:
            notes.append(f"{target}: generated {given} tokens where {wanted} were asked for.")
    return notes
