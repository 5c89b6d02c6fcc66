"""What the settings leave open, found out once before a box starts: models, names, workers, body limit.

The result is again a `Settings`, with every path absolute, so the box's processes read it from the run directory and
need not find out anything themselves. Whether a model folder is any good is `appliance.preflight`'s business.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from appliance.baked_model import BakedModel
from appliance.errors import ApplianceError, SettingsError
from appliance.settings import Settings

# The longest of JSON's ways to write a token (escaped, with the message around it) seldom takes more bytes than this.
_BODY_BYTES_PER_TOKEN = 128
_MIN_BODY_BYTES = 8 * 1024**2


def derive_settings(settings: Settings, run_dir: Path) -> Settings:
    """Fill in what was left to be found out. Raises SettingsError."""
    models = find_models(settings)
    return dataclasses.replace(
        settings,
        model=models,
        models_dir=settings.models_dir.expanduser().absolute(),
        run_dir=run_dir,
        uds=settings.uds.expanduser().absolute() if settings.uds else None,
        tool_parser_plugin=settings.tool_parser_plugin.expanduser().absolute() if settings.tool_parser_plugin else None,
        api_key_file=settings.api_key_file.expanduser().absolute() if settings.api_key_file else None,
        chat_template=_absolute_if_file(settings.chat_template),
        generation_config=_absolute_if_file(settings.generation_config) or "auto",
        max_num_batched_tokens=settings.max_num_batched_tokens or default_token_budget(settings.device),
        api_workers=settings.api_workers or default_api_workers(count_cores()),
        max_body_bytes=settings.max_body_bytes or default_max_body_bytes(settings, models),
    )


def find_models(settings: Settings) -> tuple[Path, ...]:
    """The baked folders to serve: those named (as paths, or as names in models_dir), else the only one there is."""
    home = settings.models_dir.expanduser()
    if settings.model:
        return tuple(_locate(model.expanduser(), home) for model in settings.model)
    found = sorted(file.parent for file in home.glob("*/manifest.json"))
    if not found:
        raise SettingsError([f"no model to serve: name a baked folder, or bake one into {home} (breadbox bake --help)"])
    if len(found) > 1:
        raise SettingsError([f"{home} holds {len(found)} models: name those to serve ({_listing(found)})"])
    return (found[0].absolute(),)


def _locate(model: Path, home: Path) -> Path:
    if not model.exists() and len(model.parts) == 1 and (home / model).exists():
        return (home / model).absolute()
    return model.absolute()


def _listing(models: list[Path]) -> str:
    return ", ".join(model.name for model in models)


def names_by_model(settings: Settings, models: tuple[Path, ...]) -> list[list[str]]:
    """The names each model answers to, the first of each list being the one that is reported. Raises SettingsError."""
    given = list(settings.served_model_name)
    if not given:
        names = [[_own_name(model)] for model in models]
    elif len(models) == 1:
        names = [given]
    elif len(given) == len(models):
        names = [[name] for name in given]
    else:
        raise SettingsError([f"--served-model-name: {len(given)} names for {len(models)} models: give one for each"])
    flat = [name for group in names for name in group]
    twice = sorted({name for name in flat if flat.count(name) > 1})
    if twice:
        raise SettingsError([f"--served-model-name: the name {twice[0]} is used twice: give each model its own"])
    return names


def _own_name(model: Path) -> str:
    try:
        return BakedModel(model).name
    except ApplianceError:
        return model.name


def count_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def default_api_workers(cores: int) -> int:
    """Half of the cores, as the engine needs the others; more than four bring nothing for one engine."""
    return max(1, min(4, cores // 2))


def default_token_budget(device: str) -> int:
    """Short steps on a CPU: a running stream waits for a long prompt's step, and so does whoever is new.

    At 1,700 tokens a second (two cores, a model of 135M) 256 of them take 0.15 s, 512 more than a quarter of a second
    (`breadbox bench profile`). Larger steps are hardly faster: at that size a step computes and no longer waits for
    weights.
    """
    has_gpu = device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists())
    return 2048 if has_gpu else 256


def default_max_body_bytes(settings: Settings, models: tuple[Path, ...]) -> int:
    """What the longest context can need, and never less than 8 MiB."""
    lengths = [settings.max_model_len or _context_of(model) for model in models]
    return max(_MIN_BODY_BYTES, _BODY_BYTES_PER_TOKEN * max(lengths))


def _context_of(model: Path) -> int:
    try:
        return BakedModel(model).max_position_embeddings
    except (ApplianceError, ValueError, TypeError):
        return 0


def _absolute_if_file(text: str | None) -> str | None:
    # A chat template may be given as the template itself, which need not be a possible file name.
    if text is None or "\n" in text or "{" in text or not Path(text).expanduser().exists():
        return text
    return str(Path(text).expanduser().absolute())
