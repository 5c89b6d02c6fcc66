"""The bodies that we parse ourselves, in /openapi.json: schemas as components, references from the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_bodies: dict[str, type[BaseModel]] = {}


def describe_body(*models: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is one of `models`."""
    _bodies.update({model.__name__: model for model in models})
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install_openapi(app: FastAPI) -> None:
    """Make `app` describe itself with our bodies' schemas; done when somebody asks, not at start."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for model in _bodies.values():
                schema = model.model_json_schema(ref_template=_REF)
                schemas |= schema.pop("$defs", {})
                schemas[model.__name__] = schema
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
