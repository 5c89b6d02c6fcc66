"""Our nginx alone, rendered as in a box, in front of an upstream that the test plays."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from appliance.settings import Settings
from appliance.supervisor.rendering import find_nginx, render_box


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_settings(run_dir: Path, **knobs: object) -> Settings:
    """Complete settings, as `derive_settings` would make them, for two models that don't exist."""
    values: dict[str, object] = {
        "host": "127.0.0.1",
        "port": free_port(),
        "run_dir": run_dir,
        "model": (Path("/models/a"), Path("/models/b")),
        "api_workers": 1,
        "max_body_bytes": 1_000_000,
    }
    return Settings(**(values | knobs))  # type: ignore[arg-type]


@contextlib.contextmanager
def short_dir() -> Iterator[Path]:
    """A temporary folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="bb-", dir="/tmp") as folder:
        yield Path(folder)


def wait_for_listener(address: int | Path, process: subprocess.Popen[bytes], timeout_s: float = 10) -> None:
    """Until somebody listens on a port or a unix socket."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"it ended with {process.returncode}"
        with socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET) as probe:
            if probe.connect_ex(str(address) if isinstance(address, Path) else ("127.0.0.1", address)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on {address}")


@contextlib.contextmanager
def running_nginx(config: Path, address: int | Path, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """An nginx over a configuration file."""
    command = [find_nginx() or "nginx", "-e", "stderr", "-p", config.parent, "-c", config]
    process = subprocess.Popen(command, user=user)
    try:
        wait_for_listener(address, process)
        yield process
    finally:
        process.terminate()
        process.wait(10)


def make_proxy_dirs(run_dir: Path) -> None:
    """What a box makes for its nginx: a folder for temporary files, and the pipe (here a file) for its log."""
    for name in ("nginx", "log"):
        (run_dir / name).mkdir()


@contextlib.contextmanager
def running_proxy(**knobs: object) -> Iterator[Settings]:
    """The box's nginx without the rest of the box."""
    with short_dir() as run_dir:
        settings = make_settings(run_dir, **knobs)
        render_box(settings, "secret")
        make_proxy_dirs(run_dir)
        with running_nginx(run_dir / "nginx.conf", settings.uds or settings.port):
            yield settings


STOCK_CONFIG = """
daemon off; pid {folder}/nginx.pid; error_log stderr warn; {user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream_port}; }} }}
}}
"""


@contextlib.contextmanager
def stock_nginx_before(upstream_port: int) -> Iterator[int]:
    """An nginx as people have it, with its default buffering, in front of a box; yields its port."""
    with short_dir() as folder:
        port = free_port()
        config = folder / "nginx.conf"
        config.write_text(STOCK_CONFIG.format(folder=folder, user="", port=port, upstream_port=upstream_port))
        with running_nginx(config, port):
            yield port
