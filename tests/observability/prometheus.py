"""A real Prometheus that scrapes a box, and what one asks it."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.box.proxy import free_port

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
STEP_S = 1


def promtool(*words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run([find("promtool"), *map(str, words)], input=stdin, capture_output=True, text=True, timeout=60)


def find(program: str) -> str:
    """The path of one of Prometheus' programs."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (.ci/system-packages tests)")
    return path


class Prometheus:
    """Started on construction; scrapes every second and evaluates our rules."""

    def __init__(self, folder: Path, *targets: str) -> None:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(GRAFANA / "rules" / "*.yml")]
        labels = {"namespace": "tests", "pod": "breadbox-0"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets), "labels": labels}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process = subprocess.Popen(
            [
                find("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **params: Any) -> Any:
        """The data of one of its API's answers."""
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=params, timeout=20).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def wait_scraped(self) -> None:
        """Until all targets are up."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                targets = self.get("targets")["activeTargets"]
                if targets and all(target["health"] == "up" for target in targets):
                    return
            time.sleep(0.1)
        raise AssertionError(f"no scrape succeeded: {targets}")

    def has_data(self, query: str, seconds: float = 60) -> bool:
        """Whether a query has at least one finite sample in the last seconds."""
        now = time.time()
        series = self.get("query_range", query=query, start=now - seconds, end=now, step=STEP_S)["result"]
        return any(math.isfinite(float(value)) for one in series for _, value in one["values"])

    def label_values(self, label: str, match: str) -> list[str]:
        """What a dashboard's variable offers."""
        values: list[str] = self.get(f"label/{label}/values", **{"match[]": match})
        return values

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(20)


@contextlib.contextmanager
def running_prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """One that has scraped all targets."""
    prometheus = Prometheus(folder, *targets)
    try:
        prometheus.wait_scraped()
        yield prometheus
    finally:
        prometheus.end()
