"""Would this box start? Finds every problem that can be seen without starting it, each in one line."""

from __future__ import annotations

import importlib.util
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.baked_model import BakedModel
from appliance.derived_settings import find_models, names_by_model
from appliance.errors import ApplianceError, SettingsError
from appliance.keys.key_file import KeyFileError, find_writers, read_keys
from appliance.memory import available_memory_bytes, describe_bytes
from appliance.settings import Settings
from appliance.supervisor import run_dir
from appliance.supervisor.rendering import find_nginx
from engine.config import check_async_scheduling
from engine.errors import ConfigError
from engine.metrics import HISTOGRAMS
from engine.models import ARCHITECTURES
from engine.models.shard import check_heads

_WEIGHTS = "model.safetensors"
_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def find_problems(settings: Settings) -> list[str]:
    """All problems, in the order in which one would solve them; empty for a box that should start."""
    checks: tuple[Callable[[Settings], Iterator[str]], ...] = (
        _check_programs,
        _check_models,
        _check_ranks,
        _check_async_scheduling,
        _check_memory,
        _check_key_file,
        _check_chat_template,
        _check_generation_config,
        _check_parsers,
        _check_buckets,
        _check_tracing,
        _check_template_kwargs,
        _check_middleware,
        _check_address,
        _check_run_dir,
    )
    return [problem for check in checks for problem in check(settings)]


def _check_programs(settings: Settings) -> Iterator[str]:
    if find_nginx() is None:
        yield "nginx is not installed (apt-get install nginx-light)"
    if importlib.util.find_spec("supervisor") is None:
        yield "supervisor is not installed (pip install supervisor)"
    if importlib.util.find_spec("torch") is None:
        yield "torch is not installed (pip install 'breadbox[engine]')"


def _models(settings: Settings) -> tuple[Path, ...]:
    try:
        return find_models(settings)
    except SettingsError:
        return ()


def _check_models(settings: Settings) -> Iterator[str]:
    try:
        models = find_models(settings)
        for model in models:
            yield from _check_model(BakedModel(model))
        names_by_model(settings, models)
    except SettingsError as error:
        yield from error.problems


def _check_model(baked: BakedModel) -> Iterator[str]:
    if not baked.path.is_dir():
        yield f"--model: there is no folder {baked.path}"
        return
    try:
        architectures = baked.config.get("architectures") or ["none named"]
        if architectures[0] not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            yield f"{baked.path}: the architecture {architectures[0]} is not supported (supported: {known})"
        _ = baked.tokenizer_config, baked.generation_config, baked.chat_template
        yield from _check_files(baked)
    except ApplianceError as error:
        yield str(error)
    except (OSError, ValueError) as error:
        yield f"{baked.path}: {error}"


def _check_ranks(settings: Settings) -> Iterator[str]:
    for model in _models(settings):
        try:
            config = BakedModel(model).config
            num_heads = config["num_attention_heads"]
            check_heads(num_heads, config.get("num_key_value_heads") or num_heads, settings.tensor_parallel_size)
        except ConfigError as error:
            yield f"{model}: {error}"
        except (ApplianceError, OSError, ValueError, KeyError, TypeError):
            continue  # reported with the model


def _check_files(baked: BakedModel) -> Iterator[str]:
    """Presence and sizes; the digests take time and are for `breadbox bake --verify`."""
    sizes = baked.manifest.get("files") or {}
    for name in sorted({*sizes, _WEIGHTS, "tokenizer.json"}):
        file = baked.path / name
        expected = sizes.get(name, {}).get("bytes")
        if not file.is_file():
            yield f"{file} is missing"
        elif not os.access(file, os.R_OK):
            yield f"{file} is not readable for this user"
        elif expected is not None and file.stat().st_size != expected:
            yield f"{file} has {file.stat().st_size} bytes, its manifest says {expected}: bake the model again"


def _check_async_scheduling(settings: Settings) -> Iterator[str]:
    try:
        speculates = settings.speculative_config is not None
        check_async_scheduling(settings.async_scheduling, speculates, settings.tensor_parallel_size)
    except ConfigError as error:
        yield str(error)


def _check_memory(settings: Settings) -> Iterator[str]:
    if settings.device == "cuda":
        return
    try:
        weights = sum(_weights_bytes(BakedModel(model), settings.dtype) for model in _models(settings))
    except (ApplianceError, OSError):
        return  # reported with the model
    kv_cache = (settings.kv_cache_memory or 0) * settings.tensor_parallel_size * len(_models(settings))
    available = available_memory_bytes()
    if weights + kv_cache > available:
        parts = f"weights {describe_bytes(weights)}" + (f" and KV cache {describe_bytes(kv_cache)}" if kv_cache else "")
        yield f"memory: {parts} do not fit into the {describe_bytes(available)} that are available"


