"""What the routes share: settings, served models, metrics. One object, made by `app.create_app`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from starlette.requests import Request

from appliance.api.conversation.own_templates import OwnTemplates
from appliance.api.drain import Drain
from appliance.api.error_handlers import Envelope
from appliance.api.fields import StreamOptions
from appliance.api.logprobs import TokenPrinter
from appliance.api.parsers import Parsers, load_parsers
from appliance.api.request_ids import clean_request_id
from appliance.api.request_record import get_record
from appliance.api.sampling_fields import SamplingFields
from appliance.api.served_model import ServedModel, ServedModels
from appliance.api.streaming import StreamingOptions
from appliance.box_facts import STUCK_FILE
from appliance.generation import Generation, GenerationSpec
from appliance.keys.key_limits import KeyLimiter
from appliance.keys.key_store import KeyStore
from appliance.metrics import ApiMetrics
from appliance.settings import Settings
from appliance.text.output_parser import OutputParser

MIN_BODY_BYTES = 2 * 1024 * 1024
BYTES_PER_CONTEXT_TOKEN = 64


@dataclass
class ApiState:
    """Reachable from every route as `get_state(request)`."""

    settings: Settings
    models: ServedModels
    envelopes: Mapping[str, Envelope] = field(default_factory=dict)  # of paths whose errors do not look like OpenAI's
    drain: Drain = field(init=False)
    keys: KeyStore = field(init=False)
    limiter: KeyLimiter = field(init=False)
    own_templates: OwnTemplates = field(default_factory=OwnTemplates)
    metrics: ApiMetrics = field(init=False)
    started_at: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        """What the API workers share is in the run directory."""
        settings = self.settings
        self.drain = Drain(settings.run_dir)
        folder = None if settings.run_dir is None else settings.run_dir / "keys"
        self.keys = KeyStore(settings.api_key, settings.api_key_file, folder)
        self.limiter = KeyLimiter(folder)
        self.metrics = ApiMetrics(self.settings, [model.name for model in self.models])

    @property
    def is_stuck(self) -> bool:
        """Whether the box has given up on bringing an engine back by itself (`supervisor.liveness`)."""
        return self.settings.run_dir is not None and (self.settings.run_dir / STUCK_FILE).exists()

    @property
    def max_body_bytes(self) -> int:
        """The body limit: as set, or what the longest context can need with room to spare."""
        longest = max((model.max_model_len for model in self.models), default=0)
        return self.settings.max_body_bytes or max(MIN_BODY_BYTES, BYTES_PER_CONTEXT_TOKEN * longest)

    @cached_property
    def parsers(self) -> Parsers:
        """What takes answers apart. Raises ApplianceError for settings that name none."""
        return load_parsers(self.settings)

    def make_generation(
        self, model: ServedModel, spec: GenerationSpec, make_parser: Callable[[], OutputParser] | None = None
    ) -> Generation:
        """A generation that is taken up again as the settings allow; the HTTP request's log line tells of it."""
        record = get_record()
        if record:
            # The caller's id leads to the engine's log lines, ours keeps it unique.
            request_id = f"{record.request_id}/{spec.request_id}"
            spec = dataclasses.replace(spec, request_id=request_id, tenant=record.state.get("key_name", ""))
        generation = Generation(
            model.engine,
            model.tokenizer,
            spec,
            max_resumes=self.settings.max_resumes,
            engine_wait_s=self.settings.engine_wait,
            waits_to_begin=model.was_ready,
            make_parser=make_parser,
            on_resume=self.metrics.resumed.labels(model.name).inc,
        )
        self.metrics.num_choices.labels(model.name, "0").observe(spec.n)
        if record:
            record.add(model.name, spec, generation)
        return generation

    def make_printer(self, model: ServedModel, request: SamplingFields) -> TokenPrinter:
        """How this request wants its tokens written."""
        as_ids = request.return_tokens_as_token_ids
        return TokenPrinter(model.tokenizer, self.settings.return_tokens_as_token_ids if as_ids is None else as_ids)

    def streaming_options(self, request: SamplingFields) -> StreamingOptions:
        """A request may ask for larger chunks than the box makes, not for smaller ones."""
        interval = max(self.settings.stream_interval, request.stream_interval)
        return StreamingOptions(self.settings.sse_keep_alive_interval, interval)

    def usage_options(self, options: StreamOptions | None) -> tuple[bool, bool]:
        """Whether a stream reports usage at its end, and on every chunk."""
        if self.settings.enable_force_include_usage:
            return True, True
        return (options.include_usage, options.continuous_usage_stats) if options else (False, False)


def get_state(request: Request) -> ApiState:
    """The application's state."""
    state: ApiState = request.app.state.api
    return state


def get_key_name(request: Request) -> str:
    """The name of the caller's key; empty on a box without keys. What a key may do is not in it (see `auth`)."""
    return str(request.scope["state"].get("key_name", ""))


def name_request(request: Request, request_id: str | None) -> None:
    """Take the id from the body as the request's, if it is clean and no header brought one."""
    cleaned = clean_request_id(request_id)
    if cleaned is not None and "x-request-id" not in request.headers:
        request.state.request_id = cleaned
