"""The /v1/chat/completions protocol."""
