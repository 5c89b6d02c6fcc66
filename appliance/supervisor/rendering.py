"""The templates, rendered once into the run directory: supervisord, a file for each kind of program, and nginx.

A new program is a new template in ``templates/programs``; nothing here has to know it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

from appliance.derived_settings import count_cores
from appliance.settings import Settings, to_json

_HERE = Path(__file__).parent
_TEMPLATES = _HERE / "templates"
# Beside `appliance`, in a checkout as well as where the package is installed.
_NGINX_TEMPLATES = _HERE.parent.parent / "nginx"


@dataclass(frozen=True)
class ProxyError:
    """An error that nginx itself answers: the statuses it has inside, and what the client gets instead of a page."""

    given: tuple[int, ...]
    status: int
    code: str
    message: str


def proxy_errors(max_body_bytes: int) -> list[ProxyError]:
    """nginx's own errors in words for an API's client."""
    away = "The server is starting, stopping, restarting or short of resources. Please try again."
    too_large = f"The request body is larger than this server's limit of {max_body_bytes} bytes (max_body_bytes)."
    return [
        ProxyError((400,), 400, "bad_request", "This is not a valid HTTP request."),
        ProxyError((403,), 403, "forbidden", "This request is not allowed."),
        ProxyError((404,), 404, "not_found", "There is no such path."),
        ProxyError((405,), 405, "method_not_allowed", "This method is not allowed."),
        ProxyError((408,), 408, "request_timeout", "The request did not arrive in time."),
        ProxyError((411,), 411, "length_required", "The request needs a Content-Length header."),
        ProxyError((413,), 413, "request_too_large", too_large),
        ProxyError((414,), 414, "uri_too_long", "The request's URL is too long."),
        ProxyError((494,), 431, "headers_too_large", "The request's headers are too large."),
        ProxyError((501,), 501, "not_implemented", "The server does not support what the request asks for."),
        # 500 is nginx's own word for no file, connection, memory or disk left; the API's 500 passes as it is.
        ProxyError((500, 502, 503), 503, "service_unavailable", away),
        ProxyError((504,), 504, "gateway_timeout", "The server took too long to answer."),
        ProxyError((505,), 505, "http_version_not_supported", "Please speak HTTP/1.0 or HTTP/1.1."),
    ]


def find_nginx() -> str | None:
    """The nginx binary; users who aren't root seldom have its folder in their PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin")


def render_box(settings: Settings, password: str) -> None:
    """Write every configuration file of a box into ``settings.run_dir``, readable by this user only."""
    run_dir = settings.run_dir
    assert run_dir is not None
    context = make_context(settings, password)
    _write(run_dir / "settings.json", to_json(settings))
    _write(run_dir / "supervisord.conf", _render(_TEMPLATES / "supervisord.conf.template", context))
    for template in sorted(_TEMPLATES.glob("programs/*.template")):
        _write(run_dir / "programs" / template.stem, _render(template, context))
    for template in sorted(_NGINX_TEMPLATES.glob("*.template")):
        _write(run_dir / template.stem, _render(template, context))


def make_context(settings: Settings, password: str) -> dict[str, Any]:
    """Everything the templates may use."""
    return {
        "settings": settings,
        "run_dir": str(settings.run_dir),
        "password": password,
        "is_root": os.geteuid() == 0,
        "python": sys.executable,
        "launcher": str(_HERE / "launch.py"),
        "gunicorn_conf": str(_HERE / "gunicorn_conf.py"),
        "nginx": find_nginx() or "nginx",
        "nginx_dir": str(_NGINX_TEMPLATES),
        "nginx_workers": 1 if count_cores() <= 4 else 2,
        "listen": listen_address(settings),
        "admin_listen": listen_address(replace(settings, uds=None, port=settings.admin_port or settings.port)),
        "proxy_errors": proxy_errors(settings.max_body_bytes or 0),
    }


def listen_address(settings: Settings) -> str:
    """What nginx listens on, in its own notation."""
    if settings.uds:
        return f"unix:{settings.uds}"
    host = settings.host
    if ":" in host:
        return f"[{host}]:{settings.port}" + (" ipv6only=off" if host == "::" else "")
    return f"{host}:{settings.port}"


def _render(template: Path, context: dict[str, Any]) -> str:
    environment = jinja2.Environment(  # noqa: S701 - these are configuration files, not HTML
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["command"] = _command
    return environment.from_string(template.read_text(encoding="utf-8")).render(context)


def _command(words: Iterable[object]) -> str:
    # supervisord splits like a shell, after it has expanded %(name)s.
    return shlex.join(str(word) for word in words).replace("%", "%%")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
