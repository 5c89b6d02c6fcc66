"""Gathers the evidence: two scrapes with some seconds between, a small stream, and what this machine tells."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from appliance.doctor.evidence import Evidence, Limits, Probe
from appliance.doctor.http import Answer, BoxClient
from appliance.doctor.machine import MachineWatch, find_gpus
from appliance.doctor.samples import Samples
from appliance.errors import SettingsError
from appliance.settings import Settings, from_json, temporary_dirs
from appliance.supervisor.readiness import own_address

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PROBE_TOKENS = (160, 640, 2560)  # one after the other, as long as the box is too fast to see how its stream flows


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    url: str
    api_key: str | None = None
    admin_url: str | None = None  # where the metrics are, if not at the url; found by itself on the same machine
    run_dir: Path | None = None  # of the box; found by itself on the same machine
    seconds: float = 5.0  # that the box is watched
    with_probe: bool = True
    log: Path | None = None
    proxy_configs: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)


def gather(options: Options) -> Evidence:
    """Raises SettingsError for files that cannot be read; a box that cannot be reached is evidence, too."""
    run_dir = options.run_dir or find_run_dir(options.url)
    settings = _load_settings(run_dir)
    given = Evidence(
        url=options.url,
        settings=settings,
        limits=options.limits,
        log=_read_file(options.log) if options.log else "",
        proxy_configs={str(path): _read_file(path) for path in _proxy_configs(options, run_dir)},
    )
    key = options.api_key or next(iter(settings.api_key if settings else ()), None)
    client = BoxClient(options.url, key)
    try:
        return _ask(client, _find_metrics(client, key, options, settings), options, run_dir, given)
    except (OSError, ValueError) as error:
        return replace(given, error=str(error))


def _ask(client: BoxClient, metrics: BoxClient, options: Options, run_dir: Path | None, given: Evidence) -> Evidence:
    ready = client.get("/readyz")
    # Before the watched seconds, so that the doctor does not see its own load.
    probe = ask_for_stream(client) if options.with_probe and ready.status == 200 else None
    watch = MachineWatch() if run_dir else None
    before, started = _scrape(metrics), time.monotonic()
    time.sleep(options.seconds)
    after, seconds = _scrape(metrics), time.monotonic() - started
    return replace(
        given,
        readiness=json.loads(ready.text),
        before=before,
        after=after,
        seconds=seconds,
        probe=probe,
        machine=watch.look(run_dir) if watch else None,
        gpus=find_gpus() if run_dir else (),
        clock_skew_s=_skew(client.get("/livez")),
    )


def _find_metrics(client: BoxClient, key: str | None, options: Options, settings: Settings | None) -> BoxClient:
    if options.admin_url:
        return BoxClient(options.admin_url, key)
    if settings is not None and settings.admin_port:
        return BoxClient(f"http://{own_address(settings.host)}:{settings.admin_port}", key)
    return client


def _scrape(client: BoxClient) -> Samples:
    answer = client.get("/metrics")
    if answer.status != 200:
        raise OSError(f"/metrics answers with status {answer.status}: {answer.text.strip()[:200]}")
    return Samples.parse(answer.text)


def ask_for_stream(client: BoxClient) -> Probe:
    """A stream that is long enough to tell, if this box's model can make one."""
    models = client.get("/v1/models")
    if models.status != 200:
        return Probe(error=f"/v1/models answers with status {models.status}")
    card = json.loads(models.text)["data"][0]
    probe = Probe()
    for num_tokens in _PROBE_TOKENS:
        probe = client.probe(card["id"], min(num_tokens, card["max_model_len"] // 2))
        if probe.error or probe.is_telling:
            break
    return probe


def _skew(answer: Answer) -> float | None:
    return None if answer.date_s is None else answer.date_s - time.time()


def find_run_dir(url: str) -> Path | None:
    """That of the box that listens on the URL's port, if it is on this machine and ours to read."""
    parts = urlsplit(url)
    if parts.hostname not in _LOCAL:
        return None
    for folder in temporary_dirs():
        for file in folder.glob("breadbox-*/settings.json"):
            settings = _load_settings(file.parent)
            if settings is not None and settings.port == (parts.port or 80):
                return file.parent
    return None


def _load_settings(run_dir: Path | None) -> Settings | None:
    if run_dir is not None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return from_json((run_dir / "settings.json").read_text(encoding="utf-8"))
    return None


def _proxy_configs(options: Options, run_dir: Path | None) -> list[Path]:
    own = [run_dir / "nginx.conf"] if run_dir and (run_dir / "nginx.conf").exists() else []
    return [*own, *options.proxy_configs]


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SettingsError([f"{path} cannot be read: {error.strerror}"]) from None
