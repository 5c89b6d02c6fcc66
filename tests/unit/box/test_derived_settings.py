"""What the settings leave open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.derived_settings import (
    default_api_workers,
    default_token_budget,
    derive_settings,
    find_models,
    names_by_model,
)
from appliance.errors import SettingsError
from appliance.settings import Settings


def test_the_only_model_there_is(fake_model: Path) -> None:
    assert find_models(Settings(models_dir=fake_model.parent)) == (fake_model,)


def test_a_model_by_its_name_in_the_models_folder(fake_model: Path) -> None:
    assert find_models(Settings(models_dir=fake_model.parent, model=(Path("fake"),))) == (fake_model,)


def test_several_models_must_be_named(make_model: Callable[[str], Path]) -> None:
    home = make_model("a").parent
    make_model("b")
    with pytest.raises(SettingsError, match=r"holds 2 models.*a, b"):
        find_models(Settings(models_dir=home))


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model to serve"):
        find_models(Settings(models_dir=tmp_path))


def test_names(make_model: Callable[[str], Path]) -> None:
    one, two = make_model("a"), make_model("b")
    assert names_by_model(Settings(), (one, two)) == [["a"], ["b"]]
    assert names_by_model(Settings(served_model_name=("x", "y")), (one,)) == [["x", "y"]]
    assert names_by_model(Settings(served_model_name=("x", "y")), (one, two)) == [["x"], ["y"]]
    with pytest.raises(SettingsError, match="1 names for 2 models"):
        names_by_model(Settings(served_model_name=("x",)), (one, two))
    with pytest.raises(SettingsError, match="a is used twice"):
        names_by_model(Settings(), (one, one))


def test_paths_become_absolute_and_gaps_are_filled(
    fake_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    settings = Settings(model=(Path("models/fake"),), chat_template="template.jinja", uds=Path("box.sock"))
    derived = derive_settings(settings, Path("/run/box"))
    assert derived.model == (fake_model,)
    assert derived.chat_template == str(tmp_path / "template.jinja")
    assert derived.uds == tmp_path / "box.sock"
    assert derived.run_dir == Path("/run/box")
    assert derived.api_workers
    assert derived.max_num_batched_tokens
    assert derived.max_body_bytes == 8 * 1024**2


def test_a_template_that_is_none_of_the_files(fake_model: Path) -> None:
    settings = Settings(model=(fake_model,), chat_template="{{ messages }}")
    assert derive_settings(settings, Path("/run/box")).chat_template == "{{ messages }}"


def test_the_body_limit_grows_with_the_context(fake_model: Path) -> None:
    derived = derive_settings(Settings(model=(fake_model,), max_model_len=1_000_000), Path("/run/box"))
    assert derived.max_body_bytes == 128_000_000


def test_workers_and_token_budget() -> None:
    assert [default_api_workers(cores) for cores in (1, 2, 4, 8, 64)] == [1, 1, 2, 4, 4]
    assert (default_token_budget("cpu"), default_token_budget("cuda")) == (256, 2048)
