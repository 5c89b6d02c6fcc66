"""Every knob once: name, type, default, meaning. The only module that reads the environment.

A knob's flag is its name with dashes (``max_model_len`` → ``--max-model-len``), its environment variable its name in
capitals behind ``BREADBOX_`` (``BREADBOX_MAX_MODEL_LEN``). Flag beats environment beats default. The README's table
of knobs is generated from `KNOBS`, so a new field here is documented as soon as it exists.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import SettingsError
from appliance.speculative_config import check_speculative_config

ENV_PREFIX = "BREADBOX_"
_SIZE_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_SIZE_UNITS |= {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}


def parse_size(text: str) -> int:
    """Read ``4GiB``, ``512M``, ``8k`` or a plain number. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if not match or match[2] not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a number with an optional unit such as 8k, 512M or 4GiB")
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def parse_bool(text: str) -> bool:
    """Read true/false, yes/no, on/off, 1/0. Raises ValueError."""
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{text!r} is not true or false")


def parse_json_object(text: str) -> dict[str, Any]:
    """Read a JSON object. Raises ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")
    return value


@dataclass(frozen=True, slots=True)
class Knob:
    """How one setting is read and described. ``parse`` turns one word into a value and raises ValueError."""

    name: str
    default: Any
    help: str
    group: str
    parse: Callable[[str], Any]
    metavar: str
    choices: tuple[str, ...] = ()
    is_list: bool = False
    is_secret: bool = False
    check: Callable[[Any], str | None] | None = None

    @property
    def flag(self) -> str:
        """The command line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    def read(self, words: Sequence[str]) -> Any:
        """Turn the words given for this knob into its value. Raises ValueError with a message for people."""
        values = [self._read_one(word) for word in words]
        value = tuple(values) if self.is_list else values[-1]
        problem = self.check(value) if self.check else None
        if problem:
            raise ValueError(problem)
        return value

    def _read_one(self, word: str) -> Any:
        value = self.parse(word)
        if self.choices and value not in self.choices:
            raise ValueError(f"{word!r} is not one of {', '.join(self.choices)}")
        return value


def _between(low: float, high: float | None = None) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value is None or (value >= low and (high is None or value <= high)):
            return None
        return f"{value} is out of range: " + (f"at least {low}" if high is None else f"{low} to {high}")

    return check


def _check_root_path(value: str) -> str | None:
    if value == "" or re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
        return None
    return f"{value!r} is not a path such as /llm (starts with a slash, does not end with one)"


def _check_host(value: str) -> str | None:
    # Goes into the proxy's configuration file, so it can't be just any text.
    return None if re.fullmatch(r"[A-Za-z0-9.:_%-]+", value) else f"{value!r} is not an address or host name"


def _check_url(value: str) -> str | None:
    return None if re.fullmatch(r"https?://[^\s/]+\S*", value) else f"{value!r} is not a URL such as http://host:4318"


def _check_buckets(value: dict[str, Any]) -> str | None:
    for name, bounds in value.items():
        numbers = [bound for bound in bounds if type(bound) in (int, float)] if isinstance(bounds, list) else []
        if not numbers or len(numbers) != len(bounds) or sorted(set(numbers)) != bounds or numbers[0] <= 0:
            return f"{name}: a list of ascending numbers above 0 is expected"
    return None


def _knob(
    default: Any,
    help: str,
    group: str,
    *,
    parse: Callable[[str], Any] | None = None,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    is_secret: bool = False,
    check: Callable[[Any], str | None] | None = None,
) -> Any:
    kind = parse or (parse_bool if isinstance(default, bool) else type(default) if default is not None else str)
    names = {int: "N", float: "X", parse_bool: "BOOL", parse_size: "SIZE", Path: "PATH", parse_json_object: "JSON"}
    meta = {
        "help": help,
        "group": group,
        "parse": kind,
        "metavar": metavar or names.get(kind, "TEXT"),
        "choices": choices,
        "is_list": is_list,
        "is_secret": is_secret,
        "check": check,
    }
    return field(default=default, metadata=meta)


