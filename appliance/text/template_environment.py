"""The Jinja sandbox in which chat templates run, with what Hugging Face's templates expect of it.

Turns a template's failure into an `InvalidRequestError` and bounds what a template may write. What the template is
given is `chat_template`'s job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appliance.errors import ApplianceError, InvalidRequestError
from appliance.text.control_text import unmark

MAX_RENDERED_CHARACTERS = 64 * 1024 * 1024
_MAX_MESSAGE_CHARACTERS = 500


class GenerationBlocks(Extension):
    """``{% generation %} … {% endgeneration %}``: marks the model's turns for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep the body, in its own scope."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: no attribute that starts with an underscore, no changes to its input, no giant strings."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result alone would be over the bound."""
        if _result_size(operator, left, right) > MAX_RENDERED_CHARACTERS:
            raise jinja2.TemplateError(f"the chat template would write more than {MAX_RENDERED_CHARACTERS} characters")
        return super().call_binop(context, operator, left, right)


def compile_template(source: str) -> jinja2.Template:
    """A compiled template; ApplianceError where its syntax is wrong."""
    try:
        return TemplateEnvironment().from_string(source)
    except (jinja2.TemplateSyntaxError, RecursionError) as error:
        raise ApplianceError(f"the chat template is not valid Jinja: {error}") from None


def render_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The template's text; InvalidRequestError naming ``messages`` where it cannot render them."""
    try:
        return _bounded(template, variables)
    except jinja2.UndefinedError as error:
        problem = f"the chat template misses something in these messages: {error.message}"
    except jinja2.TemplateError as error:
        problem = f"the chat template refuses these messages: {error.message}"
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
        problem = "the chat template cannot render these messages"
    raise InvalidRequestError(unmark(problem)[:_MAX_MESSAGE_CHARACTERS], param="messages")


def _bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    for part in template.generate(variables):
        size += len(part)
        if size > MAX_RENDERED_CHARACTERS:
            raise jinja2.TemplateError(f"the prompt would have more than {MAX_RENDERED_CHARACTERS} characters")
        parts.append(part)
    return "".join(parts)


def _result_size(operator: str, left: Any, right: Any) -> int:
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                return len(sequence) * count
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 0)
    return 0


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, jinja2.Undefined):
        value._fail_with_undefined_error()
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
