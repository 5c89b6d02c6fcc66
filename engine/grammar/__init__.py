"""Constrained output: a grammar becomes a matcher of tokens, off the busy loop; a matcher says which may come next.

Everything here is host work on llguidance (Rust); no torch. Putting a mask on logits is `engine.sampling`'s job.
"""