_SERVER, _MODEL, _ENGINE, _API, _BOX, _WATCHING = "Server", "Model", "Engine", "API", "Box", "Watching"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective settings of a box. Frozen; build it with `load_settings` or, in a test, directly."""

    # fmt: off
    host: str = _knob("0.0.0.0", "address the proxy listens on", _SERVER, check=_check_host)  # noqa: S104 - a server in a container
    port: int = _knob(8000, "port the proxy listens on", _SERVER, check=_between(1, 65535))
    uds: Path | None = _knob(None, "listen on this unix socket instead of host and port", _SERVER, parse=Path)
    root_path: str = _knob("", "path prefix under which an outer proxy publishes the box", _SERVER, check=_check_root_path)
    api_key: tuple[str, ...] = _knob((), "key that clients must send as a bearer token (repeatable; the variable takes a comma-separated list); none = open", _SERVER, parse=str, is_list=True, is_secret=True, metavar="KEY")
    api_key_file: Path | None = _knob(None, "TOML file with more keys, hashed, with names, scopes, limits and ends (breadbox key new writes them); read again when it changes", _SERVER, parse=Path)
    allowed_origins: tuple[str, ...] = _knob((), "origins that browsers may call from (CORS); * for any", _SERVER, parse=str, is_list=True, metavar="ORIGIN")
    allowed_methods: tuple[str, ...] = _knob(("*",), "methods that CORS allows", _SERVER, parse=str, is_list=True, metavar="METHOD")
    allowed_headers: tuple[str, ...] = _knob(("*",), "request headers that CORS allows", _SERVER, parse=str, is_list=True, metavar="HEADER")
    allow_credentials: bool = _knob(False, "let browsers send credentials across origins", _SERVER)
    middleware: tuple[str, ...] = _knob((), "ASGI middleware class, or coroutine function of a request and the next call, as package.module.name (repeatable)", _SERVER, parse=str, is_list=True, metavar="IMPORT.PATH")
    disable_page: bool = _knob(False, "do not serve the page for people at /", _SERVER)
    disable_fastapi_docs: bool = _knob(False, "do not serve /docs, /redoc and /openapi.json", _SERVER)
    max_body_bytes: int | None = _knob(None, "largest request body; default: what the model's context can need", _SERVER, parse=parse_size, check=_between(1024))

    model: tuple[Path, ...] = _knob((), "baked model folder to serve (repeatable, also as plain arguments)", _MODEL, parse=Path, is_list=True)
    models_dir: Path = _knob(Path("~/.cache/breadbox/models"), "where baked models live; served when no model is named", _MODEL, parse=Path)
    served_model_name: tuple[str, ...] = _knob((), "name(s) the model answers to, the first one is reported; with several models one name for each, in order", _MODEL, parse=str, is_list=True, metavar="NAME")
    chat_template: str | None = _knob(None, "chat template (file, or the template itself) instead of the model's", _MODEL)
    default_chat_template_kwargs: dict[str, Any] | None = _knob(None, "JSON object of variables for the chat template; those of a request win", _MODEL, parse=parse_json_object)
    trust_request_chat_template: bool = _knob(False, "let requests bring their own chat template; each is rendered in a process of its own, for up to 20 s", _MODEL)
    generation_config: str = _knob("auto", "where sampling defaults come from: the model's generation_config.json (auto), none of it (vllm), or a folder", _MODEL)
    override_generation_config: dict[str, Any] | None = _knob(None, "JSON object of sampling defaults over the model's", _MODEL, parse=parse_json_object)

    device: str = _knob("auto", "where the engine computes", _ENGINE, choices=("auto", "cpu", "cuda"))
    tensor_parallel_size: int = _knob(1, "processes that share each model's weights and KV cache, on a GPU each", _ENGINE, check=_between(1, 64))
    dtype: str = _knob("auto", "type of activations and unquantized weights; auto = float32 on a CPU, the model's own on a GPU", _ENGINE, choices=("auto", "float32", "bfloat16", "float16"))
    kv_cache_dtype: str = _knob("auto", "type of the KV cache; auto = dtype, on a CPU with packed weights bfloat16; int8 and, on a GPU of compute capability 8.9, fp8 take half of 16 bits", _ENGINE, choices=("auto", "float32", "bfloat16", "int8", "fp8", "fp8_e4m3"))
    batch_invariant: bool = _knob(False, "on a GPU too, give a request the same bits alone and in a crowd; slower", _ENGINE)
    enforce_eager: bool = _knob(False, "no CUDA graphs: slower decoding, faster start, less GPU memory", _ENGINE)
    max_model_len: int | None = _knob(None, "longest prompt + output in tokens; default: the model's context", _ENGINE, parse=parse_size, check=_between(1))
    max_num_seqs: int = _knob(128, "requests that run at once", _ENGINE, check=_between(1, 4096))
    max_num_batched_tokens: int | None = _knob(None, "token budget of one step; default: 2048 on a GPU, 256 on a CPU, where running streams wait for a longer step", _ENGINE, parse=parse_size, check=_between(1))
    block_size: int = _knob(16, "tokens in a KV cache block", _ENGINE, check=_between(1, 256))
    gpu_memory_utilization: float = _knob(0.92, "share of a GPU's memory for weights and KV cache", _ENGINE, check=_between(0.05, 1.0))
    kv_cache_memory: int | None = _knob(None, "size of the KV cache, in each process of --tensor-parallel-size; default on a CPU: a quarter of free memory, 4 GiB at most, for all", _ENGINE, parse=parse_size, check=_between(1))
    num_gpu_blocks_override: int | None = _knob(None, "exact number of KV cache blocks", _ENGINE, parse=int, check=_between(1))
    enable_prefix_caching: bool = _knob(True, "reuse the KV cache of equal prompt beginnings", _ENGINE)
    enable_chunked_prefill: bool = _knob(True, "let long prompts be computed over several steps beside running requests", _ENGINE)
    long_prefill_token_threshold: int = _knob(0, "most tokens of one prompt in a step while other requests run; 0 = no limit", _ENGINE, parse=parse_size, check=_between(0))
    scheduling_policy: str = _knob("fcfs", "which waiting request is next: first come first served, or by its priority", _ENGINE, choices=("fcfs", "priority"))
    fair_step_tokens: int = _knob(4, "tokens of a step that a key may take beside one with fewer requests that was served less: short steps for the quiet one, fewer tokens a second in all; 0 = any number", _ENGINE, check=_between(0))
    max_step_ms: int = _knob(200, "milliseconds that a step may take while streams wait for it: prompts are computed in pieces of what this machine does in that time, and of at least as many tokens as there are streams; a quarter of it while several keys have work or lately had; 0 = as long as the token budget takes", _ENGINE, check=_between(0))
    async_scheduling: bool = _knob(False, "plan each step while the one before it is computed; same output, not with --speculative-config or --tensor-parallel-size", _ENGINE)
    max_num_queued_reqs: int = _knob(1024, "requests that may wait for a place among those that run; what is more gets a 503 at once", _ENGINE, check=_between(1))
    max_num_queued_tokens: int = _knob(262144, "prompt tokens of requests that wait, together; one prompt may always wait", _ENGINE, parse=parse_size, check=_between(1))
    seed: int = _knob(0, "seed of everything random that has no seed of its own", _ENGINE)
    speculative_config: dict[str, Any] | None = _knob(None, 'JSON object that lets steps check guessed tokens, same output: {"method": "ngram", "num_speculative_tokens": N}, with prompt_lookup_max and _min (tokens to match: 5, 2), disable_by_batch_size, adaptive (true: only where it pays)', _ENGINE, parse=parse_json_object, check=check_speculative_config)
    engine_timeout: float = _knob(60.0, "seconds without a sign of life after which a hanging engine is killed and started again (longer for steps that are known to be long); 0 = never", _ENGINE, check=_between(0, 86400))
    num_threads: int | None = _knob(None, "threads the engine computes with on a CPU; default: the cores it may use", _ENGINE, parse=int, check=_between(1, 1024))

    api_workers: int | None = _knob(None, "API processes; default: chosen from the cores", _API, parse=int, check=_between(1, 64))
    max_logprobs: int = _knob(20, "most logprobs per token a request may ask for; -1 = whole vocabulary", _API, check=_between(-1))
    max_n: int = _knob(128, "most choices (n) per request", _API, check=_between(1, 16384))
    max_stop_strings: int = _knob(4, "most stop strings per request", _API, check=_between(0, 1024))
    max_prompts: int = _knob(1024, "most prompts in one completions request", _API, check=_between(1))
    max_tools: int = _knob(128, "most tools in one request", _API, check=_between(0))
    max_json_depth: int = _knob(128, "most levels of lists and objects in each other in a request body", _API, check=_between(8, 512))
    enable_auto_tool_choice: bool = _knob(False, "let the model choose to call tools (tool_choice auto); needs --tool-call-parser", _API)
    tool_call_parser: str | None = _knob(None, "format in which the model writes tool calls, such as hermes", _API, metavar="NAME")
    tool_parser_plugin: Path | None = _knob(None, "Python file with TOOL_PARSERS, a dict of more formats: name to ToolParser class", _API, parse=Path)
    reasoning_parser: str | None = _knob(None, "format in which the model writes its thinking, such as qwen3", _API, metavar="NAME")
    emit_reasoning_content: bool = _knob(False, "write the thinking of chat answers as reasoning_content, too, for clients that do not know reasoning", _API)
    enable_prompt_tokens_details: bool = _knob(True, "report cached prompt tokens in usage", _API)
    enable_force_include_usage: bool = _knob(False, "stream usage even when the client does not ask for it", _API)
    enable_server_load_tracking: bool = _knob(True, "count requests in flight for /load", _API)
    enable_tokenizer_info_endpoint: bool = _knob(False, "serve /tokenizer_info", _API)
    return_tokens_as_token_ids: bool = _knob(False, "write tokens in logprobs as token_id:N", _API)
    response_role: str = _knob("assistant", "role of chat answers", _API)
    stream_interval: int = _knob(1, "tokens of a choice that make a streamed chunk; the first one never waits", _API, check=_between(1))
    sse_keep_alive_interval: float = _knob(10.0, "seconds of silence after which a stream gets a comment; 0 = never", _API, check=_between(0, 3600))
    max_resumes: int = _knob(10, "times a request is taken up again after the engine was lost while it worked on it", _API, check=_between(0, 100))
    engine_wait: float = _knob(60.0, "seconds a request waits for an engine that is restarting, new ones too; then 503", _API, check=_between(0, 3600))
    responses_store_max: int = _knob(1000, "most answers of /v1/responses kept for previous_response_id and GET, over all API workers; 0 = none", _API, check=_between(0))
    responses_store_bytes: int = _knob(64 * 1024**2, "most bytes of them, in the run directory; the longest unused go first", _API, parse=parse_size, check=_between(0))

    run_dir: Path | None = _knob(None, "folder for sockets and rendered configuration; default: a fresh temporary one", _BOX, parse=Path)
    shutdown_timeout: float = _knob(30.0, "seconds that running requests get to finish on SIGTERM", _BOX, check=_between(0, 3600))
    log_level: str = _knob("info", "how much is logged", _BOX, choices=("debug", "info", "warning", "error"))

    log_format: str = _knob("text", "how the logs of engine and API look", _WATCHING, choices=("text", "json"))
    log_stats_interval: float = _knob(10.0, "seconds between the engine's lines of statistics; 0 = none", _WATCHING, check=_between(0, 3600))
    enable_log_requests: bool = _knob(False, "log what each request asks for when it begins (sampling and lengths, never text)", _WATCHING)
    show_hidden_metrics: bool = _knob(False, "also show metrics under the names of older vLLM (vllm:gpu_cache_usage_perc, …)", _WATCHING)
    otlp_traces_endpoint: str | None = _knob(None, "OpenTelemetry collector that gets a span a request (OTLP over HTTP, such as http://collector:4318)", _WATCHING, metavar="URL", check=_check_url)
    custom_histogram_buckets: dict[str, Any] | None = _knob(None, 'JSON object of bucket bounds by histogram, such as {"e2e_request_latency_seconds": [0.05, 0.1, 0.5]}', _WATCHING, parse=parse_json_object, check=_check_buckets)
    admin_port: int | None = _knob(None, "serve metrics, load and probes on this port, without a key, and metrics and load no more on the main one", _WATCHING, parse=int, check=_between(1, 65535))
    lock_admin: bool = _knob(False, "metrics and load need a key on the port of --admin-port, too; a box without keys does not start", _WATCHING)
    # fmt: on


KNOBS: tuple[Knob, ...] = tuple(
    Knob(name=f.name, default=f.default, **f.metadata) for f in dataclasses.fields(Settings)
)
KNOB_BY_NAME = {knob.name: knob for knob in KNOBS}


@dataclass(frozen=True)
class LoadedSettings:
    """Settings and, per knob, where its value came from: "flag", "environment" or "default"."""

    settings: Settings
    sources: Mapping[str, str]


def add_flags(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    """Give `parser` a flag for each knob (of the groups in `only`); values stay words until `load_settings` reads them."""
    knobs = [knob for knob in KNOBS if only is None or knob.group in only]
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(knob.group for knob in knobs)}
    for knob in knobs:
        _add_flag(groups[knob.group], knob)


def _add_flag(group: argparse._ArgumentGroup, knob: Knob) -> None:
    about = f"{knob.help} [{knob.variable}; default: {describe_default(knob)}]".replace("%", "%%")
    if isinstance(knob.default, bool):
        group.add_argument(knob.flag, dest=knob.name, action="store_const", const=["true"], help=about)
        no = "--no-" + knob.name.replace("_", "-")
        group.add_argument(no, dest=knob.name, action="store_const", const=["false"], help=argparse.SUPPRESS)
    else:
        metavar = "{" + ",".join(knob.choices) + "}" if knob.choices else knob.metavar
        # A key takes one word, so that `--api-key KEY MODEL` doesn't make a key of the model.
        nargs = "+" if knob.is_list and not knob.is_secret else 1
        group.add_argument(knob.flag, dest=knob.name, action="extend", nargs=nargs, metavar=metavar, help=about)


def describe_default(knob: Knob) -> str:
    """The default as people read it."""
    if isinstance(knob.default, bool):
        return "on" if knob.default else "off"
    if knob.default is None or knob.default == () or knob.default == "":
        return "none"
    return " ".join(knob.default) if isinstance(knob.default, tuple) else str(knob.default)


def load_settings(
    flags: Mapping[str, Sequence[str] | None], environ: Mapping[str, str] | None = None
) -> LoadedSettings:
    """Combine flag words (from a parser made by `add_flags`), environment and defaults.

    Raises SettingsError with every problem found, not just the first.
    """
    loaded, problems = load_settings_and_problems(flags, environ)
    if problems:
        raise SettingsError(problems)
    return loaded


def load_settings_and_problems(
    flags: Mapping[str, Sequence[str] | None], environ: Mapping[str, str] | None = None
) -> tuple[LoadedSettings, list[str]]:
    """As `load_settings`, but a wrong value becomes a problem in the list and its knob keeps the default."""
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    for knob in KNOBS:
        words, sources[knob.name], name = _words(knob, flags, env)
        try:
            if words is not None:
                values[knob.name] = knob.read(words)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    problems += [f"{name}: there is no such setting" for name in unknown_variables(env)]
    return LoadedSettings(Settings(**values), sources), problems


def _words(
    knob: Knob, flags: Mapping[str, Sequence[str] | None], env: Mapping[str, str]
) -> tuple[Sequence[str] | None, str, str]:
    given = flags.get(knob.name)
    if given is not None:
        return given, "flag", knob.flag
    text = env.get(knob.variable)
    if text is None or text == "":
        return None, "default", knob.flag
    words = [word.strip() for word in text.split(",") if word.strip()] if knob.is_list else [text]
    return (words or None), "environment", knob.variable


_OTHER_VARIABLES = {"BREADBOX_SETTINGS_FILE"}


def unknown_variables(env: Iterable[str]) -> list[str]:
    """Variables with our prefix that no knob reads: misspelt ones must not be ignored in silence."""
    known = {knob.variable for knob in KNOBS} | _OTHER_VARIABLES
    return sorted(name for name in env if name.startswith(ENV_PREFIX) and name not in known)


def to_json(settings: Settings) -> str:
    """Serialize for the box's own processes (the run directory is private to the user)."""
    return json.dumps(dataclasses.asdict(settings), default=str, indent=1)


