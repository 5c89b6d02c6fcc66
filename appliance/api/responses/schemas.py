"""The body of POST /v1/responses, and the chat request that it means."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from appliance.api.conversation.field_names import make_field_names
from appliance.api.conversation.schemas import ChatRequest
from appliance.api.fields import Integer, RequestFields, refuse
from appliance.api.request_body import validate
from appliance.api.sampling_fields import SamplingFields

FIELD_NAMES = make_field_names(
    {
        r"response_format\.json_schema": "text.format",
        "response_format": "text.format",
        r"max_(completion_)?tokens": "max_output_tokens",
        "messages": "input",
        r"tools\[(\d+)\]\.function": r"tools[\1]",
        "reasoning_effort": "reasoning.effort",
    }
)
INCLUDE_LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16
_NOT_HERE = ("prompt", "conversation")
_CHOICE_SHAPE = 'must be none, auto, required or look like {"type": "function", "name": "…"}'
_OWN = frozenset({"n", "stream", "stream_options", "max_tokens", "echo", "prompt_logprobs", "request_id"})
_SHARED = (frozenset(SamplingFields.model_fields) - _OWN) | {"chat_template_kwargs"}


class ReasoningConfig(RequestFields):
    """``reasoning``: how much to think; a summary is never made."""

    effort: str | None = None
    summary: str | None = None


class TextConfig(RequestFields):
    """``text``: what the answer must look like."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None

    def to_response_format(self) -> dict[str, Any] | None:
        """The same in chat's words, where the schema is one level down."""
        if self.format is None or self.format.get("type") != "json_schema":
            return self.format
        return {"type": "json_schema", "json_schema": {k: v for k, v in self.format.items() if k != "type"}}


class ResponsesRequest(SamplingFields):
    """A response request: OpenAI's fields, and the sampling extensions that chat has."""

    input: Any = Field(
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    )
    instructions: str | None = None
    max_output_tokens: Integer | None = Field(None, ge=1)
    max_tool_calls: Integer | None = None
    metadata: dict[str, str] = Field(default_factory=dict, max_length=MAX_METADATA)
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    reasoning: ReasoningConfig | None = None
    include: list[str] = Field(default_factory=list)
    include_reasoning: bool = True
    top_logprobs: Integer | None = Field(None, ge=-1)
    text: TextConfig = Field(default_factory=TextConfig)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Any = Field(None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]})
    parallel_tool_calls: bool = True
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    service_tier: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_here(cls, value: Any) -> Any:
        """Fields that change what the model reads must never be ignored in silence."""
        for name in _NOT_HERE:
            if isinstance(value, dict) and value.get(name) is not None:
                raise refuse(name, "is not supported; send the whole input, or previous_response_id")
        return value

    @model_validator(mode="after")
    def _check_background(self) -> ResponsesRequest:
        if self.background:
            raise refuse("background", "must be false: every response is answered at once")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """``top_logprobs`` alone does not show any."""
        return INCLUDE_LOGPROBS in self.include

    def to_chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        """The chat request that these messages and the other fields mean. Raises InvalidRequestError."""
        choice = read_tool_choice(self.tool_choice)
        tools = allowed_tools(read_tools(self.tools), self.tool_choice)
        fields = {name: getattr(self, name) for name in self.model_fields_set & _SHARED}
        fields |= {"messages": messages, "parallel_tool_calls": self.parallel_tool_calls}
        fields |= {"include_reasoning": self.include_reasoning, "max_completion_tokens": self.max_output_tokens}
        fields |= {"tools": tools, "tool_choice": None if choice == "auto" and not tools else choice}
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        if self.text.format is not None:
            fields["response_format"] = self.text.to_response_format()
        if self.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return validate(ChatRequest, fields)


def read_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Function tools in chat's shape, where the function is one level down. Raises InvalidRequestError."""
    read = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise refuse(f"tools[{index}].type", "must be function: this server has no tools of its own")
        read.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
    return read


def read_tool_choice(choice: Any) -> Any:
    """The choice in chat's shape. Raises InvalidRequestError."""
    if isinstance(choice, str | None):
        return choice
    if not isinstance(choice, dict):
        raise refuse("tool_choice", _CHOICE_SHAPE)
    if choice.get("type") == "allowed_tools":
        mode = choice.get("mode")
        if mode not in ("auto", "required"):
            raise refuse("tool_choice.mode", "must be auto or required")
        return mode
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise refuse("tool_choice", _CHOICE_SHAPE)
    return {"type": "function", "function": {"name": choice["name"]}}


def allowed_tools(tools: list[dict[str, Any]], choice: Any) -> list[dict[str, Any]]:
    """The tools that a choice of type ``allowed_tools`` leaves; all of them under any other."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not all(isinstance(entry, dict) for entry in allowed):
        raise refuse("tool_choice.tools", "must be a list of tools")
    names = {entry.get("name") for entry in allowed if isinstance(entry.get("name"), str)}
    kept = [tool for tool in tools if tool["function"].get("name") in names]
    if len(kept) != len(names):
        raise refuse("tool_choice.tools", "names a function that is not among the tools")
    return kept
