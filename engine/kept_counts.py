"""Counts that outlive their process: an engine that is started again goes on where the one before it stopped.

They are written to a file before anyone gets to see them, so that whoever scrapes never sees a counter go down.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

logger = logging.getLogger(__name__)

_KINDS = frozenset({"counter", "histogram"})


class KeptCounts:
    """Adds what earlier processes counted to what this one counts. Without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._base = _load(path) if path else {}
        self._written: dict[str, float] = {}

    def add_base(self, family: Metric) -> None:
        """Make the family's samples those of all processes."""
        if self._base and family.type in _KINDS:
            family.samples = [
                sample._replace(value=sample.value + self._base.get(_key(sample), 0.0)) for sample in family.samples
            ]

    def write(self, families: list[Metric]) -> None:
        """Keep these counts, which must have the base in them. A disk that is full costs only the keeping."""
        if self._path is None:
            return
        counts = {
            _key(sample): sample.value
            for family in families
            if family.type in _KINDS
            for sample in family.samples
            if sample.value
        }
        if counts == self._written:
            return
        try:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(counts), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            logger.warning("counts not kept path=%s error=%s", self._path, error)
        self._written = counts


def _key(sample: Sample) -> str:
    return f"{sample.name} {sorted(sample.labels.items())}"


def _load(path: Path) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        logger.warning("kept counts cannot be read path=%s error=%s", path, error)
        return {}
