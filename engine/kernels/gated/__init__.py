"""Gated activations: silu(gate) * up, and gelu(gate) * up in the tanh approximation."""
