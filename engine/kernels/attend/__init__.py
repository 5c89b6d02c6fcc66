"""Rotary embedding, KV write and paged causal attention, and the KV cache that they share."""
