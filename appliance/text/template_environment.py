"""The Jinja sandbox in which chat templates run, with what Hugging Face's templates expect of it.

Turns a template's failure into an `InvalidRequestError` and bounds what a template may write and how long it may take.
What the template is given is `chat_template`'s job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appliance.errors import ApplianceError, InvalidRequestError
from appliance.text.control_text import unmark

MAX_RENDERED_CHARACTERS = 64 * 1024 * 1024
MAX_RENDER_S = 20.0
_MAX_MESSAGE_CHARACTERS = 500
_BYTES_OF_AN_ITEM = 8
_deadline: ContextVar[float] = ContextVar("_deadline")  # of the rendering that this thread is at


class TemplateTimeoutError(InvalidRequestError):
    """The template took too long."""


class PacedLoop:
    """What a loop goes over, looking at the clock at every turn."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items if hasattr(items, "__len__") else list(items)

    def __len__(self) -> int:
        """For ``loop.length``."""
        return len(self._items)  # type: ignore[arg-type]  # made sure of above

    def __iter__(self) -> Iterator[Any]:
        """Raises TemplateTimeoutError."""
        for item in self._items:
            _check_time()
            yield item


class PacedCode(CodeGenerator):
    """Puts the clock into every loop and the bound on texts into every ``~``."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Before the code is made of it."""
        for loop in node.find_all(nodes.For):
            loop.iter = self._filtered(loop.iter, "paced")
        for joined in node.find_all(nodes.Concat):
            joined.nodes = [self._filtered(nodes.List(joined.nodes, lineno=joined.lineno), "bounded_concat")]
        super().visit_Template(node, frame)

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self.environment)
        return made


class GenerationBlocks(Extension):
    """``{% generation %} … {% endgeneration %}``: marks the model's turns for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep the body, in its own scope."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: no attribute that starts with an underscore, no changes to its input, no giant strings, no end."""

    intercepted_binops = frozenset(["*", "**", "+"])
    code_generator_class = PacedCode

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters["paced"] = PacedLoop
        self.filters["bounded_concat"] = _bounded_concat
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result alone would be over the bound."""
        if _result_size(operator, left, right) > MAX_RENDERED_CHARACTERS:
            raise _too_much()
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Macros call themselves without any loop."""
        _check_time()
        return super().call(context, obj, *args, **kwargs)


def compile_template(source: str) -> jinja2.Template:
    """A compiled template; ApplianceError where its syntax is wrong."""
    try:
        return TemplateEnvironment().from_string(source)
    except (jinja2.TemplateSyntaxError, SyntaxError, RecursionError) as error:
        raise ApplianceError(f"the chat template is not valid Jinja: {error}") from None


def render_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The template's text; InvalidRequestError naming ``messages`` where it cannot render them."""
    _deadline.set(time.monotonic() + MAX_RENDER_S)
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


def _check_time() -> None:
    if time.monotonic() > _deadline.get(float("inf")):
        raise TemplateTimeoutError(f"the chat template took more than {MAX_RENDER_S:g} s", param="messages")


def _bounded_concat(parts: list[Any]) -> str:
    texts = list(map(str, parts))
    if sum(map(len, texts)) > MAX_RENDERED_CHARACTERS:
        raise _too_much()
    return "".join(texts)


def _too_much() -> jinja2.TemplateError:
    return jinja2.TemplateError(f"the chat template would write more than {MAX_RENDERED_CHARACTERS} characters")


def _result_size(operator: str, left: Any, right: Any) -> int:
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                return _size_of(sequence) * count
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        return _size_of(left) + _size_of(right)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 0)
    return 0


def _size_of(sequence: str | list[Any] | tuple[Any, ...]) -> int:
    return len(sequence) * (1 if isinstance(sequence, str) else _BYTES_OF_AN_ITEM)


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
