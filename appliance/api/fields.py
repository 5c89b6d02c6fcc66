"""The base of every request schema: unknown fields are ignored, an explicit null is the default, types are strict."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from appliance.errors import InvalidRequestError

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 16.0 is an integer, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]


class RequestFields(BaseModel):
    """A JSON object sent by a client."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(RequestFields):
    """What a stream reports beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


def refuse(param: str, problem: str) -> InvalidRequestError:
    """A 400 whose message begins with the field it is about."""
    return InvalidRequestError(f"{param} {problem}", param=param)
