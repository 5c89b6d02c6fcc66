"""The tools of a chat request, and which of them the answer may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from appliance.api.fields import RequestFields, refuse

Mode = Literal["none", "auto", "required", "named"]
_SHAPE = 'must be none, auto, required or {"type": "function", "function": {"name": "…"}}'


class FunctionSchema(RequestFields):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestFields):
    """One entry of ``tools``."""

    type: Literal["function"] = "function"
    function: FunctionSchema

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the arguments; a function that lists none takes none."""
        return self.function.parameters or {"type": "object", "properties": {}}

    def to_template(self) -> dict[str, Any]:
        """As chat templates expect it: parameters always there, what was not given left out."""
        function: dict[str, Any] = {"name": self.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the answer may do with tools. ``tools`` are those that may be called: of "named", the one."""

    mode: Mode
    tools: Sequence[Tool] = ()
    is_asked: bool = True  # False where the request left it open

    @property
    def is_forced(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.mode in ("required", "named")


def read_tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """The request's ``tool_choice``. Raises InvalidRequestError."""
    if choice is None:
        return ToolChoice("auto", tools, is_asked=False) if tools else ToolChoice("none")
    if choice == "none":
        return ToolChoice("none")
    if not tools:
        raise refuse("tool_choice", "is only allowed with tools")
    if choice == "auto" or choice == "required":
        return ToolChoice(choice, tools)
    if not isinstance(choice, dict):
        raise refuse("tool_choice", _SHAPE)
    if choice.get("type") == "allowed_tools":
        return _read_allowed(choice.get("allowed_tools"), tools)
    return ToolChoice("named", [_find(choice, tools, "tool_choice")])


def _read_allowed(spec: Any, tools: Sequence[Tool]) -> ToolChoice:
    mode = spec.get("mode") if isinstance(spec, dict) else None
    if mode not in ("auto", "required"):
        raise refuse("tool_choice.allowed_tools.mode", "must be auto or required")
    listed = spec.get("tools")
    if not isinstance(listed, list) or not listed:
        raise refuse("tool_choice.allowed_tools.tools", "must be a list of tools, not empty")
    return ToolChoice(mode, [_find(entry, tools, "tool_choice.allowed_tools.tools") for entry in listed])


def _find(entry: Any, tools: Sequence[Tool], param: str) -> Tool:
    function = entry.get("function") if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or entry.get("type") != "function":
        raise refuse(param, _SHAPE)
    for tool in tools:
        if tool.name == name:
            return tool
    raise refuse(param, f"names the function {name[:64]!r}, which is not among the tools")
