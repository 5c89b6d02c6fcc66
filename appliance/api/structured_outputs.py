"""The fields that say what an answer must look like, in all their spellings, and the `Grammar` they become.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its older ``guided_*`` mean the same things; a request
uses one of them. Errors that only the grammar's compiler can find come from the engine, before any byte is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from pydantic import Field

from appliance.api.fields import RequestFields, refuse
from appliance.api.json_schemas import check_depth, prepare_schema, schema_source
from appliance.errors import InvalidRequestError
from engine.messages import Grammar

MAX_CHOICES = 10_000
MAX_CHARS = 512 * 1024
MAX_WHITESPACE_CHARS = 256
_LARK_START = re.compile(r"^\s*(%llguidance\b|\??start\s*(\[[^\]]*\]\s*)?:(?!:=))", re.MULTILINE)
_FORMATS = "text, json_object, json_schema or structural_tag"
_ANY_OBJECT = '{"type":"object"}'


class StructuredOutputs(RequestFields):
    """vLLM's way: exactly one of the first six."""

    json_: Any = Field(None, alias="json", json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = Field(None, json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def to_grammar(self, names: Callable[[str], str], param: str) -> Grammar:
        """`names` gives each field's path in the request, `param` is what the engine's errors name."""
        given = [name for name in _MAKERS if getattr(self, _attribute(name)) is not None]
        if len(given) != 1:
            raise refuse(param, f"must have exactly one of {', '.join(_MAKERS)}")
        kind, source = _MAKERS[given[0]](self, names(given[0]))
        return Grammar(kind=kind, source=source, param=param, whitespace=self._whitespace(names))

    def _whitespace(self, names: Callable[[str], str]) -> str | None:
        if self.disable_any_whitespace:
            return ""
        pattern = self.whitespace_pattern
        if pattern is None:
            return None
        path = names("whitespace_pattern")
        _check_text(path, pattern)
        if len(pattern) > MAX_WHITESPACE_CHARS:
            raise refuse(path, f"must have at most {MAX_WHITESPACE_CHARS} characters")
        return pattern

    def _make_json(self, path: str) -> tuple[str, str]:
        schema = self.json_
        if isinstance(schema, str):
            schema = _parse(schema, path)
        if not isinstance(schema, dict):
            raise refuse(path, "must be a JSON schema: an object")
        return "json_schema", schema_source(schema, path, closes_all=self.disable_additional_properties)

    def _make_regex(self, path: str) -> tuple[str, str]:
        assert self.regex is not None
        _check_text(path, self.regex)
        return "regex", self.regex

    def _make_choice(self, path: str) -> tuple[str, str]:
        if not self.choice or len(self.choice) > MAX_CHOICES:
            raise refuse(path, f"must have 1 to {MAX_CHOICES} strings")
        return "choice", msgspec.json.encode(self.choice).decode()

    def _make_grammar(self, path: str) -> tuple[str, str]:
        assert self.grammar is not None
        _check_text(path, self.grammar)
        return ("lark" if _LARK_START.search(self.grammar) else "ebnf"), self.grammar

    def _make_json_object(self, path: str) -> tuple[str, str]:
        if not self.json_object:
            raise refuse(path, "must be true, or left out")
        return "json_schema", _ANY_OBJECT

    def _make_structural_tag(self, path: str) -> tuple[str, str]:
        return _structural_tag(self.structural_tag, path)


_MAKERS: dict[str, Callable[[StructuredOutputs, str], tuple[str, str]]] = {
    "json": StructuredOutputs._make_json,
    "regex": StructuredOutputs._make_regex,
    "choice": StructuredOutputs._make_choice,
    "grammar": StructuredOutputs._make_grammar,
    "json_object": StructuredOutputs._make_json_object,
    "structural_tag": StructuredOutputs._make_structural_tag,
}


class ConstraintFields(RequestFields):
    """The constraining fields of a generation request."""

    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = Field(None, json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None  # there is one

    def make_grammar(self) -> Grammar | None:
        """What the answer must look like, None for any text. Raises InvalidRequestError."""
        found = [grammar for grammar in (self._from_format(), self._from_object(), self._from_guided()) if grammar]
        if len(found) > 1:
            raise refuse(found[1].param, f"cannot be combined with {found[0].param}: both constrain the answer")
        return found[0] if found else None

    def _from_format(self) -> Grammar | None:
        spec = self.response_format
        if spec is None:
            return None
        kind = spec.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return Grammar(kind="json_schema", source=_ANY_OBJECT, param="response_format")
        if kind == "json_schema":
            return Grammar(kind="json_schema", source=_format_schema(spec.get("json_schema")), param="response_format")
        if kind == "structural_tag":
            tag_kind, source = _structural_tag(spec, "response_format")
            return Grammar(kind=tag_kind, source=source, param="response_format")
        raise refuse("response_format.type", f"must be {_FORMATS}")

    def _from_object(self) -> Grammar | None:
        if self.structured_outputs is None:
            return None
        return self.structured_outputs.to_grammar("structured_outputs.{}".format, "structured_outputs")

    def _from_guided(self) -> Grammar | None:
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in names if getattr(self, f"guided_{name}") not in (None, False)]
        if not given:
            return None
        if len(given) > 1:
            raise refuse(f"guided_{given[1]}", f"cannot be combined with guided_{given[0]}")
        fields = {given[0]: getattr(self, f"guided_{given[0]}"), "whitespace_pattern": self.guided_whitespace_pattern}
        return StructuredOutputs.model_validate(fields).to_grammar("guided_{}".format, f"guided_{given[0]}")


def _attribute(name: str) -> str:
    return "json_" if name == "json" else name


def _format_schema(spec: Any) -> str:
    if not isinstance(spec, dict):
        raise refuse("response_format.json_schema", "must be an object with name and schema")
    if not isinstance(spec.get("name", ""), str):
        raise refuse("response_format.json_schema.name", "must be a string")
    if not isinstance(spec.get("strict"), bool | None):
        raise refuse("response_format.json_schema.strict", "must be true or false")
    schema = spec.get("schema")
    if not isinstance(schema, dict):
        raise refuse("response_format.json_schema.schema", "must be a JSON schema: an object")
    return schema_source(schema, "response_format.json_schema.schema")


def _structural_tag(spec: Any, path: str) -> tuple[str, str]:
    if isinstance(spec, str):
        spec = _parse(spec, path)
    if not isinstance(spec, dict):
        raise refuse(path, "must be an object")
    check_depth(spec, path)
    if "format" not in spec and not isinstance(spec.get("structures"), list):
        raise refuse(path, "must have a format, or structures and triggers")
    source = msgspec.json.encode(_with_closed_schemas(spec, path)).decode()
    if len(source) > MAX_CHARS:
        raise refuse(path, f"must have at most {MAX_CHARS} characters")
    return "structural_tag", source


def _with_closed_schemas(spec: Any, path: str) -> Any:
    """The tag's schemas are treated like any other."""
    if isinstance(spec, list):
        return [_with_closed_schemas(item, path) for item in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        name: prepare_schema(part, path)
        if name in ("schema", "json_schema") and isinstance(part, dict)
        else _with_closed_schemas(part, path)
        for name, part in spec.items()
    }


def _parse(text: str, path: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequestError(f"{path} is not valid JSON", param=path) from None


def _check_text(path: str, text: str) -> None:
    if not text.strip():
        raise refuse(path, "must not be empty")
    if "\0" in text:
        raise refuse(path, "must not hold NUL")
    if len(text) > MAX_CHARS:
        raise refuse(path, f"must have at most {MAX_CHARS} characters")
