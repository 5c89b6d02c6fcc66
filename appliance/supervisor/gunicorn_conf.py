"""gunicorn's settings, read by gunicorn itself in the API program of a box."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import Any

from prometheus_client import multiprocess

from appliance.logs import logging_config
from appliance.settings import load_rendered, prometheus_multiproc_dir
from appliance.supervisor.metric_files import reserve

_settings = load_rendered()
_run_dir = _settings.run_dir
assert _run_dir is not None

bind = f"unix:{_run_dir}/api.sock"
umask = 0o077
workers = _settings.api_workers or 1
worker_class = "appliance.supervisor.worker.Worker"
worker_tmp_dir = str(_run_dir / "worker")
control_socket_disable = True
backlog = 2048
keepalive = 75  # longer than nginx keeps its connections to us
timeout = 120  # without a sign of life a worker is killed; its event loop gives one every few seconds
# The app ends streams itself when their time is over, so these are only for one that doesn't.
graceful_timeout = math.ceil(_settings.shutdown_timeout) + 5
forwarded_allow_ips = "*"  # only nginx can reach the socket
accesslog = None
logconfig_dict = logging_config(_settings.log_level, "api", _settings.log_format)
proc_name = "breadbox-api"


def _forget(pid: int) -> None:
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


def on_starting(server: Any) -> None:
    """Forget the gauges of workers whose master was killed before it could."""
    folder = prometheus_multiproc_dir()
    for file in Path(folder).glob("gauge_live*_*.db") if folder else ():
        match = re.search(r"_(\d+)\.db$", file.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _forget(int(match[1]))


def post_fork(server: Any, worker: Any) -> None:
    """As `launch` does for whole programs (see `appliance.box_facts`); on a full disk, too."""
    folder = prometheus_multiproc_dir()
    if folder:
        with contextlib.suppress(OSError), (Path(folder) / "api-worker.starts").open("a") as file:
            file.write(f"{worker.pid}\n")
        reserve(Path(folder), worker.pid)


def child_exit(server: Any, worker: Any) -> None:
    """A worker's live gauges end with it."""
    if prometheus_multiproc_dir():
        _forget(worker.pid)
