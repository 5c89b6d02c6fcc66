"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the chat request that they mean."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from appliance.api.conversation.field_names import make_field_names
from appliance.api.conversation.schemas import ChatRequest
from appliance.api.fields import Integer, RequestFields, refuse
from appliance.api.messages.content_blocks import read_conversation
from appliance.api.request_body import validate
from appliance.api.sampling_fields import SamplingFields

FIELD_NAMES = make_field_names(
    {
        r"response_format\.json_schema": "output_config.format",
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "stop": "stop_sequences",
        r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
        r"tools\[(\d+)\]\.function": r"tools[\1]",
    }
)
MIN_THINKING_TOKENS = 1024
_OWN = frozenset({"n", "stream", "stream_options", "stop", "echo", "prompt_logprobs", "request_id"})
_SHARED = frozenset(SamplingFields.model_fields) - _OWN
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Thinking(RequestFields):
    """``thinking``: on, off, or as the model sees fit. The budget is checked, and not enforced."""

    type: str
    budget_tokens: Integer | None = None


class OutputFormat(RequestFields):
    """What the answer's text must look like."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestFields):
    """``output_config``."""

    effort: str | None = None
    format: OutputFormat | None = None


class CustomTool(RequestFields):
    """A tool that the client runs."""

    type: str = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        """The same in chat's words."""
        function = {"name": self.name, "description": self.description, "strict": self.strict}
        return {"type": "function", "function": function | {"parameters": {"type": "object"} | self.input_schema}}


class ToolChoice(RequestFields):
    """``tool_choice``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def to_chat(self) -> Any:
        """The same in chat's words."""
        if self.type != "tool":
            return _CHOICES[self.type]
        if self.name is None:
            raise refuse("tool_choice.name", "is required with type tool")
        return {"type": "function", "function": {"name": self.name}}


class MessagesPrompt(RequestFields):
    """What becomes the prompt."""

    messages: list[Any] = Field(min_length=1, json_schema_extra={"items": {"type": "object"}})
    system: Any = Field(
        None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    )
    tools: list[CustomTool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_tools(self) -> MessagesPrompt:
        for index, tool in enumerate(self.tools):
            if tool.type != "custom":
                raise refuse(f"tools[{index}].type", "must be custom: this server has no tools of its own")
        return self

    @property
    def shows_thinking(self) -> bool:
        """Whether thinking is part of the answer."""
        return self.thinking is None or self.thinking.type != "disabled"

    def chat_fields(self) -> dict[str, Any]:
        """The prompt in chat's words. Raises InvalidRequestError."""
        messages = read_conversation(self.system, self.messages)
        fields: dict[str, Any] = {
            "messages": messages,
            "continue_final_message": _is_open(messages[-1]),
            "tools": [tool.to_chat() for tool in self.tools],
            "chat_template_kwargs": self._template_kwargs(),
            "reasoning_effort": self.output_config.effort,
        }
        if self.tool_choice is not None:
            fields["tool_choice"] = self.tool_choice.to_chat()
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        return fields

    def _template_kwargs(self) -> dict[str, Any]:
        if self.thinking is None:
            return self.chat_template_kwargs
        return {"enable_thinking": self.thinking.type != "disabled"} | self.chat_template_kwargs


def _is_open(message: dict[str, Any]) -> bool:
    """Whether the answer goes on from this message instead of beginning anew."""
    return message["role"] == "assistant" and bool(message["content"]) and not message.get("tool_calls")


class CountTokensRequest(MessagesPrompt):
    """A conversation whose tokens are to be counted."""

    model: str | None = None

    def to_chat(self) -> ChatRequest:
        """The chat request. Raises InvalidRequestError."""
        return validate(ChatRequest, self.chat_fields())


class MessagesRequest(SamplingFields, MessagesPrompt):
    """A message request: Anthropic's fields, and the sampling extensions that chat has."""

    stop_sequences: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_required(self) -> MessagesRequest:
        for name in ("model", "max_tokens"):
            if getattr(self, name) is None:
                raise refuse(name, "is required")
        return self

    @model_validator(mode="after")
    def _check_thinking(self) -> MessagesRequest:
        if self.thinking is None or self.thinking.type != "enabled":
            return self
        budget = self.thinking.budget_tokens
        assert self.max_tokens is not None
        if budget is None or not MIN_THINKING_TOKENS <= budget < self.max_tokens:
            limits = f"must be at least {MIN_THINKING_TOKENS} and less than max_tokens, here {self.max_tokens}"
            raise refuse("thinking.budget_tokens", limits)
        return self

    def to_chat(self) -> ChatRequest:
        """The chat request. Raises InvalidRequestError."""
        fields = {name: getattr(self, name) for name in self.model_fields_set & _SHARED} | self.chat_fields()
        fields |= {"include_reasoning": self.shows_thinking, "stop": self.stop_sequences or None}
        if self.output_config.format is not None:
            schema = {"name": "answer", "schema": self.output_config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return validate(ChatRequest, fields)
