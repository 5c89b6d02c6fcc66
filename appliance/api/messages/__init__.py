"""The /v1/messages protocol, as Anthropic's clients speak it."""
