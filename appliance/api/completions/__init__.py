"""The /v1/completions protocol."""
