"""--speculative-config: what may be in it, what the engine gets, what is said about the rest."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.engine_process import make_engine_config
from appliance.errors import SettingsError
from appliance.settings import Settings, add_flags, from_json, load_settings, to_json
from engine.config import SpeculationConfig

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def load(value: object) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    text = value if isinstance(value, str) else json.dumps(value)
    return load_settings(vars(parser.parse_args(["--speculative-config", text])), {}).settings


def engine_value(value: dict[str, Any]) -> SpeculationConfig | None:
    settings = from_json(to_json(load(value)))  # as the engine's process gets it
    return make_engine_config(dataclasses.replace(settings, model=(Path("/m"),), run_dir=Path("/r")), 0).speculation


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"prompt_lookup_max": 4}, {"prompt_lookup_max": 4, "prompt_lookup_min": 4}),
        ({"prompt_lookup_min": 3}, {"prompt_lookup_max": 3, "prompt_lookup_min": 3}),
        ({"prompt_lookup_max": 7, "prompt_lookup_min": 1}, {"prompt_lookup_max": 7, "prompt_lookup_min": 1}),
        ({"disable_by_batch_size": 8, "adaptive": False}, {"disable_by_batch_size": 8, "adaptive": False}),
        ({"prompt_lookup_max": None, "disable_by_batch_size": None}, {}),
    ],
)
def test_what_the_engine_gets(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert engine_value(NGRAM | fields) == SpeculationConfig(num_speculative_tokens=4, **expected)


def test_it_is_off_unless_asked_for() -> None:
    assert make_engine_config(Settings(model=(Path("/m"),), run_dir=Path("/r")), 0).speculation is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", "a JSON object is expected"),
        ({"num_speculative_tokens": 4}, "method must be ngram (prompt lookup), not None"),
        ({"method": "eagle", "num_speculative_tokens": 4}, "method must be ngram (prompt lookup), not 'eagle'"),
        ({"method": "ngram"}, "num_speculative_tokens is missing: the most draft tokens a step checks, 1 to 64"),
        (NGRAM | {"num_speculative_tokens": 0}, "num_speculative_tokens must be a whole number from 1 to 64, not 0"),
        (NGRAM | {"num_speculative_tokens": True}, "num_speculative_tokens must be a whole number from 1 to 64"),
        (NGRAM | {"prompt_lookup_max": 2.5}, "prompt_lookup_max must be a whole number from 1 to 64, not 2.5"),
        (
            NGRAM | {"prompt_lookup_max": 2, "prompt_lookup_min": 3},
            "prompt_lookup_min 3 is more than prompt_lookup_max 2",
        ),
        (NGRAM | {"adaptive": 1}, "adaptive must be true or false, not 1"),
        (NGRAM | {"draft_model": "x"}, "draft_model is not one of method, num_speculative_tokens, prompt_lookup_max"),
    ],
)
def test_what_is_wrong_is_said(value: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(value)
    (problem,) = caught.value.problems
    assert problem.startswith(f"--speculative-config: {message}")
