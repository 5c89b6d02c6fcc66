"""The body of POST /v1/chat/completions, and what chat requests share with /tokenize."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from appliance.api.conversation.tool_grammar import make_tool_grammar
from appliance.api.conversation.tools import Tool, ToolChoice, read_tool_choice
from appliance.api.fields import Integer, RequestFields, refuse
from appliance.api.sampling_fields import SamplingFields, check_logprobs
from appliance.api.served_model import ServedModel
from appliance.settings import Settings
from engine.messages import Grammar

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "return_assistant_tokens_mask",
        "return_dict",
        "tokenize",
        "tokenizer",
        "tools",
    }
)


class PromptFields(RequestFields):
    """What becomes the prompt. `conversation.messages` checks ``messages`` and names the exact place of a fault."""

    messages: list[Any] = Field(
        min_length=1,
        json_schema_extra={
            "items": {
                "type": "object",
                "required": ["role"],
                "properties": {
                    "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
                    "content": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]},
                },
            }
        },
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[Tool] = Field(default_factory=list)
    documents: list[dict[str, Any]] | None = None
    _default_kwargs: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_prompt(self) -> PromptFields:
        if self.add_generation_prompt and self.continue_final_message:
            raise refuse("continue_final_message", "and add_generation_prompt cannot both be true")
        reserved = sorted(RESERVED_KWARGS & set(self.chat_template_kwargs))
        if reserved:
            raise refuse("chat_template_kwargs", f"must not hold {', '.join(reserved)}")
        return self

    def follow(self, settings: Settings) -> None:
        """Take over the box's template variables. Raises InvalidRequestError where a template is not welcome, or where
        there are too many tools.
        """
        if len(self.tools) > settings.max_tools:
            raise refuse("tools", f"must be at most {settings.max_tools} tools")
        if self.chat_template is not None and not settings.trust_request_chat_template:
            raise refuse(
                "chat_template", "is not accepted: the server was started without --trust-request-chat-template"
            )
        self._default_kwargs = settings.default_chat_template_kwargs or {}

    @property
    def opens_answer(self) -> bool:
        """Whether the prompt ends with the opening of an assistant turn."""
        return not self.continue_final_message and self.add_generation_prompt is not False

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the template gets beside messages and tools."""
        return self._default_kwargs | self.chat_template_kwargs


class ChatRequest(SamplingFields, PromptFields):
    """A chat completion request."""

    max_completion_tokens: Integer | None = None
    logprobs: bool = False
    top_logprobs: Integer | None = Field(None, ge=-1)
    tool_choice: Any = Field(None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]})
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    modalities: list[Any] = Field(default_factory=list)

    @property
    def num_logprobs(self) -> int | None:
        """``top_logprobs`` counts only with ``logprobs``."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def asked_max_tokens(self) -> tuple[str, int | None]:
        """The limit and the name of the field that set it; the newer name wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Effort goes to the template under the two names that templates know."""
        if self.reasoning_effort is None:
            return super().template_kwargs
        effort = {"reasoning_effort": self.reasoning_effort, "enable_thinking": self.reasoning_effort != "none"}
        return self._default_kwargs | effort | self.chat_template_kwargs

    def check(self, settings: Settings, model: ServedModel) -> None:
        """Raises InvalidRequestError."""
        super().check(settings, model)
        if any(modality != "text" for modality in self.modalities):
            raise refuse("modalities", "must be text: this model writes nothing else")
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "needs logprobs true")
        check_logprobs("top_logprobs", self.top_logprobs, settings)
        self._check_tool_choice(settings)

    @property
    def tools_choice(self) -> ToolChoice:
        """``tool_choice``, read. Raises InvalidRequestError."""
        return read_tool_choice(self.tool_choice, self.tools)

    def make_grammar(self) -> Grammar | None:
        """A forced call is all that the answer may be; a response_format is for the answers after it."""
        answer, choice = super().make_grammar(), self.tools_choice
        if not choice.is_forced:
            return answer
        if answer is not None and answer.param != "response_format":
            raise refuse(answer.param, f"cannot be combined with tool_choice {choice.mode}")
        return make_tool_grammar(choice, is_parallel=self.parallel_tool_calls)

    def _check_tool_choice(self, settings: Settings) -> None:
        choice = self.tools_choice
        if choice.mode == "auto" and choice.is_asked and not settings.enable_auto_tool_choice:
            raise refuse(
                "tool_choice", "auto needs a server started with --enable-auto-tool-choice and --tool-call-parser"
            )
