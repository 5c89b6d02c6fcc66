"""A model as the API sees it: its names, its text side, its engine, and the sampling defaults of its makers."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from appliance import __version__
from appliance.baked_model import BakedModel
from appliance.box_facts import read_starts
from appliance.derived_settings import names_by_model
from appliance.errors import ApplianceError, NotFoundError
from appliance.settings import Settings
from appliance.text.chat_template import ChatTemplate
from appliance.text.tokenizer import Tokenizer
from engine.client import EngineClient, Listener
from engine.errors import EngineError
from engine.messages import EngineInfo, GenerateRequest, RequestOutput

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class Engine(Protocol):
    """What the API needs of an engine: `engine.client.EngineClient` over a socket, or a fake in a test."""

    @property
    def was_ready(self) -> bool:
        """Whether it ever took requests."""

    async def start(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Let go of the socket."""

    def submit(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncIterator[RequestOutput]:
        """Generate; closing the iterator early aborts. What ``listener`` deals with is not yielded."""

    async def abort(self, request_ids: Iterable[str], finish_reason: Literal["abort", "stop"] = "abort") -> None:
        """Drop requests, which are counted as finished for that reason."""

    async def info(self, timeout_s: float = 2.0) -> EngineInfo:
        """State and facts."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when requests are taken; EngineUnavailableError when that takes too long."""

    async def metrics(self, timeout_s: float = 2.0, *, openmetrics: bool = False) -> str:
        """Prometheus' text, or OpenMetrics'."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached blocks."""


@dataclass(frozen=True)
class SamplingDefaults:
    """What a request gets for the sampling fields that it leaves out. ``max_tokens`` None = the room that is left."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None

    @classmethod
    def load(cls, settings: Settings, baked: BakedModel) -> SamplingDefaults:
        """The defaults that ``--generation-config`` and ``--override-generation-config`` ask for."""
        config = dict(_read_generation_config(settings.generation_config, baked))
        config.update(settings.override_generation_config or {})
        config["max_tokens"] = config.get("max_new_tokens")
        known = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        for name, value in known.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ApplianceError(f"generation config: {name} must be a number, not {value!r}")
        return cls(**known)


def _read_generation_config(source: str, baked: BakedModel) -> dict[str, Any]:
    if source == "auto":
        return baked.generation_config
    if source == "vllm":
        return {}
    path = Path(source) / "generation_config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ApplianceError(f"--generation-config: {path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ApplianceError(f"--generation-config: {path} does not hold a JSON object")
    return value


@dataclass
class ServedModel:
    """One model that the box serves; ``names[0]`` is the one that answers carry."""

    names: Sequence[str]
    baked: BakedModel
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    was_restarted: Callable[[], bool] = lambda: False  # whether the box has started its engine more than once

    @property
    def name(self) -> str:
        """The first served name."""
        return self.names[0]

    @property
    def was_ready(self) -> bool:
        """Whether an engine that is away will be back soon."""
        # A box whose engine had never been ready would have ended with it.
        return self.engine.was_ready or self.was_restarted()

    @cached_property
    def vocab_size(self) -> int:
        """Ids that the engine has logits for (the tokenizer may know fewer)."""
        return int(self.baked.config.get("vocab_size", self.tokenizer.vocab_size))

    @cached_property
    def longest_piece_chars(self) -> int:
        """Characters of the longest token: no text of n characters has fewer than n / this many tokens."""
        return max(len(self.tokenizer.token_str(token)) for token in range(self.tokenizer.vocab_size))

    @cached_property
    def system_fingerprint(self) -> str:
        """Changes when the software or the weights change."""
        digest = hashlib.sha256(json.dumps(self.baked.manifest, sort_keys=True, default=str).encode())
        return f"breadbox-{__version__}-{digest.hexdigest()[:8]}"

    async def adopt_engine_facts(self) -> None:
        """Wait for the engine and take over a context that it had to make shorter than the settings say."""
        while True:
            try:
                info = await self.engine.info()
            except EngineError:
                info = None
            if info is not None and info.is_ready:
                break
            await asyncio.sleep(_POLL_S)
        if 0 < info.max_model_len < self.max_model_len:
            logger.info("model=%s max_model_len=%d as the engine has it", self.name, info.max_model_len)
            self.max_model_len = info.max_model_len


class ServedModels:
    """All models of the box, found by name. The first is meant where a request names none."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = list(models)
        self._by_name = {name: model for model in reversed(self._models) for name in model.names}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def get(self, name: str | None) -> ServedModel:
        """Raises NotFoundError that lists the names there are."""
        if name is None and self._models:
            return self._models[0]
        model = self._by_name.get(name or "")
        if model is None:
            names = ", ".join(name for each in self._models for name in each.names)
            shown = repr((name or "")[:128])
            raise NotFoundError(
                f"the model {shown} does not exist; served: {names}", param="model", code="model_not_found"
            )
        return model


def load_models(settings: Settings) -> list[ServedModel]:
    """The models that the settings name, each connected to its engine's socket in the run directory.

    Raises ApplianceError where a folder is not a baked model.
    """
    names = names_by_model(settings, settings.model)
    return [_load_model(settings, index, names[index]) for index in range(len(names))]


def _load_model(settings: Settings, index: int, names: list[str]) -> ServedModel:
    baked = BakedModel(settings.model[index])
    assert settings.run_dir is not None, "the supervisor renders a run directory"
    _ = baked.manifest  # tells first whether this is a baked model at all
    tokenizer = Tokenizer.load(baked)
    return ServedModel(
        names=names,
        baked=baked,
        engine=EngineClient(settings.run_dir / f"engine-{index}.sock"),
        tokenizer=tokenizer,
        chat_template=_load_chat_template(settings, baked, tokenizer),
        max_model_len=settings.max_model_len or baked.max_position_embeddings,
        defaults=SamplingDefaults.load(settings, baked),
        was_restarted=functools.partial(_was_restarted, settings.run_dir, index),
    )


def _was_restarted(run_dir: Path, index: int) -> bool:
    return len(read_starts(run_dir, f"engine-{index}")) > 1


def _load_chat_template(settings: Settings, baked: BakedModel, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = baked.chat_template
    if settings.chat_template is not None:
        given = read_chat_template(settings.chat_template)
        if source is not None and given.strip() != source.strip():
            logger.warning("model=%s uses --chat-template, which differs from the model's own", baked.name)
        source = given
    return None if source is None else ChatTemplate(source, baked.tokenizer_config, tokenizer)


def read_chat_template(value: str) -> str:
    """``--chat-template``: the template itself (braces or several lines), or the file that holds it."""
    if "{" in value or "\n" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as error:
        raise ApplianceError(f"--chat-template: {value} cannot be read: {error.strerror}") from None