def from_json(text: str) -> Settings:
    """Inverse of `to_json`."""
    values = json.loads(text)
    for name, value in values.items():
        knob = KNOB_BY_NAME[name]
        if value is not None and knob.parse is Path:
            values[name] = tuple(map(Path, value)) if knob.is_list else Path(value)
        elif knob.is_list:
            values[name] = tuple(value)
    return Settings(**values)


def load_rendered() -> Settings:
    """Read the settings that the supervisor rendered for this process (path in BREADBOX_SETTINGS_FILE)."""
    return from_json(Path(os.environ["BREADBOX_SETTINGS_FILE"]).read_text())


def temporary_dirs() -> list[Path]:
    """Where a run directory may be made, best first (memory-backed ones before the disk)."""
    candidates = [os.environ.get("XDG_RUNTIME_DIR"), "/run", os.environ.get("TMPDIR"), "/tmp"]  # noqa: S108
    return [Path(candidate) for candidate in candidates if candidate]


def hub_token() -> str | None:
    """The Hugging Face token, for baking only."""
    return os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")


def client_api_key() -> str | None:
    """The key that clients of the OpenAI API send, for commands that are such clients."""
    return os.environ.get("OPENAI_API_KEY") or None


def prometheus_multiproc_dir() -> str | None:
    """The folder in which API workers share their metrics (prometheus_client reads the same variable)."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR") or None
