"""What /openapi.json says of the bodies that we parse ourselves, and of the errors that every route may answer."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_bodies: dict[str, type[BaseModel]] = {}

_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
ENVELOPES: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL},
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
        },
    },
}


def describe_body(*models: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is one of `models`."""
    _bodies.update({model.__name__: model for model in models})
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install_openapi(app: FastAPI) -> None:
    """Make `app` describe itself with our bodies' schemas and our errors; done when somebody asks, not at start."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            document["components"] = {"schemas": _describe_bodies() | ENVELOPES}
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    _describe_answers(operation, _find_envelope(app, path))
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _describe_bodies() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for model in _bodies.values():
        schema = model.model_json_schema(ref_template=_REF)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return schemas


def _find_envelope(app: FastAPI, path: str) -> str:
    prefixes = app.state.api.envelopes
    return "AnthropicError" if any(path.startswith(prefix) for prefix in prefixes) else "Error"


def _describe_answers(operation: dict[str, Any], envelope: str) -> None:
    """The framework's 422 is one of our 400s; routes that answer with a body of ours may stream."""
    responses = operation["responses"]
    responses.pop("422", None)
    if "requestBody" in operation:
        responses["200"].setdefault("content", {})["text/event-stream"] = {"schema": {"type": "string"}}
    content = {"application/json": {"schema": {"$ref": _REF.format(model=envelope)}}}
    responses["4XX"] = {"description": "The request is refused; the message names the field.", "content": content}
    responses["5XX"] = {"description": "Not the request's fault; 503 says when to try again.", "content": content}
