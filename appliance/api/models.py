"""GET /v1/models: one card per served name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from appliance.api.json_response import json_response
from appliance.api.served_model import ServedModel
from appliance.api.state import get_state

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names that requests may use."""
    state = get_state(request)
    cards = [make_card(model, name, state.started_at) for model in state.models for name in model.names]
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> Response:
    """One card."""
    state = get_state(request)
    return json_response(make_card(state.models.get(name), name, state.started_at))


def make_card(model: ServedModel, name: str, created: int) -> dict[str, Any]:
    """A model card under one of the model's names."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "breadbox",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [],
    }
