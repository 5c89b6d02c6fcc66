"""Loading served models from settings: names, templates, sampling defaults, several models side by side."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.api.app import create_app, make_app
from appliance.api.served_model import SamplingDefaults, ServedModel, load_models
from appliance.baked_model import BakedModel
from appliance.errors import ApplianceError
from appliance.settings import Settings, to_json
from tests.api.scripted_engine import ScriptedEngine


def load(smollm2: Path, tmp_path: Path, **settings: Any) -> list[ServedModel]:
    settings.setdefault("model", (smollm2,))
    return load_models(Settings(run_dir=tmp_path, **settings))


def test_names(smollm2: Path, tmp_path: Path) -> None:
    assert load(smollm2, tmp_path)[0].names == [BakedModel(smollm2).name]
    assert load(smollm2, tmp_path, served_model_name=("a", "b"))[0].names == ["a", "b"]
    two = load(smollm2, tmp_path, model=(smollm2, smollm2), served_model_name=("a", "b"))
    assert [tuple(model.names) for model in two] == [("a",), ("b",)]
    with pytest.raises(ApplianceError, match="one for each"):
        load(smollm2, tmp_path, model=(smollm2, smollm2), served_model_name=("a",))


def test_context_and_template(smollm2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(smollm2, tmp_path)[0].max_model_len == 8192
    assert load(smollm2, tmp_path, max_model_len=100)[0].max_model_len == 100
    assert not caplog.records
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}")
    for given in (str(file), file.read_text()):
        template = load(smollm2, tmp_path, chat_template=given)[0].chat_template
        assert template is not None
        assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    assert "differs" in caplog.text
    with pytest.raises(ApplianceError, match="--chat-template"):
        load(smollm2, tmp_path, chat_template="/no/such/file")
    with pytest.raises(ApplianceError, match="not a baked model"):
        load(smollm2, tmp_path, model=(tmp_path,))


def test_sampling_defaults(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 9, "do_sample": True}))
    baked = BakedModel(smollm2)
    folder = Settings(generation_config=str(tmp_path))
    assert SamplingDefaults.load(folder, baked) == SamplingDefaults(temperature=0.5, top_k=9)
    over = dataclasses.replace(folder, override_generation_config={"top_k": 3, "max_new_tokens": 8})
    assert SamplingDefaults.load(over, baked) == SamplingDefaults(temperature=0.5, top_k=3, max_tokens=8)
    assert SamplingDefaults.load(Settings(generation_config="vllm"), baked) == SamplingDefaults()
    for wrong in ({"temperature": "hot"}, {"top_k": True}, {"max_new_tokens": [1]}):
        with pytest.raises(ApplianceError, match="must be a number"):
            SamplingDefaults.load(Settings(override_generation_config=wrong), baked)
    with pytest.raises(ApplianceError, match="cannot be read"):
        SamplingDefaults.load(Settings(generation_config="/no/such"), baked)


async def test_two_models_side_by_side(text_side: ServedModel) -> None:
    models = [dataclasses.replace(text_side, names=[name], engine=ScriptedEngine()) for name in ("one", "two")]
    app = create_app(Settings(), models)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box") as client:
        for name in ("two", None, "one"):
            body = {"model": name, "prompt": "x", "max_tokens": 1}
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["model"] == (name or "one")
        assert [len(model.engine.submitted) for model in models] == [2, 1]  # type: ignore[attr-defined]
        assert len((await client.get("/readyz")).json()["models"]) == 2


def test_make_app_reads_the_rendered_settings(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.json"
    file.write_text(to_json(Settings(model=(smollm2,), run_dir=tmp_path, served_model_name=("x",))))
    monkeypatch.setenv("BREADBOX_SETTINGS_FILE", str(file))
    assert [model.name for model in make_app().state.api.models] == ["x"]
