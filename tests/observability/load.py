"""A small load in the background, and what a scrape of a box says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.box.running_box import RunningBox

MODEL = "SmolLM2-135M-Instruct"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def complete(
    box: RunningBox, *, timeout: float = 60, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """One completion of an exact length."""
    request = {"model": MODEL, "prompt": [504, 253], "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(f"{box.url}/v1/completions", json=request, headers=headers, timeout=timeout)


def scrape(box: RunningBox) -> str:
    """The metrics' text."""
    answer = httpx.get(f"{box.url}/metrics", timeout=20)
    assert answer.status_code == 200
    return answer.text


def read_series(text: str, kinds: tuple[str, ...] = ("counter", "histogram", "gauge")) -> Series:
    """Values by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in kinds
        for sample in family.samples
    }


def sum_of(series: Series, name: str, **labels: str) -> float:
    """The sum of the series of a name that have these labels; 0 where there are none yet."""
    wanted = set(labels.items())
    return sum(value for (found, pairs), value in series.items() if found == name and wanted <= set(pairs))


def total(series: Series, name: str, **labels: str) -> float:
    """The same, of a name that must be there."""
    assert any(found == name for found, _ in series), f"there is no {name}"
    return sum_of(series, name, **labels)


def check_none_decreased(before: Series, after: Series) -> None:
    """Counters and histograms only grow."""
    shrunk = {key: (value, after.get(key)) for key, value in before.items() if after.get(key, value) < value}
    assert not shrunk


@contextlib.contextmanager
def in_background(*jobs: Callable[[], object]) -> Iterator[None]:
    """Each job again and again in a thread of its own, its HTTP errors being its own business."""
    ended = threading.Event()

    def repeat(job: Callable[[], object]) -> None:
        while not ended.is_set():
            try:
                job()
            except httpx.HTTPError:
                time.sleep(0.05)

    threads = [threading.Thread(target=repeat, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
