"""Every knob from flag, environment or default, and all that can be wrong with it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance.errors import SettingsError
from appliance.settings import (
    KNOBS,
    LoadedSettings,
    Settings,
    add_flags,
    from_json,
    load_settings,
    load_settings_and_problems,
    parse_size,
    to_json,
)


def load(words: Sequence[str] = (), **environ: str) -> LoadedSettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return load_settings(vars(parser.parse_args(list(words))), environ)


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    loaded = load(["--port", "1"], BREADBOX_PORT="2", BREADBOX_MAX_NUM_SEQS="3")
    assert (loaded.settings.port, loaded.sources["port"]) == (1, "flag")
    assert (loaded.settings.max_num_seqs, loaded.sources["max_num_seqs"]) == (3, "environment")
    assert (loaded.settings.block_size, loaded.sources["block_size"]) == (16, "default")


def test_an_empty_variable_is_not_set() -> None:
    assert load(BREADBOX_PORT="").sources["port"] == "default"


def test_booleans_have_a_no_form() -> None:
    assert not load(["--no-enable-prefix-caching"]).settings.enable_prefix_caching
    assert load(["--disable-fastapi-docs"]).settings.disable_fastapi_docs
    assert not load(BREADBOX_ENABLE_PREFIX_CACHING="off").settings.enable_prefix_caching


def test_lists_are_repeated_flags_or_a_comma_separated_variable() -> None:
    assert load(["--api-key", "a", "--api-key", "b"]).settings.api_key == ("a", "b")
    assert load(BREADBOX_API_KEY="a, b,").settings.api_key == ("a", "b")
    assert load(["--served-model-name", "a", "b"]).settings.served_model_name == ("a", "b")


@pytest.mark.parametrize(
    ("text", "size"), [("8k", 8000), ("4GiB", 4 << 30), ("1.5M", 1_500_000), ("7", 7), ("2 ki", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1x", "1e3", "1 2"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_size(text)


def test_all_problems_are_reported_at_once_and_name_their_origin() -> None:
    with pytest.raises(SettingsError) as caught:
        load(["--port", "70000", "--dtype", "int3"], BREADBOX_BLOCK_SIZE="many", BREADBOX_PROT="1")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "--port",
        "--dtype",
        "BREADBOX_BLOCK_SIZE",
        "BREADBOX_PROT",
    ]


def test_problems_can_be_had_beside_the_rest() -> None:
    loaded, problems = load_settings_and_problems({"port": ["x"], "host": ["::1"]}, {})
    assert (loaded.settings.port, loaded.settings.host) == (8000, "::1")
    assert len(problems) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--host", "a; b"],
        ["--root-path", "llm"],
        ["--root-path", "/llm/"],
        ["--root-path", "/a b"],
        ["--override-generation-config", "[]"],
        ["--gpu-memory-utilization", "2"],
        ["--max-body-bytes", "10"],
    ],
)
def test_values_out_of_range(words: list[str]) -> None:
    with pytest.raises(SettingsError, match=words[0]):
        load(words)


def test_json_and_back() -> None:
    settings = Settings(
        api_key=("k",), model=(Path("/a"),), uds=Path("/u"), override_generation_config={"top_k": 1}, max_body_bytes=5
    )
    assert from_json(to_json(settings)) == settings


def test_every_knob_is_described() -> None:
    for knob in KNOBS:
        assert knob.help
        assert knob.flag.startswith("--")
        assert knob.variable == f"BREADBOX_{knob.name.upper()}"