def _weights_bytes(baked: BakedModel, dtype: str) -> int:
    """Weights in memory: as many bytes as in the file, unless the engine computes in a wider type.

    Packed matrices stay as they are, but for float8, which becomes bfloat16.
    """
    weights, size = baked.manifest.get("weights") or {}, (baked.path / _WEIGHTS).stat().st_size
    if quantization := weights.get("quantization"):
        return 2 * size if "fp8" in str(quantization) else size
    return size * _ITEMSIZE.get(dtype, 4) // _ITEMSIZE.get(weights.get("dtype", ""), 4)


def _check_key_file(settings: Settings) -> Iterator[str]:
    if settings.api_key_file is None:
        return
    path = settings.api_key_file.expanduser()
    try:
        read_keys(path)
    except KeyFileError as error:
        yield f"--api-key-file: {error}"
        return
    if problem := find_writers(path):
        yield f"--api-key-file: {problem}"


def _check_chat_template(settings: Settings) -> Iterator[str]:
    if settings.chat_template is None:
        return
    from appliance.api.served_model import read_chat_template
    from appliance.text.chat_template import ChatTemplate

    try:
        ChatTemplate(read_chat_template(settings.chat_template), {})
    except ApplianceError as error:
        yield str(error)


def _check_generation_config(settings: Settings) -> Iterator[str]:
    source = settings.generation_config
    if source not in {"auto", "vllm"} and not (Path(source).expanduser() / "generation_config.json").is_file():
        yield f"--generation-config: {source} is neither auto nor vllm nor a folder with a generation_config.json"


def _check_parsers(settings: Settings) -> Iterator[str]:
    from appliance.api.parsers import load_parsers

    try:
        load_parsers(settings)
    except ApplianceError as error:
        yield str(error)


def _check_template_kwargs(settings: Settings) -> Iterator[str]:
    from appliance.api.conversation.schemas import RESERVED_KWARGS

    reserved = sorted(RESERVED_KWARGS & set(settings.default_chat_template_kwargs or ()))
    if reserved:
        yield f"--default-chat-template-kwargs: must not hold {', '.join(reserved)}"


def _check_middleware(settings: Settings) -> Iterator[str]:
    if not settings.middleware:
        return
    from appliance.api.middleware_plugins import load_plugins

    try:
        load_plugins(settings.middleware)
    except ApplianceError as error:
        yield str(error)


def _check_buckets(settings: Settings) -> Iterator[str]:
    for name in settings.custom_histogram_buckets or {}:
        if name.removeprefix("vllm:") not in HISTOGRAMS:
            yield f"--custom-histogram-buckets: {name} is not one of {', '.join(sorted(HISTOGRAMS))}"


def _check_tracing(settings: Settings) -> Iterator[str]:
    if settings.otlp_traces_endpoint and importlib.util.find_spec("opentelemetry.sdk") is None:
        yield "--otlp-traces-endpoint: the OpenTelemetry SDK is not installed (pip install 'breadbox[otel]')"


def _check_address(settings: Settings) -> Iterator[str]:
    if settings.uds:
        yield from _check_unix_socket(settings.uds.expanduser().absolute())
    else:
        yield from _check_port("--port", settings.host, settings.port)
    if settings.admin_port == settings.port and not settings.uds:
        yield f"--admin-port: {settings.admin_port} is the port of the box itself"
    elif settings.admin_port:
        yield from _check_port("--admin-port", settings.host, settings.admin_port)
    if settings.lock_admin and not (settings.api_key or settings.api_key_file):
        yield "--lock-admin: there is no key to lock it with; set --api-key or --api-key-file"


def _check_port(flag: str, host: str, port: int) -> Iterator[str]:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except PermissionError:
        yield f"{flag}: this user may not listen on port {port} (ports below 1024 need root)"
    except OSError as error:
        yield f"{flag}: cannot listen on {host} port {port}: {error.strerror}"


def _check_unix_socket(path: Path) -> Iterator[str]:
    problem = run_dir.find_problem(path.parent)
    if problem or not path.parent.is_dir():
        yield f"--uds: {problem or f'there is no folder {path.parent}'}"
    elif len(os.fsencode(path)) > 107:
        yield f"--uds: {path} is longer than the 107 bytes that a unix socket allows"
    elif path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        yield f"--uds: {path} exists and is not a socket"
    elif path.exists() and _is_answering(path):
        yield f"--uds: another server is listening on {path}"


def _is_answering(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _check_run_dir(settings: Settings) -> Iterator[str]:
    try:
        if settings.run_dir is None:
            run_dir.find_temporary_dir()
        elif problem := run_dir.find_problem(settings.run_dir.expanduser().absolute()):
            yield f"--run-dir: {problem}"
    except SettingsError as error:
        yield from error.problems
