"""Reads JSON bodies: size, content type, strict JSON, bounded nesting, then the schema. Anything wrong is a 4xx.

Bodies are parsed here and not by the framework, because its parser lets NaN, lone surrogates and boundless nesting
through and answers 422. Large ones are read in a thread; what cannot let go of the interpreter there is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from appliance.api.event_loop import off_loop
from appliance.api.state import get_state
from appliance.errors import InvalidRequestError, PayloadTooLargeError

# Making a million of them takes a second in which nothing else runs; no conversation has a tenth of these.
MAX_CONTAINERS = 100_000
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")  # anything else in a header is ignored
_MAX_DETAIL_CHARS = 200
Model = TypeVar("Model", bound=BaseModel)


def json_body(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads the request's body as a `model`."""

    async def read(request: Request) -> Model:
        value, size = await _read(request)
        return await off_loop(size, lambda: validate(model, value))

    return read


async def read_object(request: Request) -> dict[str, Any]:
    """The request's body as a JSON object, with what headers say in its place.

    Raises InvalidRequestError, PayloadTooLargeError.
    """
    value, _ = await _read(request)
    return value


async def _read(request: Request) -> tuple[dict[str, Any], int]:
    """The object, and how many bytes it was."""
    _check_content_type(request)
    body = await read_bytes(request, get_state(request).max_body_bytes)
    max_depth = get_state(request).settings.max_json_depth
    value = await off_loop(len(body), lambda: parse_json(body, max_depth))
    priority = request.headers.get("x-vllm-priority", "")
    if _INTEGER.fullmatch(priority):
        value["priority"] = int(priority)
    return value, len(body)


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body. Raises PayloadTooLargeError as soon as it is known to be over `limit` bytes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
    return b"".join(chunks)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the request body is over the limit of {limit} bytes")


def _check_content_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequestError("the content type must be application/json")


def parse_json(body: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequestError."""
    # Counting brackets is a cheap upper bound: some may be in strings.
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets > MAX_CONTAINERS:
        _check_containers(body)
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the request body is not valid JSON: {error}") from None
    except (RecursionError, ValueError, OverflowError):
        raise InvalidRequestError("the request body is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the request body must be a JSON object")
    if num_brackets > max_depth:
        check_depth(value, max_depth)
    return value


def _check_containers(body: bytes) -> None:
    without_escapes = body.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = b"".join(without_escapes.split(b'"')[::2])  # what is between the strings
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise InvalidRequestError(f"the request body has more than {MAX_CONTAINERS} lists and objects")


def check_depth(value: Any, limit: int) -> None:
    """Raises InvalidRequestError where `value` nests deeper than `limit`; walks level by level, not recursively."""
    level: list[Any] = [value]
    for _ in range(limit + 1):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return
    raise InvalidRequestError(f"the request body is nested deeper than {limit} levels")


def _containers(value: Any) -> Iterable[Any]:
    children = value.values() if isinstance(value, dict) else value
    return (child for child in children if isinstance(child, (dict, list)))


def validate(model: type[Model], value: dict[str, Any]) -> Model:
    """`value` as a `model`. Raises InvalidRequestError that names the first wrong field by its dotted path."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _invalid_field(first) from None


def _invalid_field(problem: Any) -> InvalidRequestError:
    param = dotted_path(problem["loc"])
    return InvalidRequestError(_describe(param, problem), param=param or None)


def dotted_path(location: Iterable[str | int]) -> str:
    """``("messages", 0, "role")`` → ``messages[0].role``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")[:_MAX_DETAIL_CHARS]


_DESCRIPTIONS = {
    "missing": "{param} is required",
    "greater_than_equal": "{param} must be at least {ge}",
    "greater_than": "{param} must be greater than {gt}",
    "less_than_equal": "{param} must be at most {le}",
    "less_than": "{param} must be less than {lt}",
    "int_type": "{param} must be an integer",
    "float_type": "{param} must be a number",
    "bool_type": "{param} must be true or false",
    "string_type": "{param} must be a string",
    "list_type": "{param} must be a list",
    "dict_type": "{param} must be an object",
    "model_type": "{param} must be an object",
    "literal_error": "{param} must be {expected}",
}


def _describe(param: str, problem: Any) -> str:
    template = _DESCRIPTIONS.get(problem["type"])
    if template is None:
        return f"{param}: {problem['msg']}"[:_MAX_DETAIL_CHARS]
    return template.format(param=param, **problem.get("ctx", {}))
